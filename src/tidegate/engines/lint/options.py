"""Rules on names: does this version take the option at all, and if not, what became of it."""

from __future__ import annotations

import difflib
from typing import Final

from tidegate.engines.launch import WORDS
from tidegate.engines.lint import edit
from tidegate.engines.lint.context import Context
from tidegate.engines.lint.edit import Edit
from tidegate.engines.lint.uses import Use
from tidegate.engines.notes import Change
from tidegate.engines.optiontable import table

_CLOSE_ENOUGH: Final = 0.82
_SLIP: Final = 0.93
"""Likeness from which another name is a slip of the pen: one or two letters."""


def judge_names(context: Context) -> None:
    """Every option by its name, and every word that belongs to none."""
    seen: dict[str, Use] = {}
    for use in context.parsed.uses:
        if use.option is None:
            _unknown(context, use)
        else:
            _known(context, use)
            _repeated(context, use, seen)
        if use.stray is not None:
            _stray(context, use)
    for word in context.parsed.loose:
        if word.known and word.text:
            context.say(
                "word-unexpected",
                word.start,
                f"{word.text!r} belongs to no option",
                why="the parser stops with: unrecognized arguments",
                advice="remove it, or give it the option it belongs to",
            )


def _known(context: Context, use: Use) -> None:
    option = use.option
    assert option is not None
    if use.name in context.options.uncertain:
        context.say(
            "option-uncertain",
            use.word.start,
            f"whether {context.options.label} takes {use.name} is not recorded",
            advice="check it against the engine's own --help, or give that with --help-text",
        )
    if use.completed:
        context.say(
            "option-abbreviated",
            use.word.start,
            f"{use.name} works only as an abbreviation of {option.name}",
            why="the parser completes unique beginnings; the next version may add a second one",
            edits=[_renamed(context, use, option.canonical)],
        )
    elif option.deprecated:
        change = context.notes.options.get(use.name)
        context.say(
            "option-deprecated",
            use.word.start,
            f"{use.name} is deprecated in {context.options.label}",
            why=_why(change),
            advice=change.suggest if change else "",
            edits=_replacement(context, use, change) if change and change.to else [],
        )


def _repeated(context: Context, use: Use, seen: dict[str, Use]) -> None:
    assert use.option is not None
    before = seen.get(use.option.canonical)
    if before is not None and "." not in use.name:
        context.say(
            "option-repeated",
            before.word.start,
            f"{before.name} is given again later: only the last one counts",
            edits=edit.remove(context.source, context.launch, before.words),
        )
    seen[use.option.canonical] = use


def _stray(context: Context, use: Use) -> None:
    word = use.stray
    assert word is not None
    off = word.text.lower() in ("false", "0", "no", "off")
    negative = f"--no-{use.name.removeprefix('--')}"
    edits = edit.remove(context.source, context.launch, [word])
    if off:
        edits = [*edits, _renamed(context, use, negative)] if context.options.find(negative) else _gone(context, use)
    context.say(
        "flag-with-value",
        word.start,
        f"{use.name} takes no value, so {word.text!r} stops the parser",
        why=f"unrecognized arguments: {word.text}",
        edits=edits,
    )


def _unknown(context: Context, use: Use) -> None:
    change = context.notes.options.get(use.name)
    entry = context.table.file.names.get(use.name)
    if len(use.completed) > 1 and change is None and entry is None:
        shown = ", ".join(use.completed[:4])
        context.say("option-ambiguous", use.word.start, f"{use.name} could be {shown}", advice="write it out")
        return
    if entry is not None and _too_new(context, use):
        return
    other = _other_engines(context, use)
    if entry is None and other is not None and change is None:
        _of_other_engine(context, use, other)
    elif entry is None and change is None:
        _never(context, use)
    else:
        _changed(context, use, change)


def _too_new(context: Context, use: Use) -> bool:
    spans = context.table.file.names[use.name].spans
    if context.table.gone(spans, context.options.version) or context.options.version == context.table.newest:
        return False
    first = spans.partition("-")[0]
    context.say(
        "option-too-new",
        use.word.start,
        f"{use.name} came with {context.options.engine} {first}; {context.options.label} does not take it",
        edits=_gone(context, use),
    )
    return True


