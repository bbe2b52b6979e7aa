"""What a server allows its clients, and what it counts."""

from __future__ import annotations


class Limits:
    """Bounds on what one client may send. Bytes, and ticks of the server's wheel (seconds)."""

    __slots__ = ("body_bytes", "connections", "head_bytes", "idle_ticks")

    def __init__(
        self,
        head_bytes: int = 32 * 2**10,
        body_bytes: int = 16 * 2**20,
        idle_s: float = 75.0,
        connections: int = 20_000,
    ) -> None:
        self.head_bytes = head_bytes
        self.body_bytes = body_bytes
        self.idle_ticks = max(1, round(idle_s))
        self.connections = connections


class Statistics:
    """Plain counters of a server."""

    __slots__ = ("accepted", "defects", "malformed", "open", "requests", "turned_away")

    def __init__(self) -> None:
        self.open = 0
        self.accepted = 0
        self.requests = 0
        self.malformed = 0
        self.defects = 0
        self.turned_away = 0
