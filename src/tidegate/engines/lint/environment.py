"""Rules on environment variables around a launch."""

from __future__ import annotations

import difflib
from typing import Final

from tidegate.engines.launch import GDR_LEVELS
from tidegate.engines.lint import edit
from tidegate.engines.lint.context import Context
from tidegate.engines.lint.edit import Edit
from tidegate.engines.notes import Change
from tidegate.engines.scripts import Variable

_OWN: Final = {"vllm": ("VLLM_",), "sglang": ("SGLANG_", "SGL_")}
_NOT_OPTIONS: Final = ("VLLM_IMAGE", "VLLM_VERSION", "VLLM_MODEL", "VLLM_PORT_", "SGLANG_IMAGE", "SGLANG_VERSION")
"""Names scripts use for themselves."""


def judge_environment(context: Context) -> None:
    """Every variable the launch is given."""
    engine = context.launch.engine
    for variable in context.launch.env:
        name = variable.name
        change = context.notes.env.get(name)
        spans = context.table.file.env.get(name)
        if spans is not None:
            if context.table.within(spans, context.options.version) is False:
                _ended(context, variable, spans, change)
        elif name == "CUDA_DEVICE_MAX_CONNECTIONS":
            _connections(context, variable, change)
        elif name == "CUDA_MODULE_LOADING" and variable.value.upper() == "LAZY":
            why = "lazy loading is the default on Linux since CUDA 12.2"
            context.say("env-default", variable.start, f"{name}=LAZY says what CUDA does anyway", why=why)
        elif name == "NCCL_NET_GDR_LEVEL" and variable.value.isdigit():
            _gdr_level(context, variable)
        elif change is not None:
            _ended(context, variable, "", change)
        elif name.startswith(_OWN[engine]) and not name.startswith(_NOT_OPTIONS):
            _unknown(context, variable)


def _ended(context: Context, variable: Variable, spans: str, change: Change | None) -> None:
    gone = context.table.gone(spans, context.options.version) if spans else ""
    text = f"{context.options.label} does not read {variable.name}" + (f" ({gone})" if gone else "")
    edits: list[Edit] = []
    if change is not None:
        edits = [edit.remove_variable(context.source, context.launch, variable)]
        moved = _moved(context, variable, change)
        edits += moved
        if moved:
            text += f"; write {change.to} {variable.value}"
    why = f"{change.why} ({change.evidence})" if change and change.evidence else change.why if change else ""
    context.say("env-removed", variable.start, text, why=why, edits=edits)


def _moved(context: Context, variable: Variable, change: Change) -> list[Edit]:
    """The option that says what the variable said, unless it is there already."""
    if not change.to or not variable.known or context.parsed.find(change.to) is not None:
        return []
    if context.options.find(change.to) is None:
        return []
    after = context.parsed.model or (context.launch.words[-1] if context.launch.words else context.launch.program)
    return [edit.add(context.source, context.launch, after, [change.to, variable.value])] if after else []


def _connections(context: Context, variable: Variable, change: Change | None) -> None:
    if change is not None:
        why = f"{change.why} ({change.evidence})"
        context.say("env-overwritten", variable.start, f"{variable.name} has no effect on SGLang", why=why)
        return
    why = "a CUDA driver setting that training codes use to order kernels; inference gains nothing from it"
    context.say("env-not-read", variable.start, f"{variable.name} is never read by vLLM", why=why)


def _gdr_level(context: Context, variable: Variable) -> None:
    level = GDR_LEVELS[min(int(variable.value), len(GDR_LEVELS) - 1)]
    context.say(
        "env-legacy",
        variable.start,
        f"NCCL_NET_GDR_LEVEL={variable.value} is the old way to write {level}",
        why="NCCL discourages numbers; the setting only matters between nodes",
        edits=[Edit(variable.value_start, variable.value_end, level)],
    )


def _unknown(context: Context, variable: Variable) -> None:
    close = difflib.get_close_matches(variable.name, context.table.file.env, 1, 0.88)
    meant = f"; did you mean {close[0]}?" if close else ""
    at = context.source.find(variable.name, variable.start)
    fixed = [Edit(at, at + len(variable.name), close[0])] if close and at >= 0 else []
    text = f"no recorded version of {context.launch.engine} reads {variable.name}{meant}"
    context.say("env-unknown", variable.start, text, edits=fixed)
