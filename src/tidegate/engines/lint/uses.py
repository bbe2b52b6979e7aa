"""The words of a launch as the engine's parser would take them: options with their values, and the rest."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.engines.optiontable import Option, OptionSet, table
from tidegate.engines.scripts import FoundLaunch, Word

_NUMBER: Final = re.compile(r"-\d+(\.\d+)?")
_LEVEL: Final = re.compile(r"-O(=?[0-3])?")


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One option as it is used. `option` is None where the engine has none of that name.

    `stray`: a value behind a switch that takes none. `completed`: the options an abbreviation fits.
    """

    word: Word
    name: str
    values: tuple[Word, ...]
    inline: bool
    option: Option | None
    stray: Word | None = None
    completed: tuple[str, ...] = ()

    @property
    def words(self) -> list[Word]:
        """Everything that goes when the option goes."""
        own = [] if self.inline else list(self.values)
        return [self.word, *own, *([self.stray] if self.stray else [])]

    @property
    def value(self) -> str | None:
        """The one value, where it is known."""
        return self.values[0].text if len(self.values) == 1 and self.values[0].known else None


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A launch taken apart. `loose` are words that belong to no option; the first may be vLLM's model."""

    uses: list[Use]
    loose: list[Word]
    model: Word | None

    def find(self, canonical: str) -> Use | None:
        """The last use of an option, by the name its help leads with: the one that counts."""
        hits = [use for use in self.uses if use.option is not None and use.option.canonical == canonical]
        return hits[-1] if hits else None


def parse(launch: FoundLaunch, options: OptionSet) -> Parsed:
    """Takes the words of `launch` apart the way argparse does."""
    uses: list[Use] = []
    loose: list[Word] = []
    words = launch.words
    at = 0
    while at < len(words):
        word = words[at]
        if not word.text.startswith("-") or _NUMBER.fullmatch(word.text) or len(word.text) < 2 or not _plain(word):
            loose.append(word)
            at += 1
        elif _LEVEL.fullmatch(word.text):
            at += 1
        else:
            use = _use(words, at, options)
            uses.append(use)
            at += len(use.words)
    model = _model(launch, uses, loose)
    return Parsed(uses=uses, loose=[word for word in loose if word is not model], model=model)


def _plain(word: Word) -> bool:
    """An option name must be readable; `$EXTRA_ARGS` may be anything."""
    return word.known or re.match(r"--?[A-Za-z][\w.-]*(=|$)", word.text) is not None


def _use(words: tuple[Word, ...], at: int, options: OptionSet) -> Use:
    word = words[at]
    name, equals, rest = word.text.partition("=")
    option = options.find(name)
    completed: tuple[str, ...] = ()
    if option is None:
        fitting = options.abbreviated(name)
        completed = tuple(sorted(one.canonical for one in fitting))
        option = fitting[0] if len(fitting) == 1 else None
    following = _following(words, at + 1)
    stray = None
    values: tuple[Word, ...] = ()
    if equals:
        values = (Word(rest, word.end - len(rest), word.end, word.known),)
    elif option is None:
        values = _of_unknown(name, options.engine, following)
    elif option.takes_value and option.kind == "list":
        values = following
    elif option.takes_value:
        values = following[:1]
    elif following and following[0].text.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        stray = following[0]
    return Use(
        word=word, name=name, values=values, inline=bool(equals), option=option, stray=stray, completed=completed
    )


def _of_unknown(name: str, engine: str, following: tuple[Word, ...]) -> tuple[Word, ...]:
    """What belongs to an option this version does not have: as many words as it took when it existed."""
    entry = table(engine).file.names.get(name)
    if entry is None:
        return following[:1] if following and following[0].known else ()
    if entry.kind in ("flag", "off"):
        return ()
    return following if entry.kind == "list" else following[:1]


def _following(words: tuple[Word, ...], at: int) -> tuple[Word, ...]:
    end = at
    while end < len(words) and (not words[end].text.startswith("-") or _NUMBER.fullmatch(words[end].text)):
        end += 1
    return words[at:end]


def _model(launch: FoundLaunch, uses: list[Use], loose: list[Word]) -> Word | None:
    for use in uses:
        if use.name in ("--model", "--model-path") and use.values:
            return use.values[0]
    return loose[0] if launch.engine == "vllm" and loose and launch.entry in ("vllm serve", "image") else None
