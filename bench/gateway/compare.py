"""Measures an OpenAI-style HTTP proxy beside nginx, in one run on one machine. Prints ratios; the last line is JSON.

    bench/gateway/compare.py [--start 'CMD {port} {u1} {u2}'] [--rounds 3] [--tests a,A,c,e] [--json FILE]

{port} is where the proxy must listen, {u1} and {u2} are the base URLs of two mock engines (model `mock-model`, any
key). The proxy runs on CPU 0, mock and load on CPU 1. In every round every contender does every test, so that a
ratio's two sides share the machine's weather; absolute times on a shared machine mean nothing. Needs nginx,
taskset, a C compiler and make; standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
SERVE: Final = HERE.parent / "serve"
START_PATIENCE_S: Final = 60
SETTLE_S: Final = 1.0

Rows = dict[tuple[str, str], list[dict[str, Any]]]

NGINX: Final = """worker_processes 1; daemon off; worker_rlimit_nofile 20000;
pid {d}/pid; error_log {d}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 300s; client_body_buffer_size 64k; tcp_nodelay on;
  client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u;
  scgi_temp_path {d}/s;
  upstream engines {{
    least_conn; {servers} keepalive 1100; keepalive_requests 100000000; keepalive_timeout 300s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
PROBE: Final = '{"model":"mock-model","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'


@dataclass(frozen=True, slots=True)
class Test:
    """One load pattern, the figure read from it, and what that figure is."""

    what: str
    figure: str
    load: str


TESTS: Final = {
    "a": Test("CPU per request, µs", "us_per_req", "--mode closed --conns 64 --dur 2.5 --warm 0.7"),
    "A": Test("CPU per request of 32 KiB, µs", "us_per_req",
              "--mode closed --conns 64 --dur 2.5 --warm 0.7 --bodysz 32768"),
    "c": Test("CPU per chunk, 200 paced streams, µs", "us_per_chunk",
              "--mode paced --stream 1 --n 100 --delay 20000 --conns 200 --ramp 1000 --dur 4 --warm 2"),
    "e": Test("memory with 1000 streams, KiB", "pss_kb",
              "--mode paced --stream 1 --n 100 --delay 500000 --conns 1000 --ramp 2500 --dur 1 --warm 4 --rss 1"),
}  # fmt: skip


def free_port() -> int:
    """A loopback port nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_tree(root: int) -> list[int]:
    """`root` and everything below it."""
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            todo += map(int, children.read_text().split())
    return found


def answers(port: int) -> bool:
    """Whether a small request through the proxy succeeds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer x"}
    try:
        connection.request("POST", "/v1/chat/completions", PROBE, headers)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """Asks, waits, then kills."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(name: str, proxy: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Returns once the proxy answers; ends the program with its log's last lines when it does not."""
    deadline = time.monotonic() + START_PATIENCE_S
    while not answers(port):
        if proxy.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()[-20:]
            raise SystemExit("\n".join([f"error: {name} did not start; its last words:", *lines]))
        time.sleep(0.2)
    time.sleep(SETTLE_S)


def run_load(test: Test, port: int, pids: list[int]) -> dict[str, Any]:
    """One run of the load client; its JSON line."""
    words = ["taskset", "-c", "1", str(HERE / "load"), "--port", str(port), "--auth", "x"]
    words += ["--pids", ",".join(map(str, pids)), *shlex.split(test.load)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(name: str, command: list[str], port: int, engines: list[int], tests: list[str], rows: Rows) -> None:
    """Starts fresh engines and one contender, does every test, stops both."""
    mock_command = ["taskset", "-c", "1", str(HERE / "mock"), *map(str, engines)]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with log.open("wb") as out:
            mock = subprocess.Popen(mock_command, stdout=out, stderr=out)
            proxy = subprocess.Popen(["taskset", "-c", "0", *command], stdout=out, stderr=out)
        try:
            wait_until_ready(name, proxy, port, log)
            for test in tests:
                row = run_load(TESTS[test], port, process_tree(proxy.pid))
                rows[name, test].append(row)
                if row["bad"]:
                    print(f"{name}, test {test}: {row['bad']} bad answers", file=sys.stderr)
        finally:
            stop(proxy, mock)


def one_round(start: str, tests: list[str], rows: Rows) -> None:
    """nginx, then the proxy, on fresh ports."""
    engines, port = [free_port(), free_port()], free_port()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # nginx's worker may be another user
        servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
        config = Path(directory, "nginx.conf")
        config.write_text(NGINX.format(d=directory, port=port, servers=servers))
        measure("nginx", [nginx_program(), "-c", str(config)], port, engines, tests, rows)
    port = free_port()
    urls = {f"u{i + 1}": f"http://127.0.0.1:{engine}" for i, engine in enumerate(engines)}
    measure("proxy", shlex.split(start.format(port=port, **urls)), port, engines, tests, rows)


def nginx_program() -> str:
    """Where nginx is; Debian keeps it out of a user's PATH."""
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise SystemExit("error: nginx is not installed, and every figure is a ratio to it; run: make deps")
    return found


def summary(tests: list[str], rows: Rows) -> dict[str, dict[str, Any]]:
    """Per test: medians of both sides, their ratio, bad answers of the proxy, added latency where stamped."""
    result: dict[str, dict[str, Any]] = {}
    for test in tests:
        figure = TESTS[test].figure
        mine, base = (statistics.median(row[figure] for row in rows[name, test]) for name in ("proxy", "nginx"))
        bad = sum(row["bad"] for row in rows["proxy", test])
        result[test] = {"figure": figure, "proxy": mine, "nginx": base, "ratio": round(mine / base, 3), "bad": bad}
        if figure == "us_per_chunk":
            for name in ("proxy", "nginx"):
                runs = [row["lat_us"] for row in rows[name, test]]
                result[test][f"{name}_added_us"] = {
                    q: statistics.median(run[q] for run in runs) for q in ("p50", "p99")
                }
    return result


def main() -> None:
    """Builds the two programs, runs the rounds, prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description="Measures a proxy beside nginx.")
    parser.add_argument("--start", default=f"{shlex.quote(str(SERVE))} {{port}} {{u1}} {{u2}}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tests = options.tests.split(",")
    if unknown := [test for test in tests if test not in TESTS]:
        parser.error(f"--tests {','.join(unknown)}: there are only {','.join(TESTS)}")
    nginx_program()
    subprocess.run(["make", "--silent", "-C", str(HERE)], check=True)
    rows: Rows = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        one_round(options.start, tests, rows)
    result = summary(tests, rows)
    for test, row in result.items():
        print(
            f"{test}  {TESTS[test].what:40} {row['proxy']:10.1f}  nginx {row['nginx']:10.1f}  ratio {row['ratio']:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"bench": "gateway", "rounds": options.rounds, "tests": result}))


if __name__ == "__main__":
    main()
