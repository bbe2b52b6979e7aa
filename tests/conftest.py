"""Fixtures every room may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tidegate.testing.processes import Emulated

# Timings never gate tests: a slow machine must not fail a property.
settings.register_profile("tidegate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidegate")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir(repo_root: Path) -> Path:
    """The material beside the clone: recorded engine output, traces, measurements."""
    return repo_root.parent / "shared"


@pytest.fixture(scope="session")
def emulated_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    with Emulated(tmp_path_factory.mktemp("emulated") / "log") as engine:
        yield engine


@pytest.fixture
def emulated(emulated_process: Emulated) -> Iterator[Emulated]:
    """A running emulated engine, shared by the session; at rest before and after each test."""
    emulated_process.wait_at_rest()
    yield emulated_process
    emulated_process.wait_at_rest()
