"""The API as a client sees it: an emulated engine alone, and a gateway process in front of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tidegate.testing.processes import Emulated, Gateway, Server

BEHIND: Final = ("engine", "gateway")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Emulated]]:
    directory = tmp_path_factory.mktemp("pair")
    with Emulated(directory / "one") as one, Emulated(directory / "two") as two:
        yield [one, two]


@pytest.fixture(scope="session")
def gateway(pair: list[Emulated], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), [engine.url for engine in pair]) as gateway:
        yield gateway


@pytest.fixture(params=BEHIND)
def server(request: pytest.FixtureRequest, pair: list[Emulated]) -> Iterator[Server]:
    """What the client talks to. Both engines are at rest before and after."""
    for engine in pair:
        engine.wait_at_rest()
    yield pair[0] if request.param == "engine" else request.getfixturevalue("gateway")
    for engine in pair:
        engine.wait_at_rest()
