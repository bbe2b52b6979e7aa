"""Open files, which connections are: how many this process may hold, and what a shortage of them looks like."""

from __future__ import annotations

import resource
from typing import Final

SPARE_FILES: Final = 128
"""Kept for logs, probes, the admin port and the loop itself."""
FILES_PER_CONNECTION: Final = 2
"""A client's own, and the one to the engine that works for it."""


def room_for_connections(wanted: int) -> int:
    """Raises the soft limit of open files as far as allowed; how many of `wanted` client connections then fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * FILES_PER_CONNECTION + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(1, (soft - SPARE_FILES) // FILES_PER_CONNECTION))
