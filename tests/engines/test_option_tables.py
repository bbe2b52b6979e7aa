"""The packaged tables against the engines' own help, real parsers and metric pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines import learn
from tidegate.engines.helptext import HelpOption, parse_help
from tidegate.engines.notes import notes
from tidegate.engines.optiontable import ENGINES, table
from tidegate.engines.versions import parse_engine, parse_version
from tidegate.errors import BadInputError, TidegateError

HelpOptions = dict[tuple[str, str], list[HelpOption]]


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.33.0"), ("vllm", "0.32.0"), ("sglang", "0.5.23")])
def test_a_recorded_version_accepts_exactly_what_its_help_lists(
    help_options: HelpOptions, engine: str, version: str
) -> None:
    listed = {name for one in help_options[engine, version] for name in (*one.names, *one.off)} - {"--help", "-h"}
    accepted = set(table(engine).options(version).options)
    hidden = {name for name in accepted - listed if name.startswith("--no-")}
    assert listed - accepted == set()
    assert accepted - listed - hidden == set(), "only vLLM's --no- forms may be missing from a help text"


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.33.0"), ("sglang", "0.5.23")])
def test_values_and_defaults_are_those_of_the_help(help_options: HelpOptions, engine: str, version: str) -> None:
    options = table(engine).options(version)
    for one in help_options[engine, version]:
        found = options.find(one.names[-1])
        if found is None:
            assert "--help" in one.names
            continue
        assert found.takes_value == (one.arity != "none"), one.names
        assert found.choices == one.choices, one.names
        if one.default is not None and len(one.default) < 60:
            assert found.default == one.default, one.names


def test_the_table_agrees_with_what_the_real_parsers_said(recorded: Path) -> None:
    """`article-flags-parsed.txt`: flags given to the parsers of vLLM 0.33.0, 0.32.0 and SGLang 0.5.23."""
    seen = 0
    for engine, folder in (("vllm", "vllm"), ("sglang", "sglang")):
        version = "0.5.23"
        for line in (recorded / folder / "article-flags-parsed.txt").read_text("utf-8").splitlines():
            version = match.group(1) if (match := re.match(r"vllm(?:-cpu)? (\S+)$", line)) else version
            match = re.match(r"(--[a-z-]+)[ =].*=> (OK|EXIT)", line)
            if match is None or "chunked-prefill" in line:
                continue
            options = table(engine).options(version)
            known = options.find(match.group(1)) is not None or len(options.abbreviated(match.group(1))) == 1
            assert known == (match.group(2) == "OK"), (version, line)
            seen += 1
    assert seen > 40


def test_history_says_when_an_option_went() -> None:
    vllm = table("vllm")
    assert vllm.accepts("--swap-space", "0.17.1") is True
    assert vllm.accepts("--swap-space", "0.18.0") is False
    assert vllm.last_seen("--swap-space") == ("0.17.1", "0.18.1")
    assert [vllm.accepts("--disable-log-requests", v) for v in ("0.16.0", "0.32.0", "0.33.0")] == [True, False, True]
    assert table("sglang").accepts("--enable-radix-cache", "0.5.23") is False


def test_between_two_recorded_versions_that_differ_the_answer_is_unknown() -> None:
    sglang = table("sglang")
    assert sglang.accepts("--max-micro-batch-size", "0.5.3") is True
    assert sglang.accepts("--stream-output", "0.5.7") is True
    assert sglang.accepts("--enable-flashinfer-autotune", "0.5.7") is None
    assert "--enable-flashinfer-autotune" in sglang.options("0.5.7").uncertain
    assert "unknown where 0.5.6 and 0.5.8 differ" in sglang.resolve("0.5.7")[1]


@pytest.mark.parametrize("version", ["0.99.0", "v1.0"])
def test_a_version_never_seen_is_judged_as_the_newest_and_says_so(version: str) -> None:
    near, said = table("vllm").resolve(version)
    assert near == "0.33.0"
    assert "newer than anything recorded" in said


@pytest.mark.parametrize("text", ["vlm==0.3", "vllm==", "vllm==latest", "", "sglang==0.5.x"])
def test_an_engine_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_engine(text)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_replacement_a_note_names_exists_today(engine: str) -> None:
    options = table(engine).options(table(engine).newest)
    for name, change in notes(engine).options.items():
        for word in re.findall(r"--[a-z][\w.-]*", f"{change.to} {change.suggest}"):
            assert options.find(word) or word == name, f"{name} → {word}"
    metrics = table(engine).file.metrics
    for name, metric in notes(engine).metrics.items():
        assert not metric.to or {metric.to, metric.to.removesuffix("_total")} & set(metrics), name


def test_metrics_of_real_pages_are_in_the_table(recorded: Path) -> None:
    """vLLM adds `_total`, `_bucket`, …; connector families that only exist with a connector are not recorded."""
    page = (recorded / "vllm" / "metrics.load16.eager.txt").read_text("utf-8")
    names = set(re.findall(r"^# TYPE (vllm:\w+?)(?:_created)? ", page, re.MULTILINE))
    known = table("vllm").file.metrics
    assert len(names) > 30
    known_bare = {name.removesuffix("_total") for name in known}
    assert {name for name in names if name.removesuffix("_total") not in known_bare} == set()


def test_a_new_version_is_learned_from_its_help(help_options: HelpOptions) -> None:
    options = [one for one in help_options["vllm", "0.33.0"] if "--max-num-seqs" not in one.names]
    text = "options:\n  --brand-new {a,b}  Something. (default: a)\n"
    file = learn.learned(table("vllm"), "0.34.0", options + parse_help(text))
    assert file.names["--max-num-seqs"].spans.endswith("-0.33.0")
    assert file.names["--brand-new"].spans == "0.34.0-"
    assert file.names["--brand-new"].choices == ["a", "b"]
    assert file.names["--port"].spans == table("vllm").file.names["--port"].spans
    assert file.names["--no-enable-chunked-prefill"].spans.endswith("-")
    with pytest.raises(BadInputError, match="not newer"):
        learn.learned(table("vllm"), "0.33.0", options)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_packaged_file_is_written_as_the_learner_writes_it(engine: str, repo_root: Path) -> None:
    path = repo_root / "src/tidegate/engines/tables" / f"{engine}.json"
    assert path.read_text("utf-8") == learn.text_of(table(engine).file)


HELP = """\
usage: x [-h] [--one ONE]

