"""Adds a new engine version to the packaged table from its own help text.

    vllm serve --help=all > help.txt && python -m tidegate.engines.learn vllm==0.34.0 help.txt

Options the text lists begin or go on at that version, the others end at the last recorded one. Environment variables
and metrics are not in a help text: they are carried on as they were. The diff of the table is the review.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tidegate.engines.helptext import HelpOption, parse_help
from tidegate.engines.optiontable import EngineTable, Entry, TableFile, table
from tidegate.engines.versions import parse_engine, parse_version
from tidegate.errors import BadInputError, TidegateError


def learned(known: EngineTable, version: str, options: list[HelpOption]) -> TableFile:
    """The table with `version` appended. Raises BadInputError when it is not newer than all recorded ones."""
    if parse_version(version) <= parse_version(known.newest):
        raise BadInputError(f"{version} is not newer than {known.newest}", hint="only the newest version can be added")
    names = {
        name: msgspec.structs.replace(entry, spans=_closed(entry.spans, known.newest))
        for name, entry in known.file.names.items()
    }
    for option in options:
        if "--help" not in option.names:
            _merge(names, known, option, version)
    versions = [*known.versions, version]
    return TableFile(known.engine, versions, dict(sorted(names.items())), known.file.env, known.file.metrics)


def _merge(names: dict[str, Entry], known: EngineTable, option: HelpOption, version: str) -> None:
    main = next((name for name in option.names if name.startswith("--")), option.names[0])
    for name in (*option.names, *option.off):
        old = known.file.names.get(name)
        spans = _continued(old.spans if old else "", known.newest, version)
        role = "off" if name in option.off else "alias"
        names[name] = _main_entry(option, old, spans) if name == main else Entry(kind=role, spans=spans, of=main)
    hidden = "--no-" + main.removeprefix("--")
    old = known.file.names.get(hidden)
    if option.off and old is not None and known.engine == "vllm":
        names[hidden] = Entry(kind="off", spans=_continued(old.spans, known.newest, version), of=main)


def _main_entry(option: HelpOption, old: Entry | None, spans: str) -> Entry:
    guess = "list" if option.arity == "many" else "choice" if option.choices else "text"
    kept = old.kind if old is not None and old.kind not in ("flag", "off", "alias") else guess
    return Entry(
        kind="flag" if option.arity == "none" else kept,
        spans=spans,
        toggle=bool(option.off),
        optional=option.arity == "optional",
        choices=list(option.choices),
        open=option.open_choices and bool(option.choices),
        default=option.default,
    )


def _closed(spans: str, newest: str) -> str:
    return spans + newest if spans.endswith("-") else spans


def _continued(spans: str, newest: str, version: str) -> str:
    if spans.endswith("-"):
        return spans
    return f"{spans}, {version}-" if spans else f"{version}-"


def text_of(file: TableFile) -> str:
    """The table as its file is written: one name a line, so that a diff shows what a release changed."""
    sections: list[str] = []
    for title, entries in (("names", file.names), ("env", file.env), ("metrics", file.metrics)):
        lines = [f"  {_json(name)}: {_json(entry)}" for name, entry in entries.items()]
        sections.append(f' "{title}": {{\n' + ",\n".join(lines) + "\n }")
    head = f' "engine": {_json(file.engine)},\n "versions": {_json(file.versions)},\n'
    return "{\n" + head + ",\n".join(sections) + "\n}\n"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def main(argv: list[str]) -> int:
    """Rewrites `tables/<engine>.json` beside this file."""
    try:
        if len(argv) != 2:
            raise BadInputError("two words are needed", hint="for example: vllm==0.34.0 help.txt")
        engine, version = parse_engine(argv[0])
        if version is None:
            raise BadInputError(f"{argv[0]} has no version", hint=f"write {engine}==0.34.0")
        file = learned(table(engine), version, parse_help(Path(argv[1]).read_text(encoding="utf-8")))
        Path(__file__).with_name("tables").joinpath(f"{engine}.json").write_text(text_of(file), encoding="utf-8")
    except TidegateError as exc:
        sys.stderr.write(f"error: {exc.message}\nhint: {exc.hint}\n")
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
