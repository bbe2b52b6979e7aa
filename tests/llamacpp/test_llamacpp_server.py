"""The engine process by itself: what it serves, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.engines.llamacpp_server import command
from tidegate.engines.tiny_model import write_tiny_model
from tidegate.errors import ExitCode
from tidegate.testing.live import HOST, PATIENCE_S, LlamaCpp, free_port, wait_until


def request(engine: LlamaCpp, path: str, body: dict[str, Any]) -> urllib.request.Request:
    """One JSON request straight to the engine."""
    return urllib.request.Request(engine.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})


def post(engine: LlamaCpp, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(request(engine, path, body), timeout=PATIENCE_S) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


@pytest.fixture
def own_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaCpp]:
    """An engine that a test may end; its temporary files lie in tmp_path/temporary."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with LlamaCpp(tmp_path / "log", slots=1, context_tokens=16384) as process:
        process.wait_serving()
        yield process


def test_answers_are_plain_words_of_exactly_the_length_asked_for(engine: LlamaCpp) -> None:
    for length in (1, 37, 400):
        answer = post(engine, "/v1/completions", {"prompt": "hello", "max_tokens": length, "temperature": 1.5})
        text = answer["choices"][0]["text"]
        assert answer["usage"]["completion_tokens"] == length
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(text.split()) == length
        assert text.isascii()
        assert text.replace(" ", "").isalpha()


def test_text_survives_the_tokenizer(engine: LlamaCpp) -> None:
    prompt = "Gezeitentor: 潮门 opens at 6 — ¿vale? \n\ttabs, ütf, 🌊"
    tokens = post(engine, "/tokenize", {"content": prompt})["tokens"]
    assert post(engine, "/detokenize", {"tokens": tokens})["content"] == prompt


def test_the_same_seed_writes_the_same_model(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    write_tiny_model(first, seed=3)
    write_tiny_model(again, seed=3)
    write_tiny_model(other, seed=4)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def test_sigterm_ends_it_though_a_client_has_stopped_reading(own_engine: LlamaCpp, tmp_path: Path) -> None:
    endless = request(own_engine, "/v1/completions", {"prompt": "hello", "max_tokens": 16000, "stream": True})
    with urllib.request.urlopen(endless, timeout=PATIENCE_S) as answer:
        answer.readline()
        assert own_engine.stop(PATIENCE_S) == ExitCode.OK
    assert not list((tmp_path / "temporary").iterdir()), "its model file is gone"


def test_ctrl_c_is_a_clean_end_too(own_engine: LlamaCpp, tmp_path: Path) -> None:
    os.kill(own_engine.pid, signal.SIGINT)
    wait_until("the engine gone", lambda: own_engine.exit_code is not None)
    assert own_engine.exit_code == ExitCode.OK
    assert not list((tmp_path / "temporary").iterdir())


def refusal(*words: str) -> tuple[int, str]:
    """Exit code and words of a server that cannot start."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stderr


def test_a_taken_port_is_named(engine: LlamaCpp) -> None:
    code, said = refusal(*command(engine.port))
    assert code == ExitCode.UNAVAILABLE
    assert f"cannot listen on {HOST}:{engine.port}" in said
    assert len(said.splitlines()) == 2


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    code, said = refusal(*command(free_port()), "--model", str(tmp_path / "none.gguf"))
    assert code == ExitCode.BAD_INPUT
    assert "none.gguf: there is no such file" in said


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "junk.gguf"
    path.write_text("junk")
    code, said = refusal(*command(free_port()), "--model", str(path))
    assert code == ExitCode.UNAVAILABLE
    assert f"did not start with {path}" in said
    assert "Traceback" not in said
