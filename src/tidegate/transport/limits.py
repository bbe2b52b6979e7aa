"""What a server allows its clients, and what it counts."""

from __future__ import annotations


class Limits:
    """Bounds on what one client may send. Bytes, and ticks of the server's wheel (seconds)."""

    __slots__ = ("arriving_bytes", "body_bytes", "connections", "head_bytes", "idle_ticks")

    def __init__(
        self,
        head_bytes: int = 32 * 2**10,
        body_bytes: int = 16 * 2**20,
        idle_s: float = 75.0,
        connections: int = 20_000,
        arriving_bytes: int = 512 * 2**20,
    ) -> None:
        self.head_bytes = head_bytes
        self.body_bytes = body_bytes
        self.idle_ticks = max(1, round(idle_s))
        self.connections = connections
        self.arriving_bytes = arriving_bytes
        """Of all bodies together that have begun to arrive and are not whole; nobody has admitted them yet."""


class Statistics:
    """Plain counters of a server."""

    __slots__ = ("accepted", "arriving_bytes", "defects", "malformed", "open", "requests", "turned_away")

    def __init__(self) -> None:
        self.open = 0
        self.arriving_bytes = 0
        self.accepted = 0
        self.requests = 0
        self.malformed = 0
        self.defects = 0
        self.turned_away = 0
