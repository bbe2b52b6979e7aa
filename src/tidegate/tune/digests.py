"""Digests of a model's folder: weights, tokenizer, chat template; and the host's NVIDIA driver.

In: paths. Out: `LockedFiles` with what is there; what is not there stays unknown (None). Reads every byte of the
weights: about a minute for 100 GB from a fast disk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import BadInputError
from tidegate.spec.lock import LockedFiles

WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".gguf")
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json")
TEMPLATE_FILES: Final = ("chat_template.jinja", "chat_template.json")
DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
_DRIVER: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")


def digest_folder(folder: Path) -> LockedFiles:
    """What a model's folder holds. Raises `BadInputError` when it is no folder or cannot be read."""
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder", hint="give the folder that holds config.json and the weights")
    try:
        names = sorted(path for path in folder.iterdir() if path.is_file())
        return LockedFiles(
            weights=_digest(path for path in names if path.suffix in WEIGHT_SUFFIXES),
            tokenizer=_digest(path for path in names if path.name in TOKENIZER_FILES),
            chat_template=_template(folder, names),
        )
    except OSError as exc:
        raise BadInputError(f"{exc.filename}: cannot be read: {exc.strerror}", hint="check its permissions") from None


def nvidia_driver(path: Path = DRIVER_FILE) -> str | None:
    """The loaded driver's version, None where there is none."""
    try:
        match = _DRIVER.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match.group(1) if match is not None else None


def _digest(paths: Iterable[Path]) -> str | None:
    """Of names and contents, so that a shard that changes places is seen."""
    whole = hashlib.sha256()
    count = 0
    for path in paths:
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {inner}\n".encode())
        count += 1
    return f"sha256:{whole.hexdigest()}" if count else None


def _template(folder: Path, names: list[Path]) -> str | None:
    """The template's own file, else the one inside tokenizer_config.json."""
    own = _digest(path for path in names if path.name in TEMPLATE_FILES)
    config = folder / "tokenizer_config.json"
    if own is not None or not config.is_file():
        return own
    try:
        values = msgspec.json.decode(config.read_bytes())
    except msgspec.DecodeError as exc:
        raise BadInputError(f"{config} is not JSON: {exc}", hint="fetch the model again") from None
    template = values.get("chat_template") if isinstance(values, dict) else None
    if template is None:
        return None
    return "sha256:" + hashlib.sha256(msgspec.json.encode(template)).hexdigest()
