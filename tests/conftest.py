"""Fixtures every room may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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
