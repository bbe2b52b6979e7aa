"""Where each instance of a lock runs: host, port, GPUs, and the names of its files."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate.spec.lock import Lock, LockedEngine

DEFAULT_PORT: Final = 80
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class Place(Struct, frozen=True, kw_only=True):
    """One engine process."""

    name: str
    """The instance's."""
    stem: str
    """Safe in file and unit names, unique in the lock."""
    engine: LockedEngine
    host: str
    port: int
    gpus: tuple[int, ...]
    """Which of the host's GPUs: instances of one host take them in the document's order."""

    @property
    def bind(self) -> str:
        """What to listen on: loopback stays loopback, everything else is reached from other hosts."""
        return self.host if self.host in _LOOPBACK else "0.0.0.0"

    @property
    def target(self) -> str:
        """host:port as a scraper writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def places(lock: Lock) -> list[Place]:
    """Every instance. Raises `BadInputError` when two would have the same file name."""
    taken: dict[str, int] = {}
    found: list[Place] = []
    for pool in lock.cluster.pools:
        engine = lock.engine_of(pool.model)
        for instance in pool.instances:
            address = urlsplit(instance.url)
            host = address.hostname or ""
            first = taken.get(host, 0)
            taken[host] = first + pool.engine.gpus
            found.append(
                Place(
                    name=instance.name,
                    stem=_safe(f"{pool.model}-{instance.name}"),
                    engine=engine,
                    host=host,
                    port=address.port or DEFAULT_PORT,
                    gpus=tuple(range(first, first + pool.engine.gpus)),
                )
            )
    stems = [place.stem for place in found]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise BadInputError(f"two instances would both be called {twice!r}", hint="give instances names of their own")
    return found


def origin(lock: Lock) -> str:
    """Which lock a file came from, on one line."""
    return f"{lock.hash[:19]} ({lock.state}, {lock.written})"


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text).strip("-.") or "instance"
