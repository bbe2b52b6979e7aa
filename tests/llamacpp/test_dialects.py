"""The gateway minds each engine kind's habits: which path it probes, whether it uses a connection again."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tidegate.node.process import Child, answers
from tidegate.testing.live import HOST, PATIENCE_S, free_port, wait_until

CONFIGURATION = """
version: 1
pools:
  - model: small
    instances: [{{url: "http://{host}:{engine}"}}]
    engine: {{kind: {kind}}}
gateway:
  listen: "{host}:{port}"
  admin: "{host}:{admin}"
  scrape_interval: 50ms
"""
QUESTION = json.dumps({"model": "small", "prompt": "hello", "max_tokens": 2})
ANSWER = json.dumps(
    {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "text": "tide gate", "finish_reason": "length", "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
)


class Journal:
    """What an engine of any kind saw."""

    def __init__(self) -> None:
        self.probed: set[str] = set()
        self.asked_on: list[int] = []
        """The client's port of every request for an answer."""


def engine_class(journal: Journal) -> type[BaseHTTPRequestHandler]:
    class Engine(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            journal.probed.add(self.path)
            self._respond("")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            journal.asked_on.append(self.client_address[1])
            self._respond(ANSWER)

        def _respond(self, body: str) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Engine


@pytest.fixture
def engine() -> Iterator[tuple[int, Journal]]:
    """A server that keeps connections for as long as its client does."""
    journal = Journal()
    server = ThreadingHTTPServer((HOST, 0), engine_class(journal))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], journal
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "health_path", "connections"), [("vllm", "/health", 1), ("sglang", "/ping", 1), ("llamacpp", "/health", 5)]
)
def test_habits_of_each_kind(
    engine: tuple[int, Journal], tmp_path: Path, kind: str, health_path: str, connections: int
) -> None:
    engine_port, journal = engine
    port, admin = free_port(), free_port()
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIGURATION.format(engine=engine_port, kind=kind, host=HOST, port=port, admin=admin))
    words = [sys.executable, "-m", "tidegate", "gateway", "-c", str(file)]
    with Child("gateway", words, tmp_path / "log") as gateway:
        gateway.wait_ready(lambda: answers(HOST, admin), PATIENCE_S)
        wait_until("a scrape", lambda: "/metrics" in journal.probed)
        client = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
        for _ in range(5):
            client.request("POST", "/v1/completions", QUESTION, {"Content-Type": "application/json"})
            assert json.load(client.getresponse())["choices"][0]["text"] == "tide gate"
        client.close()
    assert len(journal.asked_on) == 5
    assert len(set(journal.asked_on)) == connections
    assert journal.probed == {health_path, "/metrics"}
