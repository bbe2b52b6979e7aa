"""Quantities as people write them: `800ms`, `8GiB`, `1k`, `20%`, and back.

In: text (or a bare number in the base unit). Out: float seconds, whole bytes, whole counts, fractions.
Errors: `ValueError` whose message says what was read and what would be understood.
"""

from __future__ import annotations

import math
import re
from typing import Final

_NUMBER: Final = re.compile(r"^\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ%]*)\s*$")
_DURATION_S: Final = {
    "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0,
    "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_BYTES: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_COUNT: Final = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9,
    "ki": 2**10, "Ki": 2**10, "mi": 2**20, "Mi": 2**20,
}  # fmt: skip
"""A lone `m` is missing on purpose: it reads as milli, minutes or million."""
_COMPOUND: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(us|µs|μs|ms|sec|s|min|m|h|d)(?: |$|(?=[0-9]))")


def _split(text: str, what: str, examples: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {what}; write for example {examples}")
    value = float(match.group(1).replace("_", ""))
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large for a {what}")
    return value, match.group(2)


def parse_duration_s(value: str | float) -> float:
    """`800ms`, `1.5s`, `2m`, `1h30m`, or a bare number of seconds → seconds."""
    if not isinstance(value, str):
        return _finite(value, "duration")
    parts = _COMPOUND.findall(value)
    if len(parts) > 1 and _COMPOUND.sub("", value.strip()) == "":
        return _finite(sum(float(amount) * _DURATION_S[unit] for amount, unit in parts), "duration")
    number, unit = _split(value, "duration", "800ms, 15s, 2m or 1h30m")
    if unit == "" and number != 0:
        raise ValueError(f"{value!r} has no unit; write for example {value.strip()}s or {value.strip()}ms")
    if unit and unit not in _DURATION_S:
        raise ValueError(f"{unit!r} is not a unit of time; use us, ms, s, m, h or d")
    return _finite(number * _DURATION_S.get(unit, 1.0), "duration")


def parse_bytes(value: str | int | float) -> int:
    """`8GiB`, `64MiB`, `500kB`, or a bare number of bytes → bytes."""
    if not isinstance(value, str):
        return _whole(value, "number of bytes")
    number, unit = _split(value, "size", "64MiB or 8GiB")
    factor = _BYTES.get(unit.lower())
    if factor is None:
        raise ValueError(f"{unit!r} is not a unit of size; use kB, MB, GB, KiB, MiB or GiB")
    return _whole(number * factor, "number of bytes")


def parse_count(value: str | int | float) -> int:
    """`1k` (1,000), `8ki` (8,192), `2M`, or a bare whole number → a count."""
    if not isinstance(value, str):
        return _whole(value, "count")
    number, unit = _split(value, "count", "512, 8k or 8ki")
    factor = _COUNT.get(unit)
    if factor is None:
        raise ValueError(f"{unit!r} is not a count suffix; use k (1,000), ki (1,024) or M")
    return _whole(number * factor, "count")


def parse_fraction(value: str | float) -> float:
    """`20%` or `0.2` → 0.2."""
    if not isinstance(value, str):
        return _finite(value, "fraction")
    number, unit = _split(value, "fraction", "0.2 or 20%")
    if unit == "%":
        return number / 100
    if unit:
        raise ValueError(f"{value!r} is not a fraction; write 0.2 or 20%")
    return number


def parse_rate_per_s(value: str | float) -> float:
    """`1000/s`, `90/min`, or a bare number of requests a second → per second."""
    if not isinstance(value, str):
        return _finite(value, "rate")
    number, slash, period = value.partition("/")
    per_s = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}.get(period.strip())
    if per_s is None or (slash and not period.strip()):
        raise ValueError(f"{value!r} is not a rate; write 20, 20/s or 90/min")
    return _finite(parse_count_float(number) / per_s, "rate")


def parse_count_float(value: str) -> float:
    """A count that need not be whole: `1.5k` → 1500.0, `0.5` → 0.5."""
    number, unit = _split(value, "number", "20 or 1.5k")
    factor = _COUNT.get(unit)
    if factor is None:
        raise ValueError(f"{unit!r} is not a count suffix; use k (1,000), ki (1,024) or M")
    return _finite(number * factor, "number")


def write_duration(seconds: float) -> str:
    """Seconds as a spec writes them, exactly: `800ms`, `15s`, `30m`; `parse_duration_s` gives `seconds` back."""
    for unit, factor in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= factor and seconds % factor == 0:
            return f"{write_number(seconds / factor)}{unit}"
    in_ms = f"{round(seconds * 1e3, 9):g}ms"
    if 0 < seconds < 1 and parse_duration_s(in_ms) == seconds:
        return in_ms
    return f"{write_number(seconds)}s"


def write_bytes(size_bytes: int) -> str:
    """Bytes as a spec writes them, exactly: `16MiB`, `1500`; `parse_bytes` gives `size_bytes` back."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def write_number(value: float) -> str:
    """A number without a needless `.0`: `20`, `0.05`, `1e-07`."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def format_duration(seconds: float) -> str:
    """Seconds for people: `1.2 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.0095:
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_bytes(size_bytes: float) -> str:
    """Bytes for people, in binary units: `1.5 GiB`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def _finite(value: int | float, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{str(value)[:40]} is not a {what}")
    return number


def _whole(value: int | float, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    value = _finite(value, what)
    if value != int(value):
        raise ValueError(f"{value:.12g} is not a whole {what}")
    return int(value)
