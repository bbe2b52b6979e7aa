"""A calibration as a file: the constants, what they were fitted on, and how far the twin was off before and after."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from tidegate import __version__
from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile
from tidegate.twin.calibration import Calibration


class Source(Struct, frozen=True):
    """A measured file that constants came from."""

    file: str
    sha256: str


class HeldOut(Struct, frozen=True):
    """Errors in percent on a run that nothing was fitted on, by figure."""

    file: str
    before: dict[str, float]
    after: dict[str, float]


class CalibrationFile(Struct, kw_only=True, frozen=True):
    """What `tidegate calibrate` writes and `tidegate simulate --calibration` reads."""

    constants: dict[str, float]
    profile: EngineProfile
    """What was measured. The constants hold for it, and less and less the further a profile is from it."""
    step_table: str
    fitted_on: list[Source]
    held_out: list[HeldOut] = []
    tidegate: str = __version__

    def calibration(self) -> Calibration:
        """The constants as the twin takes them. Raises `BadInputError` for names it does not know."""
        try:
            return Calibration(**self.constants)
        except TypeError as exc:
            raise BadInputError(f"the calibration has a constant the twin does not know: {exc}") from exc


def source_of(path: Path) -> Source:
    """A file and its digest."""
    return Source(path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def read_calibration(path: Path) -> CalibrationFile:
    """The file at `path`. Raises `BadInputError` for what is not a calibration."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
    except (OSError, msgspec.DecodeError) as exc:
        raise BadInputError(
            f"{path}: cannot be read as a calibration: {exc}", hint="tidegate calibrate writes one"
        ) from exc


def write_calibration(file: CalibrationFile, path: Path) -> None:
    """Writes it readably. Raises `BadInputError` where that is not possible."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
    except OSError as exc:
        raise BadInputError(f"{path}: cannot be written: {exc.strerror}") from exc