options:
  --one ONE, -o ONE     A value.
                        On two lines. (default: 1)
  --many M [M ...]      Several. (default: [])
  --maybe [M]           One or none. (default: None)
  --on, --no-on         A switch. (default: True)
  --enable-x, --disable-x
                        A switch of the newer style. (default: False)
  --parser {a,b} or name registered in --plugin
                        Prose behind the choices. (default: None)
  --kind ['c', 'd']     Choices of the newer style. (default: c)
"""


def test_every_form_of_entry() -> None:
    found = [(one.names, one.off, one.arity, one.choices, one.open_choices, one.default) for one in parse_help(HELP)]
    assert found == [
        (("--one", "-o"), (), "one", (), False, "1"),
        (("--many",), (), "many", (), False, "[]"),
        (("--maybe",), (), "optional", (), False, "None"),
        (("--on",), ("--no-on",), "none", (), False, "True"),
        (("--enable-x",), ("--disable-x",), "none", (), False, "False"),
        (("--parser",), (), "one", ("a", "b"), True, "None"),
        (("--kind",), (), "one", ("c", "d"), True, "c"),
    ]


@given(st.text(max_size=300))
def test_any_text_is_a_help_text_or_refused(text: str) -> None:
    try:
        options = parse_help(text)
    except TidegateError:
        options = []
    assert all(name.startswith("-") for one in options for name in one.names)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.sampled_from(["", ".post1", "rc2", "+cu130"]))
def test_versions_order_as_numbers(major: int, minor: int, patch: int, suffix: str) -> None:
    assert parse_version(f"v{major}.{minor}.{patch}{suffix}") == (major, minor, patch)
