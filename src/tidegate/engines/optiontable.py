"""Which options, environment variables and metrics an engine version knows.

In: the packaged tables, or the help text of an installed engine. Out: `EngineTable` (all recorded versions) and
`OptionSet` (what one version accepts). A version between two recorded ones is judged only where both agree;
otherwise the answer is None: unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from tidegate.engines.helptext import HelpOption
from tidegate.engines.versions import Version, parse_version
from tidegate.errors import BadInputError

ENGINES: Final = ("vllm", "sglang")


class Entry(msgspec.Struct, frozen=True, rename={"spans": "in"}, omit_defaults=True):
    """One option name. `kind`: flag, off (negates `of`), alias (of `of`), or the kind of its value:
    int, size (`8k` works), size_or_auto, float, text, choice, json, list."""

    kind: str
    spans: str
    of: str = ""
    toggle: bool = False
    """Has a `--no-…` form."""
    optional: bool = False
    """The value may be left out."""
    choices: list[str] = []
    open: bool = False
    """Other values than `choices` are let through to a later check."""
    default: str | None = None
    """As the newest recorded help prints it; None where it prints none."""
    deprecated: str = ""
    """Versions that accept the name with a warning."""


class TableFile(msgspec.Struct, frozen=True):
    """One `tables/<engine>.json`. `versions` are the recorded ones, oldest first."""

    engine: str
    versions: list[str]
    names: dict[str, Entry]
    env: dict[str, str]
    metrics: dict[str, str]


class Option(msgspec.Struct, frozen=True):
    """A name as one version takes it; `canonical` is the name the help leads with."""

    name: str
    canonical: str
    kind: str
    toggle: bool
    optional: bool
    choices: tuple[str, ...]
    open: bool
    default: str | None
    deprecated: bool

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("flag", "off")


class OptionSet:
    """Everything one engine accepts. `label` says whom it speaks for: `vllm 0.33.0`, `the installed vllm 0.33.0`."""

    __slots__ = ("engine", "label", "options", "uncertain", "version")

    def __init__(self, engine: str, version: str, label: str, options: Iterable[Option]) -> None:
        self.engine = engine
        self.version = version
        self.label = label
        self.options = {option.name: option for option in options}
        self.uncertain: frozenset[str] = frozenset()

    def find(self, name: str) -> Option | None:
        """The option an exact name stands for; underscores pass for dashes where vLLM lets them."""
        if self.engine == "vllm" and name.startswith("--"):
            head, dot, rest = name.partition(".")
            name = head.replace("_", "-")
            found = self.options.get(name)
            return found if not dot or rest == "" or (found is not None and found.kind == "json") else None
        return self.options.get(name)

    def abbreviated(self, name: str) -> list[Option]:
        """The options that argparse would complete `name` to: one is taken, several are refused."""
        if not name.startswith("--") or len(name) < 4:
            return []
        name = name.replace("_", "-") if self.engine == "vllm" else name
        found = [option for other, option in self.options.items() if other.startswith(name)]
        return list({option.canonical: option for option in found}.values())


class EngineTable:
    """All recorded versions of one engine."""

    __slots__ = ("_order", "engine", "file", "versions")

    def __init__(self, file: TableFile) -> None:
        self.file = file
        self.engine = file.engine
        self.versions = tuple(file.versions)
        self._order: tuple[Version, ...] = tuple(parse_version(version) for version in file.versions)

    @property
    def newest(self) -> str:
        return self.versions[-1]

    def resolve(self, version: str) -> tuple[str, str]:
        """The recorded version that speaks for `version`, and one sentence when it is not exactly that one."""
        wanted = parse_version(version)
        if wanted in self._order:
            return self.versions[self._order.index(wanted)], ""
        if wanted > self._order[-1]:
            return self.newest, f"{self.engine} {version} is newer than anything recorded: judged as {self.newest}"
        if wanted < self._order[0]:
            oldest = self.versions[0]
            return oldest, f"{self.engine} {version} is older than anything recorded: judged as {oldest}"
        sibling = self._sibling(wanted)
        if sibling is not None:
            return sibling, f"{self.engine} {version} is judged as {sibling}, the recorded release of its series"
        below, above = self._around(wanted)
        return (
            below,
            f"{self.engine} {version} is not recorded: judged as {below}, unknown where {below} and {above} differ",
        )

    def _sibling(self, wanted: Version) -> str | None:
        """The recorded release of the same minor version; vLLM's patch releases change no options."""
        same = [index for index, one in enumerate(self._order) if one[:2] == wanted[:2]]
        return self.versions[same[-1]] if same and self.engine == "vllm" else None

    def _around(self, wanted: Version) -> tuple[str, str]:
        above = next(index for index, one in enumerate(self._order) if one > wanted)
        return self.versions[above - 1], self.versions[above]

    def within(self, spans: str, version: str) -> bool | None:
        """Whether `version` lies in `spans`; None between two recorded versions that disagree."""
        wanted = parse_version(version)
        outside = wanted > self._order[-1] or wanted < self._order[0]
        if wanted in self._order or outside or self._sibling(wanted) is not None:
            return self._covers(spans, self.resolve(version)[0])
        below, above = self._around(wanted)
        answers = {self._covers(spans, below), self._covers(spans, above)}
        return answers.pop() if len(answers) == 1 else None

    def _covers(self, spans: str, recorded: str) -> bool:
        at = parse_version(recorded)
        return any(first <= at and (last is None or at <= last) for first, last in _spans(spans))

    def accepts(self, name: str, version: str) -> bool | None:
        """Whether `version` takes the option; None when that is not known. A name never recorded is not taken."""
        entry = self.file.names.get(name)
        return False if entry is None else self.within(entry.spans, version)

    def last_seen(self, name: str) -> tuple[str, str | None] | None:
        """The newest recorded version that takes an option and the first one after it that does not (None: none)."""
        entry = self.file.names.get(name)
        return None if entry is None else self.end_of(entry.spans)

    def end_of(self, spans: str) -> tuple[str, str | None]:
        """The last recorded version in `spans`, and the next recorded one, which is out of it."""
        last = _spans(spans)[-1][1]
        if last is None:
            return self.newest, None
        index = self._order.index(last)
        return self.versions[index], self.versions[index + 1]

    def gone(self, spans: str, version: str) -> str:
        """When a name in `spans` went, seen from `version`, which is after it: `gone since 0.18`, `gone by 0.5.20`.

        vLLM is recorded series by series, so that the series is exact; SGLang's gaps only give an upper bound.
        """
        at = parse_version(version)
        ends = [last for _, last in _spans(spans) if last is not None and last < at]
        if not ends:
            return ""
        after = self.versions[self._order.index(ends[-1]) + 1]
        back = [first for first, _ in _spans(spans) if first > at]
        again = f", and back in {'.'.join(map(str, back[0]))}" if back else ""
        if self.engine == "vllm":
            return f"gone since {'.'.join(after.split('.')[:2])}{again}"
        return f"gone by {after}{again}"

    def options(self, version: str) -> OptionSet:
        """What `version` accepts, as far as recorded; `uncertain` holds the names nobody can vouch for."""
        names = self.file.names
        taken = {name: self.within(entry.spans, version) for name, entry in names.items()}
        recorded = self.resolve(version)[0]
        options = [self._option(name, recorded) for name, answer in taken.items() if answer is not False]
        found = OptionSet(self.engine, version, f"{self.engine} {version}", options)
        found.uncertain = frozenset(name for name, answer in taken.items() if answer is None)
        return found

    def _option(self, name: str, version: str) -> Option:
        entry = self.file.names[name]
        main = self.file.names.get(entry.of, entry) if entry.kind == "alias" else entry
        return Option(
            name=name,
            canonical=entry.of or name,
            kind=main.kind,
            toggle=main.toggle,
            optional=main.optional,
            choices=tuple(main.choices) if self._covers(main.spans, self.newest) and version == self.newest else (),
            open=main.open,
            default=main.default if version == self.newest else None,
            deprecated=bool(entry.deprecated) and self._covers(entry.deprecated, version),
        )

    def from_help(self, options: list[HelpOption], version: str | None) -> OptionSet:
        """What an installed engine says it accepts; value kinds come from the table where it knows the name."""
        known = self.file.names
        found: list[Option] = []
        for one in options:
            main = next((name for name in one.names if name.startswith("--")), one.names[0])
            entry = known.get(main)
            kind = _kind(one, entry)
            toggle = bool(one.off)
            names = [(name, kind) for name in one.names] + [(name, "off") for name in one.off]
            if toggle and self.engine == "vllm":
                names.append(("--no-" + main.removeprefix("--"), "off"))
            found += [
                Option(
                    name, main, kept, toggle, one.arity == "optional", one.choices, one.open_choices, one.default, False
                )
                for name, kept in names
            ]
        return OptionSet(self.engine, version or self.newest, f"the installed {self.engine}", found)


def _kind(option: HelpOption, entry: Entry | None) -> str:
    if option.arity == "none":
        return "flag"
    if entry is not None and entry.kind not in ("flag", "off", "alias"):
        return entry.kind
    return "list" if option.arity == "many" else "choice" if option.choices else "text"


@cache
def table(engine: str) -> EngineTable:
    """The packaged table of `vllm` or `sglang`. Raises BadInputError for any other engine."""
    if engine not in ENGINES:
        raise BadInputError(f"there is no option table for {engine!r}", hint="tables exist for vllm and sglang")
    data = resources.files("tidegate.engines.tables").joinpath(f"{engine}.json").read_bytes()
    return EngineTable(msgspec.json.decode(data, type=TableFile))


@cache
def _spans(text: str) -> tuple[tuple[Version, Version | None], ...]:
    """`0.8.5-0.17.1, 0.33.0-` → pairs of first and last version; None as last means it goes on."""
    pairs = [part.strip().partition("-") for part in text.split(",")]
    return tuple((parse_version(first), parse_version(last) if last else None) for first, _, last in pairs)
