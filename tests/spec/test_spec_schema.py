"""The shipped JSON schema and reference page say what the loader does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spec import SpecError, parse_spec
from tidegate.spec.fields import sections
from tidegate.spec.reference import page_text
from tidegate.spec.scalar import UNIT_PARSERS
from tidegate.spec.schema import SCHEMA_PATH, WRITTEN, schema_text

LEAST: dict[str, Any] = {"pools": [{"model": "m", "instances": [{"url": "http://127.0.0.1:8001"}]}]}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_shipped_schema_is_the_types() -> None:
    shipped = SCHEMA_PATH.read_text(encoding="utf-8")
    assert shipped == schema_text(), "the types changed; run: python -m tidegate.spec.schema"


def test_reference_page_is_the_types(repo_root: Path) -> None:
    page = (repo_root / "docs/reference/tidegate-yaml.md").read_text(encoding="utf-8")
    assert page == page_text(), "the types changed; run: python -m tidegate.spec.reference"


def test_every_key_is_described() -> None:
    undescribed = [f"{section.name}.{key.name}" for section in sections() for key in section.keys if not key.about]
    assert undescribed == []


def test_example_is_valid(validator: jsonschema.Draft202012Validator) -> None:
    text = SCHEMA_PATH.with_name("example.yaml").read_text(encoding="utf-8")
    assert list(validator.iter_errors(yaml.safe_load(text))) == []


@pytest.mark.parametrize(
    ("extra", "valid"),
    [
        ({"slo": {"ttft": "800ms", "itl": 0.05}}, True),
        ({"slo": {"ttft": "1h30m"}}, True),
        ({"slo": {"ttft": "800"}}, False),
        ({"slo": {"ttft": "800 parsecs"}}, False),
        ({"slo": {"ttft": 0}}, False),
        ({"slo": {"ttft": [1]}}, False),
        ({"slo": {"tttf": 1}}, False),
        ({"gateway": {"queue": {"max_bytes": "64MiB", "max_requests": "1k"}}}, True),
        ({"gateway": {"queue": {"max_requests": 1.5}}}, False),
        ({"gateway": {"retry": {"budget": "10%"}}}, True),
        ({"gateway": {"admission": {"enabled": "on"}}}, False),
        ({"traffic": {"trace": None}}, True),
        ({"traffic": {"trace": {"file": "f"}}}, False),
        ({"traffic": {"phases": [{"name": "p", "duration": "1m", "rate": "90/min"}]}}, True),
        ({"pools": []}, False),
    ],
)
def test_schema_and_loader_agree(
    validator: jsonschema.Draft202012Validator, extra: dict[str, Any], valid: bool
) -> None:
    document = {**LEAST, **extra}
    assert validator.is_valid(document) == valid
    text = json.dumps(document)
    if valid:
        parse_spec(text)
    else:
        with pytest.raises(SpecError):
            parse_spec(text)


def complaint(unit: str, text: str) -> str:
    """What the loader says against `text`; empty when it reads it."""
    try:
        UNIT_PARSERS[unit](text)
    except ValueError as exc:
        return str(exc)
    return ""


@pytest.mark.parametrize("unit", sorted(WRITTEN))
@given(data=st.data())
def test_what_the_schema_takes_the_loader_reads(unit: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(WRITTEN[unit], fullmatch=True))
    assert re.search(r"^$|too large|is not a whole|^inf is not", complaint(unit, text))
