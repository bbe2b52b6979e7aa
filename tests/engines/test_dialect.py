"""What the dialects say of probes and errors, against recorded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidegate.engines import DIALECTS


def sentence(document: Any, path: str) -> object:
    """The value at a dotted path; None where there is none."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def bodies(recorded: Path, kind: str) -> list[Any]:
    """Bodies of recorded 400s and of 404s of unknown models, parsed."""
    if kind == "sglang":
        files = [path for path in (recorded / "sglang/run-0.5.17").glob("err-*.txt") if "generate" not in path.name]
        texts = [text.split("\n\n")[-1] for path in files if "--- HTTP 400" in (text := path.read_text("utf-8"))]
        return [json.loads(text) for text in texts]
    answers = json.loads((recorded / kind / "responses.json").read_text("utf-8"))
    return [json.loads(one["body"]) for one in answers.values() if one["status"] == 400]


def test_the_sentence_of_an_error_is_where_the_dialect_says(recorded: Path) -> None:
    for kind, dialect in DIALECTS.items():
        found = [sentence(body, dialect.errors.body) for body in bodies(recorded, kind)]
        assert len(found) >= 3, kind
        assert all(isinstance(text, str) and text for text in found), kind


def test_probe_paths_answered_200_when_ready(recorded: Path) -> None:
    vllm = json.loads((recorded / "vllm/responses.json").read_text("utf-8"))
    assert vllm[DIALECTS["vllm"].probe.alive_path.removeprefix("/")]["status"] == 200
    ping = (recorded / "sglang/run-0.5.17/ping.txt").read_text("utf-8")
    assert DIALECTS["sglang"].probe.alive_path == "/ping"
    assert "--- HTTP 200" in ping


def test_a_probe_waits_longer_than_sglangs_generating_health_check(recorded: Path) -> None:
    health = (recorded / "sglang/run-0.5.17/health.txt").read_text("utf-8")
    took_s = float(health.split("--- HTTP 200 in ")[1].split()[0])
    assert took_s > 1.0
    assert DIALECTS["sglang"].probe.timeout_s > took_s


def test_what_nobody_measured_is_unknown_not_no() -> None:
    assert DIALECTS["llamacpp"].shutdown.bounded is None
    assert DIALECTS["vllm"].shutdown.exit_code_tells is False
