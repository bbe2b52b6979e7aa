"""llama.cpp with a tiny random model: one server for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.testing.live import LlamaCpp, wait_until


@pytest.fixture(scope="session")
def engine_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    with LlamaCpp(tmp_path_factory.mktemp("llamacpp") / "log") as process:
        process.wait_serving()
        yield process


@pytest.fixture
def engine(engine_process: LlamaCpp) -> Iterator[LlamaCpp]:
    """The engine, at rest before and after the test: whatever a test began has reached its end there."""
    wait_until("the engine at rest before the test", lambda: not engine_process.busy())
    yield engine_process
    wait_until("the engine at rest after the test", lambda: not engine_process.busy())
