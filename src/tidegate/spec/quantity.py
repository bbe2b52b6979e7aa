"""Field types of a spec: plain numbers in base units, marked with how people write them.

The mark (`Meta.extra["unit"]`) is read by the YAML loader, which turns `800ms` into 0.8 before types are
checked, by the JSON schema, and by the reference page.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, extra={"unit": "duration"})]
PositiveSeconds = Annotated[float, Meta(gt=0, extra={"unit": "duration"})]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
Count = Annotated[int, Meta(ge=0, extra={"unit": "count"})]
PositiveCount = Annotated[int, Meta(ge=1, extra={"unit": "count"})]
Fraction = Annotated[float, Meta(ge=0, le=1, extra={"unit": "fraction"})]
Rate = Annotated[float, Meta(ge=0, extra={"unit": "rate"})]
"""Requests per second."""
