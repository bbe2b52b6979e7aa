"""Whose request is it: API key → tenant. Keys are kept and compared as SHA-256, and never logged."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from tidegate.spec import TenantSpec

PRIORITIES: Final = {"critical": 0, "high": 1, "normal": 2, "best_effort": 3}


class Tenant:
    """A customer as the data path needs it."""

    __slots__ = ("name", "priority")

    def __init__(self, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority


class Tenants:
    """Looks tenants up by key. Without any configured tenant, every request is `default`'s."""

    __slots__ = ("_by_digest", "_default", "names")

    def __init__(self, specs: list[TenantSpec]) -> None:
        self._default = None if specs else Tenant("default", PRIORITIES["normal"])
        self._by_digest: dict[str, tuple[str, Tenant]] = {}
        for spec in specs:
            tenant = Tenant(spec.name, PRIORITIES[spec.priority])
            for digest in spec.key_sha256:
                self._by_digest[digest] = (digest, tenant)
        self.names = [spec.name for spec in specs] or ["default"]

    @property
    def open_to_all(self) -> bool:
        """No tenant is configured: keys mean nothing here and are passed on."""
        return self._default is not None

    def of(self, named: dict[bytes, bytes]) -> Tenant | None:
        """The tenant of a request with these headers, or None when its key is missing or unknown."""
        if self._default is not None:
            return self._default
        digest = hashlib.sha256(_key(named)).hexdigest()
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        return found[1]


def _key(named: dict[bytes, bytes]) -> bytes:
    """The bearer token, or Anthropic's `x-api-key`."""
    scheme, _, key = named.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return named.get(b"x-api-key", b"")
