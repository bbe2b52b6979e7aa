"""Changes to a script that leave everything else as it was.

In: the source and a place in it. Out: `Edit`s. A removed option takes its line with it when it stood alone there, and
the continuation before it when it was the last; a removed YAML entry takes its dash or its comma.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tidegate.engines.scripts import FoundLaunch, Variable, Word

_DANGLING: Final = re.compile(r"[ \t]*\\\r?\n[ \t]*(?=\r?\n|\Z)")


class Edit(msgspec.Struct, frozen=True):
    """`source[start:end]` becomes `text`."""

    start: int
    end: int
    text: str


def apply(source: str, edits: Iterable[Edit]) -> str:
    """`source` with all edits done; of two that overlap the first one counts."""
    done: list[str] = []
    at = 0
    for edit in sorted(dict.fromkeys(edits), key=lambda one: (one.start, one.end)):
        if edit.start < at:
            continue
        done += [source[at : edit.start], edit.text]
        at = edit.end
    text = "".join([*done, source[at:]])
    # The option before a removed last line would go on into nothing.
    return _DANGLING.sub("", text) if done else text


def replace(source: str, launch: FoundLaunch, word: Word, text: str) -> Edit:
    """Another text in the place of a word, quoted as the old one was."""
    quote = source[word.start : word.start + 1]
    if quote in ("'", '"') and source[word.end - 1] == quote and quote not in text:
        return Edit(word.start, word.end, f"{quote}{text}{quote}")
    if launch.style != "shell" and re.fullmatch(r"[\d.]+|true|false|null|on|off|yes|no", text, re.IGNORECASE):
        text = f'"{text}"'
    return Edit(word.start, word.end, text)


def remove(source: str, launch: FoundLaunch, words: list[Word]) -> list[Edit]:
    """Takes words away that stand one after the other."""
    if launch.style == "block":
        return [_whole_lines(source, word.start, word.end) for word in words]
    if launch.style == "flow":
        return [_flow_entry(source, word) for word in words]
    return [_from_shell(source, start, end) for start, end in _runs(source, words)]


def _runs(source: str, words: list[Word]) -> list[tuple[int, int]]:
    """The ranges words cover together: an option and its value may stand in different variables."""
    runs: list[tuple[int, int]] = []
    for word in words:
        if runs and re.fullmatch(r"(?:[ \t]|\\\r?\n)*", source[runs[-1][1] : word.start]):
            runs[-1] = (runs[-1][0], word.end)
        else:
            runs.append((word.start, word.end))
    return runs


def remove_variable(source: str, launch: FoundLaunch, variable: Variable) -> Edit:
    """Takes an environment setting away, with its line if it stood alone."""
    if launch.container is not None and launch.container.kind != "docker":
        return _whole_lines(source, variable.start, variable.end)
    return _from_shell(source, variable.start, variable.end)


def add(source: str, launch: FoundLaunch, after: Word, words: list[str]) -> Edit:
    """New option words behind `after`, on a line of their own where the command is written so."""
    if launch.style == "shell":
        return Edit(after.end, after.end, _shell_gap(source, after.end) + " ".join(words))
    shown = [f'"{word}"' if not word.startswith("-") and launch.style == "block" else word for word in words]
    if launch.style == "block":
        line = source.rfind("\n", 0, after.start) + 1
        lead = source[line : source.index("-", line)]
        return Edit(after.end, after.end, "".join(f"\n{lead}- {word}" for word in shown))
    return Edit(after.end, after.end, "".join(f', "{word}"' for word in words))


def _shell_gap(source: str, at: int) -> str:
    if not re.match(r"[ \t]*\\\r?\n", source[at:]):
        return " "
    line_end = source.index("\n", at)
    indent = re.match(r"[ \t]*", source[line_end + 1 :])
    return " \\\n" + (indent.group(0) if indent else "")


def _from_shell(source: str, start: int, end: int) -> Edit:
    line = source.rfind("\n", 0, start) + 1
    alone_before = not source[line:start].strip()
    after = re.match(r"[ \t]*(\\?)\r?(\n|$)", source[end:])
    if alone_before and after:
        if after.group(1):
            return Edit(line, end + after.end(), "")
        continued = source[:line].rstrip("\r\n").endswith("\\")
        return Edit(line, end if continued else end + after.end(), "")
    if start > 0 and source[start - 1] in " \t":
        while start > line and source[start - 1] in " \t":
            start -= 1
        return Edit(start, end, " " if alone_before else "")
    blanks = re.match(r"[ \t]*", source[end:])
    return Edit(start, end + (blanks.end() if blanks else 0), "")


def _whole_lines(source: str, start: int, end: int) -> Edit:
    line = source.rfind("\n", 0, start) + 1
    line_end = source.find("\n", end)
    return Edit(line, len(source) if line_end < 0 else line_end + 1, "")


def _flow_entry(source: str, word: Word) -> Edit:
    after = re.match(r"\s*,[ \t]*(?:\r?\n[ \t]*)?", source[word.end :])
    if after:
        return Edit(word.start, word.end + after.end(), "")
    before = re.search(r",\s*$", source[: word.start])
    return Edit(before.start() if before else word.start, word.end, "")
