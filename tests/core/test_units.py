"""Quantities as people write them, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import units

PARSERS: list[Callable[[Any], float]] = [
    units.parse_duration_s,
    units.parse_bytes,
    units.parse_count,
    units.parse_fraction,
    units.parse_rate_per_s,
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("800ms", 0.8),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("1.5s", 1.5),
        ("2 min", 120),
        ("2m", 120),
        ("1h30m", 5400),
        ("1m30s", 90),
        ("1h 2 min 3.5s", 3723.5),
        ("1d", 86400),
        ("0", 0),
        ("1_000ms", 1),
        (90, 90),
        (0.05, 0.05),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert units.parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("64MiB", 2**26), ("500kB", 500_000), ("1.5 KiB", 1536), ("7", 7), (7.0, 7)]
)
def test_sizes(text: str | float, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "count"),
    [("1k", 1000), ("8ki", 8192), ("2M", 2_000_000), ("1.5k", 1500), (12, 12), (2**60 + 1, 2**60 + 1)],
)
def test_counts(text: str | int, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize(("text", "fraction"), [("20%", 0.2), ("0.2", 0.2), (0.2, 0.2), (1, 1.0), ("0%", 0)])
def test_fractions(text: str | float, fraction: float) -> None:
    assert units.parse_fraction(text) == fraction


@pytest.mark.parametrize(
    ("text", "rate"), [("1000/s", 1000), ("90/min", 1.5), ("1k/s", 1000), ("3600/h", 1), ("20", 20), (0.5, 0.5)]
)
def test_rates(text: str | float, rate: float) -> None:
    assert units.parse_rate_per_s(text) == rate


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (units.parse_duration_s, "800", "has no unit; write for example 800s or 800ms"),
        (units.parse_duration_s, "5 parsecs", "'parsecs' is not a unit of time; use us, ms, s, m, h or d"),
        (units.parse_duration_s, "1h30", "is not a duration"),
        (units.parse_duration_s, "-1s", "is not a duration"),
        (units.parse_duration_s, "", "is not a duration"),
        (units.parse_duration_s, "1e308h", "is not a duration"),
        (units.parse_duration_s, "9" * 400 + "h1m", "is not a duration"),
        (units.parse_duration_s, math.nan, "nan is not a duration"),
        (units.parse_duration_s, True, "True is not a duration"),
        (units.parse_bytes, "8G", "'G' is not a unit of size"),
        (units.parse_bytes, "0.5", "0.5 is not a whole number of bytes"),
        (units.parse_count, "5m", "'m' is not a count suffix; use k (1,000), ki (1,024) or M"),
        (units.parse_count, "1.5", "1.5 is not a whole count"),
        (units.parse_count, 2.5, "2.5 is not a whole count"),
        (units.parse_count, True, "True is not a count"),
        (units.parse_fraction, "20x", "is not a fraction; write 0.2 or 20%"),
        (units.parse_rate_per_s, "20/day", "is not a rate; write 20, 20/s or 90/min"),
        (units.parse_rate_per_s, "20/", "is not a rate"),
        (units.parse_rate_per_s, 10**400, "is not a rate"),
        (units.parse_rate_per_s, "9e307k/s", "is not a number"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(parse: Callable[[Any], float], text: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("parse", PARSERS)
@given(value=st.one_of(st.text(), st.from_regex(r"[0-9eE._]{1,6} ?[a-zA-Zµ%/]{0,3}"), st.integers(), st.floats()))
def test_any_input_is_a_finite_number_or_a_value_error(parse: Callable[[Any], float], value: Any) -> None:
    try:
        assert math.isfinite(parse(value)) or isinstance(value, int)
    except ValueError as exc:
        message = str(exc)
    else:
        return
    assert message


@given(st.one_of(st.floats(0, 1e9), st.integers(0, 10**7).map(lambda ms: ms / 1000)))
def test_duration_written_for_a_spec_reads_back_exactly(seconds: float) -> None:
    assert units.parse_duration_s(units.write_duration(seconds)) == seconds


@given(st.integers(0, 2**50) | st.builds(lambda n, shift: n << shift, st.integers(0, 1000), st.integers(0, 40)))
def test_size_written_for_a_spec_reads_back_exactly(size: int) -> None:
    assert units.parse_bytes(units.write_bytes(size)) == size


@given(st.floats(0, 1e12))
def test_number_written_for_a_spec_reads_back_exactly(value: float) -> None:
    assert float(units.write_number(value)) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.8, "800ms"),
        (0.00025, "0.25ms"),
        (1.5, "1.5s"),
        (60, "1m"),
        (90, "90s"),
        (5400, "90m"),
        (86400, "1d"),
    ],
)
def test_duration_is_written_as_a_person_would(seconds: float, text: str) -> None:
    assert units.write_duration(seconds) == text


@given(st.floats(1e-6, 1e8))
def test_duration_shown_to_people_reads_back_closely(seconds: float) -> None:
    shown = units.parse_duration_s(units.format_duration(seconds))
    assert shown == pytest.approx(seconds, rel=0.06, abs=6e-6)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0012, "1.20 ms"), (0.8, "800 ms"), (0.9999, "1.0 s"), (3.4, "3.4 s"), (59.96, "1 min"), (125, "2 min 5 s"),
        (120, "2 min"), (3780, "1 h 3 min"), (3599.9, "1 h"), (7200, "2 h"), (-0.8, "-800 ms"), (math.inf, "inf s"),
    ],
)  # fmt: skip
def test_duration_shown_to_people(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(5, "5 B"), (1536, "1.5 KiB"), (3 * 2**29, "1.5 GiB"), (2**40, "1.0 TiB")])
def test_size_shown_to_people(size: int, text: str) -> None:
    assert units.format_bytes(size) == text


@given(st.integers(0, 2**45))
def test_size_shown_to_people_reads_back_closely(size: int) -> None:
    text = units.format_bytes(size)
    number, unit = text.split()
    assert float(number) * units.parse_bytes(f"1{unit}") == pytest.approx(size, rel=0.051)