def _changed(context: Context, use: Use, change: Change | None) -> None:
    entry = context.table.file.names.get(use.name)
    gone = context.table.gone(entry.spans, context.options.version) if entry is not None else ""
    renamed = change is not None and bool(change.to)
    evidence = change.evidence if change is not None else ""
    existed = bool(gone) or "gone before" in evidence
    context.say(
        "option-renamed" if renamed else "option-removed" if existed else "option-unknown",
        use.word.start,
        f"{context.options.label} does not take {use.name}"
        + (f" ({gone})" if gone else "")
        + (f"; write {change.to}" if renamed and change is not None else ""),
        why=_why(change),
        advice=change.suggest if change else "",
        edits=_replacement(context, use, change) if renamed and change is not None else _gone(context, use),
    )


def _never(context: Context, use: Use) -> None:
    """No version ever had it: only an obvious slip of the pen is mended, because dropping it may drop a safeguard."""
    name = use.name.replace("_", "-")
    names = [one for one, option in context.options.options.items() if option.kind != "off" and one[:2] == "--"]
    close = difflib.get_close_matches(name, names, 1, _CLOSE_ENOUGH)
    if close:
        slip = difflib.SequenceMatcher(None, name, close[0]).ratio() >= _SLIP
        context.say(
            "option-misspelt",
            use.word.start,
            f"{context.options.label} has no {use.name}; did you mean {close[0]}?",
            advice="" if slip else "decide which option is meant",
            edits=[_renamed(context, use, close[0])] if slip else [],
        )
        return
    context.say(
        "option-unknown",
        use.word.start,
        f"{use.name} exists in no recorded version of {context.options.engine}",
        why=f"the parser stops with: unrecognized arguments: {use.name}",
        advice="remove it, or find out what it was meant to do",
    )


def _other_engines(context: Context, use: Use) -> str | None:
    """What this engine calls an option of the other one; empty when it has no such thing, None when it is neither's."""
    other = "sglang" if context.launch.engine == "vllm" else "vllm"
    for words in WORDS.values():
        if use.name == words[other] and words[context.launch.engine]:
            return words[context.launch.engine]
    known = table(other)
    return "" if known.accepts(use.name, known.newest) else None


def _of_other_engine(context: Context, use: Use, here: str) -> None:
    other = "SGLang" if context.launch.engine == "vllm" else "vLLM"
    context.say(
        "option-of-other-engine",
        use.word.start,
        f"{use.name} is {other}'s; {context.options.label} " + (f"calls it {here}" if here else "has no such option"),
        edits=[_renamed(context, use, here)] if here else _gone(context, use),
    )


def _why(change: Change | None) -> str:
    if change is None:
        return ""
    return f"{change.why} ({change.evidence})" if change.evidence else change.why


def _gone(context: Context, use: Use) -> list[Edit]:
    return edit.remove(context.source, context.launch, use.words)


def _renamed(context: Context, use: Use, name: str) -> Edit:
    value = f"={use.values[0].text}" if use.inline and use.values else ""
    return edit.replace(context.source, context.launch, use.word, name + value)


def _replacement(context: Context, use: Use, change: Change) -> list[Edit]:
    """Puts `change.to` in the option's place; its value goes along or goes away."""
    first, *more = change.to.split()
    if context.options.find(first.partition("=")[0]) is None:
        return _gone(context, use)
    if change.carry:
        return [_renamed(context, use, first)]
    edits = [edit.replace(context.source, context.launch, use.word, first)]
    rest = [word for word in use.words if word is not use.word]
    if rest:
        edits += edit.remove(context.source, context.launch, rest)
    if more:
        edits.append(edit.add(context.source, context.launch, use.word, more) if not rest else _behind(edits, more))
    return edits


def _behind(edits: list[Edit], more: list[str]) -> Edit:
    """The replaced word and what follows it as one edit."""
    first = edits.pop(0)
    return Edit(first.start, first.end, " ".join([first.text, *more]))
