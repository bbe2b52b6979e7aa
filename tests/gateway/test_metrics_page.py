"""The metrics' reference page says what the gateway exports."""

from __future__ import annotations

from pathlib import Path

from tidegate.gateway import reference

REPO = Path(__file__).resolve().parents[2]


def test_the_reference_page_is_what_the_collector_gives() -> None:
    page = (REPO / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run: python -m tidegate.gateway.reference > docs/reference/metrics.md"
