"""Rules that span fields: what types alone cannot say."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.spec.cluster import ClusterSpec

Finding = tuple[str, str]


def broken_rules(spec: ClusterSpec) -> Iterator[Finding]:
    """(path, sentence) for every rule that `spec` breaks."""
    yield from ()
