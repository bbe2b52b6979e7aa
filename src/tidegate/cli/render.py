"""`tidegate render`: launch scripts, systemd units, Prometheus and Grafana files from the lock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
import yaml

from tidegate.deploy.launch_script import launch_scripts
from tidegate.deploy.place import origin
from tidegate.deploy.scrape import scrape_config
from tidegate.deploy.systemd import FOLDER, USER, systemd_units
from tidegate.errors import BadInputError, ExitCode, UnavailableError
from tidegate.observe.dashboards import dashboard_files
from tidegate.observe.rules import rule_file
from tidegate.spec.lock import Lock
from tidegate.spec.lock_file import load_lock

EXECUTABLE: Final = 0o755
READABLE: Final = 0o644


def command(
    what: Annotated[
        Literal["launch", "systemd", "prometheus", "grafana", "all"], typer.Argument(help="What to render.")
    ],
    lock: Annotated[Path, typer.Argument(help="The lock.")] = Path("tidegate.lock"),
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the files. [default: print them]")] = None,
    folder: Annotated[str, typer.Option(help="Where the files will lie on the hosts.")] = FOLDER,
    user: Annotated[str, typer.Option(help="Who the units run as.")] = USER,
) -> ExitCode:
    """Render what brings a lock to the hosts: launch scripts, systemd units, Prometheus scrape configuration
    and rules, Grafana dashboards.

    `all` adds the cluster document for the gateway. The same lock gives the same files.
    """
    read = load_lock(lock)
    if read.state != "frozen":
        print(f"note: {lock} is {read.state}, not frozen", file=sys.stderr)
    files = rendered(read, what, _absolute(folder), user)
    if out is None:
        for name, text in files.items():
            print(f"# ==> {name} <==" if len(files) > 1 else "", end="\n" if len(files) > 1 else "")
            print(text, end="")
        return ExitCode.OK
    for name, text in files.items():
        _write(out / name, text)
        print(out / name)
    return ExitCode.OK


def rendered(lock: Lock, what: str, folder: str = FOLDER, user: str = USER) -> dict[str, str]:
    """Text by file name."""
    files: dict[str, str] = {}
    if what in ("launch", "all"):
        files |= launch_scripts(lock)
    if what in ("systemd", "all"):
        files |= systemd_units(lock, folder, user)
    if what in ("prometheus", "all"):
        files |= scrape_config(lock) | rule_file(lock.cluster)
    if what in ("grafana", "all"):
        files |= dashboard_files(lock.cluster)
    if what == "all":
        text = yaml.safe_dump(msgspec.to_builtins(lock.cluster), sort_keys=False, allow_unicode=True)
        files["tidegate.yaml"] = f"# Rendered from tidegate.lock {origin(lock)}.\n{text}"
    return files


def _absolute(folder: str) -> str:
    if not folder.startswith("/") or any(character.isspace() or character in "%\"'\\" for character in folder):
        raise BadInputError(f"--folder {folder!r} is not a plain absolute path", hint=f"for example {FOLDER}")
    return folder.rstrip("/")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(EXECUTABLE if path.suffix == ".sh" else READABLE)
    except OSError as exc:
        raise UnavailableError(f"{path}: cannot be written: {exc.strerror}", hint="choose another --out") from None
