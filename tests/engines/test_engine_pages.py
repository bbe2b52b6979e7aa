"""The generated pages are the tables, and the guide's commands do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tidegate.engines.optiontable import table
from tidegate.engines.reference import dialects_page, rules_page


def test_the_reference_pages_are_the_tables(repo_root: Path) -> None:
    folder = repo_root / "docs" / "reference"
    renew = "the tables changed; run: python -m tidegate.engines.reference"
    assert (folder / "lint-rules.md").read_text("utf-8") == rules_page(), renew
    assert (folder / "dialects.md").read_text("utf-8") == dialects_page(), renew


def test_the_guide_works_as_written(repo_root: Path, tmp_path: Path) -> None:
    text = (repo_root / "docs/guides/lint.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(blocks)], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit code 1" in done.stdout
    for line in re.findall(r"^launch\.sh:.*$", text, flags=re.MULTILINE):
        assert line in done.stdout
    assert "[bad-option]" in done.stdout


def test_the_changelog_counts_versions_right(repo_root: Path) -> None:
    counts = f"{len(table('vllm').versions)} and {len(table('sglang').versions)}"
    assert counts in re.sub(r"\s+", " ", (repo_root / "CHANGELOG.md").read_text("utf-8"))
