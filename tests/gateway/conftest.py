"""A gateway in memory for every test that asks."""

from __future__ import annotations

import pytest

from tidegate.testing.house import House


@pytest.fixture
def house() -> House:
    return House()
