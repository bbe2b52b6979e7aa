"""Runs on disk: `runs/<id>/run.json` and `runs/<id>/requests.jsonl.gz`, written once and never overwritten.

In: a `RunRecord`, or a run's folder. Out: the folder, or the same record again. A run appears whole or not at
all: it is written beside its place and renamed into it. Damaged files are named with what is wrong in them.
"""

from __future__ import annotations

import gzip
import re
import shutil
import zlib
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import BadInputError, UnavailableError
from tidegate.traffic.record import RequestRecord, RunRecord

FORMAT: Final = 1
RUN_FILE: Final = "run.json"
REQUESTS_FILE: Final = "requests.jsonl.gz"


class _RunFile(msgspec.Struct):
    """What `run.json` holds: the record without its requests, which have a file of their own."""

    format: int
    request_count: int
    run: RunRecord


def run_id(started_at: str, label: str) -> str:
    """A folder name from an ISO time and a label: `20260131T081500Z-frozen`."""
    stamp = re.sub(r"[^0-9TZ]", "", started_at.split(".")[0].split("+")[0])
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", label).strip("-")[:40]
    return f"{stamp}-{word}" if word else stamp


def write_run(run: RunRecord, folder: Path) -> Path:
    """Writes a run to `folder/<run.id>` and returns that path.

    An id that is taken gets `-2`, `-3` … and `run.id` is set to what was used. Raises `UnavailableError` when
    the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run.id = _free_id(folder, run.id)
        draft = folder / f".{run.id}.writing"
        draft.mkdir()
        try:
            _write_files(run, draft)
            draft.rename(folder / run.id)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as exc:
        raise UnavailableError(
            f"the run cannot be written to {folder}: {exc.strerror or exc}", hint="choose another --out"
        ) from exc
    return folder / run.id


def read_run(path: Path) -> RunRecord:
    """The run in folder `path`. Raises `BadInputError` when it is missing, damaged or of another format."""
    if not (path / RUN_FILE).is_file():
        raise BadInputError(f"{path}: is not a run (no {RUN_FILE} in it)", hint="give a folder such as runs/ID")
    head = _read_head(path / RUN_FILE)
    requests = _read_requests(path / REQUESTS_FILE)
    if len(requests) != head.request_count:
        raise BadInputError(
            f"{path / REQUESTS_FILE}: holds {len(requests)} requests, {RUN_FILE} says {head.request_count}"
        )
    head.run.requests = requests
    return head.run


def _free_id(folder: Path, wanted: str) -> str:
    name, number = wanted, 1
    while (folder / name).exists() or (folder / f".{name}.writing").exists():
        number += 1
        name = f"{wanted}-{number}"
    return name


def _write_files(run: RunRecord, draft: Path) -> None:
    bare = msgspec.structs.replace(run, requests=[])
    head = msgspec.json.encode(_RunFile(FORMAT, len(run.requests), bare))
    (draft / RUN_FILE).write_bytes(msgspec.json.format(head, indent=1) + b"\n")
    encoder = msgspec.json.Encoder()
    # mtime 0 and no name: the same run gives the same bytes.
    with (
        (draft / REQUESTS_FILE).open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=raw, mtime=0) as packed,
    ):
        for record in run.requests:
            packed.write(encoder.encode(record) + b"\n")


def _read_head(path: Path) -> _RunFile:
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != b"%d" % FORMAT:
            raise BadInputError(f"{path}: is not a run of format {FORMAT}", hint="use the Tidegate that wrote it")
        return msgspec.json.decode(data, type=_RunFile)
    except OSError as exc:
        raise BadInputError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInputError(f"{path}: is damaged: {exc}") from exc


def _read_requests(path: Path) -> list[RequestRecord]:
    decoder = msgspec.json.Decoder(RequestRecord)
    requests: list[RequestRecord] = []
    try:
        with gzip.open(path, "rb") as lines:
            requests.extend(decoder.decode(line) for line in lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadInputError(f"{path}:{len(requests) + 1}: is damaged: {exc}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        # A cut gzip file is an EOFError, a scrambled one a zlib error or `BadGzipFile`, an OSError.
        raise BadInputError(f"{path}: cannot be read after {len(requests)} requests: {exc}") from exc
    return requests
