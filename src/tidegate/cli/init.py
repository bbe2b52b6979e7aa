"""`tidegate init`: writes the commented example."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from tidegate.errors import BadInputError, UnavailableError


def command(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("tidegate.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented tidegate.yaml: every key, its default and why one would change it."""
    text = resources.files("tidegate.spec").joinpath("example.yaml").read_text(encoding="utf-8")
    _write(path, text, force)
    print(f"wrote {path}; edit it, then run: tidegate check {path}", file=sys.stderr)


def _write(path: Path, text: str, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except IsADirectoryError:
        raise BadInputError(f"{path} is a directory; name the file to write in it") from None
    except FileExistsError:
        if path.is_dir():
            raise BadInputError(f"{path} is a directory; name the file to write in it") from None
        hint = "name another file, or add --force to overwrite this one"
        raise BadInputError(f"{path} is already there and was left as it is", hint=hint) from None
    except (FileNotFoundError, NotADirectoryError):
        raise BadInputError(f"{path} cannot be written: there is no directory {path.parent}") from None
    except OSError as exc:
        raise UnavailableError(f"{path} cannot be written ({exc.strerror or exc})") from None
