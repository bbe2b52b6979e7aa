"""Examples in the documentation do what they say: shell blocks run, YAML blocks load, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tidegate.spec import parse_spec
from tidegate.testing.live import free_port

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/**/*.md")])
PORTS = ("8001", "8002", "8080", "9080")
POOL = {"model": "m", "instances": [{"url": "http://127.0.0.1:8001"}]}


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a bash script in a session of its own, with this environment's `tidegate` first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-emc", script],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=folder,
        env={**os.environ, "PATH": path},
        check=False,
        start_new_session=True,
    )


def test_the_first_steps_work_as_written(tmp_path: Path) -> None:
    first, *others = _blocks(REPO / "docs/guides/first-steps.md", "sh")
    change = "".join(f"s/:{port}/:{free_port()}/g;" for port in PORTS)
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\ntidegate init\nsed -i '{change}' tidegate.yaml\n"
    assert "tidegate init" in first
    script += "".join(others)
    for pair in change.split(";")[:-1]:
        _, old, new, _ = pair.split("/")
        script = script.replace(f"127.0.0.1{old}", f"127.0.0.1{new}")
    done = _run(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data: [DONE]" in done.stdout
    assert "model_not_found" in done.stdout
    assert (tmp_path / "first.html").stat().st_size > 100_000
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in ("node-1", "node-2", "gateway")}
    assert all("ready" in text for text in logs.values()), logs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_yaml_examples_load(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        document = yaml.safe_load(block)
        text = block if "pools" in document else block + yaml.safe_dump({"pools": [POOL]})
        parse_spec(text, page.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = (_blocks(REPO / name, "sh") for name in ("README.md", "README.zh-CN.md"))
    strip = re.compile(r"\s*#.*$", flags=re.MULTILINE)
    assert [strip.sub("", block) for block in english] == [strip.sub("", block) for block in chinese]
