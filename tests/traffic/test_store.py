"""Runs on disk: written once, read back equal, damage named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import BadInputError, Outcome, UnavailableError
from tidegate.testing.runs import record, run_of
from tidegate.traffic.record import InstanceRecord, PhaseMark, RunRecord
from tidegate.traffic.store import read_run, run_id, write_run


@pytest.fixture
def run() -> RunRecord:
    run = run_of([record(0, 1.0, first_s=1.1, gaps_ms=[20.0, 30.5]), record(1, 2.0, Outcome.QUEUE_TIMEOUT)])
    run.gaps = {20000: 1, 30528: 1}
    run.phases = [PhaseMark("steady", 0, 10)]
    run.instances = [InstanceRecord(name="a", preemptions=2)]
    return run


def test_a_run_reads_back_as_it_was_written(run: RunRecord, tmp_path: Path) -> None:
    assert read_run(write_run(run, tmp_path)) == run


def test_a_run_is_never_overwritten(run: RunRecord, tmp_path: Path) -> None:
    first = write_run(run, tmp_path)
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    second = write_run(run_of([]), tmp_path)
    assert second.name == "run-2"
    assert read_run(second).id == "run-2"
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run-2"}


def test_the_same_run_gives_the_same_bytes(run: RunRecord, tmp_path: Path) -> None:
    one, two = write_run(run, tmp_path / "a"), write_run(run, tmp_path / "b")
    for name in ("run.json", "requests.jsonl.gz"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("run.json", b"{", "is damaged"),
        ("run.json", b"[]", "is damaged"),
        ("run.json", b'{"format": 99}', "is not a run of format 1"),
        ("run.json", b'{"format": 1, "request_count": 2}', "missing required field `run`"),
        ("requests.jsonl.gz", b"not gzip", "cannot be read after 0 requests"),
        ("requests.jsonl.gz", b"", "holds 0 requests, run.json says 2"),
        ("requests.jsonl.gz", None, "No such file"),
    ],
)
def test_damage_is_named_with_the_file(
    run: RunRecord, tmp_path: Path, file: str, content: bytes | None, says: str
) -> None:
    path = write_run(run, tmp_path)
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        read_run(path)
    assert says in caught.value.message
    assert file in caught.value.message


def test_a_cut_or_scrambled_request_file_is_one_sentence(run: RunRecord, tmp_path: Path) -> None:
    path = write_run(run, tmp_path)
    packed = (path / "requests.jsonl.gz").read_bytes()
    for damaged in (packed[: len(packed) // 2], packed[:15] + b"\xff" * 20 + packed[35:]):
        (path / "requests.jsonl.gz").write_bytes(damaged)
        with pytest.raises(BadInputError, match=r"requests\.jsonl\.gz"):
            read_run(path)


def test_a_folder_that_is_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a run"):
        read_run(tmp_path)


def test_a_folder_that_cannot_be_written_is_said_so(run: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnavailableError, match="cannot be written"):
        write_run(run, tmp_path / "file")


def test_ids_are_safe_folder_names() -> None:
    assert run_id("2026-01-31T08:15:00.123+00:00", "../my run/é") == "20260131T081500-my-run"
    assert run_id("2026-01-31T08:15:00Z", "") == "20260131T081500Z"
