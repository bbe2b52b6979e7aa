"""Rules on values: of the right kind, in range, among the choices, not what the engine does anyway."""

from __future__ import annotations

import difflib
import json
import re
from typing import Final

from tidegate.engines.lint import edit
from tidegate.engines.lint.context import Context
from tidegate.engines.lint.edit import Edit
from tidegate.engines.lint.uses import Use
from tidegate.engines.optiontable import Option

_SIZE: Final = re.compile(r"-?\d+|\d+(?:\.\d+)?[kmgtKMGT]")
_KINDS: Final = {
    "int": (re.compile(r"[-+]?\d[\d_]*"), "a whole number"),
    "float": (re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"), "a number"),
    "size": (_SIZE, "a whole number, or one like 8k"),
    "size_or_auto": (re.compile(_SIZE.pattern + r"|auto"), "a whole number, one like 8k, or auto"),
}
_SLIP: Final = 0.8
"""Likeness from which another value is a slip of the pen and mended; less alike ones are only suggested."""
_FRACTIONS: Final = ("--gpu-memory-utilization", "--mem-fraction-static")
_COUNTS: Final = (
    "--tensor-parallel-size", "--tp-size", "--max-num-seqs", "--max-running-requests", "--max-num-batched-tokens",
    "--pipeline-parallel-size", "--pp-size", "--data-parallel-size", "--dp-size", "--block-size", "--page-size",
)  # fmt: skip


def judge_values(context: Context) -> None:
    """The value of every known option."""
    for use in context.parsed.uses:
        option = use.option
        if option is None or not option.takes_value:
            if option is not None and use.inline:
                _inline_switch(context, use)
            continue
        if not use.values:
            if not option.optional:
                context.say("value-missing", use.word.start, f"{use.name} needs a value")
            continue
        value = use.value
        if value is not None and "." not in use.name.removeprefix("--"):
            _one(context, use, option, value)


def _inline_switch(context: Context, use: Use) -> None:
    bare = edit.replace(context.source, context.launch, use.word, use.name)
    context.say(
        "flag-with-value",
        use.word.start,
        f"{use.name} takes no value, so {use.word.text!r} stops the parser",
        why="ignored explicit argument",
        edits=[bare] if use.values and use.values[0].text.lower() not in ("false", "0", "no", "off") else [],
    )


def _one(context: Context, use: Use, option: Option, value: str) -> None:
    pattern, expects = _KINDS.get(option.kind, (None, ""))
    if pattern is not None and value.lower() not in ("none", "") and not pattern.fullmatch(value):
        context.say("value-wrong", use.word.start, f"{use.name} {value}: expected {expects}")
        return
    if option.kind == "json" and value.startswith("{"):
        _json(context, use, value)
    if option.choices and value not in option.choices and option.kind != "list":
        _choice(context, use, option, value)
    _range(context, use, option, value)
    _restated(context, use, option, value)


def _json(context: Context, use: Use, value: str) -> None:
    try:
        json.loads(value)
    except (ValueError, RecursionError) as exc:
        problem = str(exc).partition(":")[0]
        context.say("value-wrong", use.word.start, f"the value of {use.name} is not JSON: {problem}")


def _choice(context: Context, use: Use, option: Option, value: str) -> None:
    close = difflib.get_close_matches(value, option.choices, 1, 0.6)
    slip = bool(close) and difflib.SequenceMatcher(None, value, close[0]).ratio() >= _SLIP
    listed = ", ".join(option.choices[:12]) + (", …" if len(option.choices) > 12 else "")
    meant = f"; did you mean {close[0]}?" if close else ""
    context.say(
        "value-uncommon" if option.open else "value-wrong",
        use.word.start,
        f"{use.name} {value} is not one of its values{meant}",
        advice=f"values: {listed}",
        edits=_with_value(context, use, close[0]) if slip and not option.open else [],
    )


def _range(context: Context, use: Use, option: Option, value: str) -> None:
    number = _number(value)
    if number is None:
        return
    if option.canonical in _FRACTIONS and not 0 < number <= 1:
        meant = f"; {number / 100:g} is meant?" if 1 < number <= 100 else ""
        fixed = _with_value(context, use, f"{number / 100:g}") if 1 < number <= 100 else []
        context.say(
            "value-out-of-range", use.word.start, f"{use.name} {value} is no fraction of 0 to 1{meant}", edits=fixed
        )
    elif option.canonical in _COUNTS and number < 1:
        context.say("value-out-of-range", use.word.start, f"{use.name} {value}: at least 1")
    elif option.canonical == "--port" and not 0 < number < 65536:
        context.say("value-out-of-range", use.word.start, f"{use.name} {value}: ports are 1 to 65535")


def _restated(context: Context, use: Use, option: Option, value: str) -> None:
    default = option.default
    if default is None or default in ("None", ""):
        return
    number, unasked = _number(value), _number(default)
    same = value == default or (number is not None and number == unasked)
    if same and option.kind in ("int", "float", "choice", "text", "size"):
        context.say(
            "default-restated", use.word.start, f"{use.name} {value} is what {context.options.label} does anyway"
        )


def _with_value(context: Context, use: Use, value: str) -> list[Edit]:
    if use.inline:
        return [edit.replace(context.source, context.launch, use.word, f"{use.name}={value}")]
    return [edit.replace(context.source, context.launch, use.values[0], value)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
