"""An engine's own `--help`, read back into the options it accepts.

In: the text an argparse program prints (vLLM's `vllm serve --help=all`, SGLang's `launch_server --help`). Out: one
`HelpOption` per entry, in the text's order. Where the engine is installed this is the judge, not a version string:
builds are patched, and a version says nothing of the fork. Errors: `BadInputError` when the text has no options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidegate.errors import BadInputError

_ENTRY: Final = re.compile(r"^ {1,4}(-{1,2}(?!json-arg)[A-Za-z].*)$")
"""vLLM's text explains itself with an option `--json-arg` that does not exist."""
_NAME: Final = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9._-]*")
_DEFAULT: Final = re.compile(r"\(default: (.*?)\)\s*$")
_VERSION: Final = re.compile(r"\b(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)?)\b")
_PAIRS: Final = (("--enable-", "--disable-"), ("--disable-", "--enable-"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpOption:
    """One entry. `arity` is `none`, `one`, `optional` or `many` values; `off` holds the names that negate it.

    `open_choices`: the parser takes other values too (vLLM 0.33 shows such lists as `['auto', 'fp8']`).
    """

    names: tuple[str, ...]
    off: tuple[str, ...]
    arity: str
    choices: tuple[str, ...]
    open_choices: bool
    default: str | None


def parse_help(text: str) -> list[HelpOption]:
    """The options of a help text. Raises BadInputError when it holds none."""
    found: list[HelpOption] = []
    head, body = "", ""
    for line in _after_usage(text):
        entry = _ENTRY.match(line)
        if entry is None:
            body += " " + line.strip() if head else ""
            continue
        if head:
            found.append(_option(head, body))
        head, _, body = entry.group(1).partition("  ")
    if head:
        found.append(_option(head, body))
    if not found:
        raise BadInputError("this is not a help text: it lists no options", hint="save what the engine's --help prints")
    return found


def version_in(text: str) -> str | None:
    """The first thing in `text` that looks like a version: what `vllm --version` prints."""
    match = _VERSION.search(text)
    return match.group(1) if match else None


def _after_usage(text: str) -> list[str]:
    """The lines below the usage block, whose own brackets would read as entries."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.rstrip() in ("options:", "optional arguments:"):
            return lines[index + 1 :]
    return lines


def _option(head: str, body: str) -> HelpOption:
    choices, shown = _choices(head)
    bare = head.replace(shown, "CHOICE") if shown else head
    pieces = [piece.split(" ", 1) for piece in bare.strip().split(", ") if piece.startswith("-")]
    names = tuple(piece[0] for piece in pieces if _NAME.fullmatch(piece[0]))
    rest = pieces[-1][1].strip() if len(pieces[-1]) > 1 else ""
    default = _DEFAULT.search(body.rstrip())
    off = _negating(names) if not rest else ()
    return HelpOption(
        names=tuple(name for name in names if name not in off),
        off=off,
        arity=_arity(rest),
        choices=choices,
        open_choices=shown.startswith("[") or "CHOICE or" in rest,
        default=default.group(1) if default else None,
    )


def _choices(head: str) -> tuple[tuple[str, ...], str]:
    """The values an entry lists, and how it writes them."""
    for pattern in (r"\{([^}]*)\}", r"\[('[^\]]*)\]"):
        match = re.search(pattern, head)
        if match:
            return tuple(word.strip(" '") for word in match.group(1).split(",")), match.group(0)
    return (), ""


def _arity(rest: str) -> str:
    if not rest:
        return "none"
    if "..." in rest:
        return "many"
    return "optional" if rest.startswith("[") else "one"


def _negating(names: tuple[str, ...]) -> tuple[str, ...]:
    """`--no-x` of `--x`, and in the newer style `--disable-x` of `--enable-x`."""
    first = names[0] if names else ""
    against = {"--no-" + name.removeprefix("--") for name in names}
    against |= {new + first.removeprefix(old) for old, new in _PAIRS if first.startswith(old)}
    return tuple(name for name in names[1:] if name in against)
