"""Field types of a spec: plain numbers in base units, marked with how people write them.

The mark (`Meta.extra["unit"]`) is read by the YAML loader, which turns `800ms` into 0.8 before types are
checked, by the JSON schema, and by the reference page. `Meta.extra["expects"]` on a text type says what to write.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

YEAR_S: Final = 8784 * 3600
Seconds = Annotated[float, Meta(ge=0, le=YEAR_S, extra={"unit": "duration"})]
PositiveSeconds = Annotated[float, Meta(gt=0, le=YEAR_S, extra={"unit": "duration"})]
IntervalSeconds = Annotated[float, Meta(ge=0.01, le=3600, extra={"unit": "duration"})]
"""The period of something that is done again and again; short ones would do nothing else."""
Bytes = Annotated[int, Meta(ge=0, le=2**40, extra={"unit": "bytes"})]
BufferBytes = Annotated[int, Meta(ge=1024, le=2**40, extra={"unit": "bytes"})]
"""A bound on one message; less than 1 KiB would refuse every request."""
Count = Annotated[int, Meta(ge=0, le=10**12, extra={"unit": "count"})]
PositiveCount = Annotated[int, Meta(ge=1, le=10**9, extra={"unit": "count"})]
Fraction = Annotated[float, Meta(ge=0, le=1, extra={"unit": "fraction"})]
PositiveFraction = Annotated[float, Meta(gt=0, le=1, extra={"unit": "fraction"})]
Rate = Annotated[float, Meta(ge=0, le=1e6, extra={"unit": "rate"})]
"""Requests per second."""
Word = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        extra={"expects": "a name (1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit)"},
    ),
]
"""The name of something Tidegate ships or a label it prints."""
Text = Annotated[str, Meta(pattern=r"^.{1,1000}$", extra={"expects": "text of 1 to 1,000 characters"})]
