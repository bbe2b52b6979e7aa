"""What a person is told about a document that cannot be used, and what a sound one becomes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import ClusterSpec, SpecError, load_spec, parse_spec

LEAST = "pools: [{model: m, instances: [{url: 'http://127.0.0.1:8001'}]}]\n"


def problems(text: str) -> list[str]:
    """The lines of the error that `text` gets."""
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "t.yaml")
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert caught.value.message == "\n".join(str(problem) for problem in caught.value.problems)
    return caught.value.message.splitlines()


def only(text: str) -> str:
    """The one problem of `text`."""
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def test_smallest_document_gets_every_default() -> None:
    spec = parse_spec(LEAST)
    assert spec.pools[0].engine.step_tokens == 8192
    assert spec.slo.ttft_s == 0.8
    assert spec.gateway.queue.max_wait_s == 0.5


def test_quantities_become_base_units() -> None:
    spec = parse_spec(
        LEAST
        + """
slo: {ttft: 1500ms, itl: 0.05}
gateway:
  drain: 1m30s
  queue: {max_requests: 1k, max_bytes: 1GiB, max_wait: 250 ms}
  admission: {kv_high: 90%, max_prefill_tokens: 8ki}
traffic:
  phases: [{name: p, duration: 2m, rate: 90/min}]
"""
    )
    assert (spec.slo.ttft_s, spec.slo.itl_s, spec.gateway.drain_s) == (1.5, 0.05, 90.0)
    queue = spec.gateway.queue
    assert (queue.max_requests, queue.max_bytes, queue.max_wait_s) == (1000, 2**30, 0.25)
    assert (spec.gateway.admission.kv_high, spec.gateway.admission.max_prefill_tokens) == (0.9, 8192)
    assert (spec.traffic.phases[0].duration_s, spec.traffic.phases[0].rate) == (120.0, 1.5)


def test_instance_is_named_after_its_address_unless_it_has_a_name() -> None:
    spec = parse_spec("pools: [{model: m, instances: [{url: 'http://a:1/'}, {url: 'http://b', name: left}]}]")
    assert [(one.name, one.url) for one in spec.pools[0].instances] == [("a:1", "http://a:1"), ("left", "http://b")]


def test_null_stands_for_an_optional_value_only() -> None:
    assert parse_spec(LEAST + "traffic: {trace: null}").traffic.trace is None
    assert "gateway: expected a mapping" in only(LEAST + "gateway:\n")


def test_anchors_may_be_reused() -> None:
    spec = parse_spec(
        """
pools:
  - {model: a, instances: [{url: 'http://a:1'}], engine: &e {gpus: 4}}
  - {model: b, instances: [{url: 'http://b:1'}], engine: *e}
"""
    )
    assert [pool.engine.gpus for pool in spec.pools] == [4, 4]


def test_every_problem_is_told_at_once_in_file_order() -> None:
    found = problems(
        """\
pools:
  - model: 70
    instances:
      - url: http://127.0.0.1:8001/v1
    engine: {max_sequnces: 5, gpus: 0, kind: vlm}
slo: {ttft: [1]}
gateway:
  queue: {max_wait_s: 5s}
"""
    )
    assert [line.partition(": ")[0] for line in found] == [
        "t.yaml:2", "t.yaml:4", "t.yaml:5", "t.yaml:5", "t.yaml:5", "t.yaml:6", "t.yaml:8",
    ]  # fmt: skip
    assert found[2] == "t.yaml:5: pools[0].engine: unknown key 'max_sequnces'; did you mean 'max_sequences'?"
    assert found[3] == "t.yaml:5: pools[0].engine.gpus: must be at least 1, got 0"
    assert "did you mean 'vllm'?" in found[4]
    assert found[5] == "t.yaml:6: slo.ttft: expected a duration like 800ms, got a list"
    assert "did you mean 'max_wait'?" in found[6]


def test_problem_knows_its_column() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(LEAST + "slo: {ttft: -1s}")
    problem = caught.value.problems[0]
    assert (problem.line, problem.column, problem.path) == (2, 13, "slo.ttft")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("slo: {ttft: 0}", "slo.ttft: must be more than 0s, got 0s"),
        ("slo: {ttft: 800 parsecs}", "'parsecs' is not a unit of time"),
        ("slo: {ttft: '800'}", "'800' has no unit; write for example 800s or 800ms"),
        ("slo: {ttft: {a: 1}}", "slo.ttft: expected a duration like 800ms, got a mapping"),
        ("slo: {ttft: true}", "slo.ttft: expected a duration like 800ms, got a true/false value true"),
        ("slo: {ttft: 2024-01-01}", "slo.ttft: expected a duration like 800ms, got a date 2024-01-01"),
        ("slo: {ttft: .inf}", "slo.ttft: expected a duration like 800ms, got .inf"),
        ("slo: {ttft: .nan}", "slo.ttft: expected a duration like 800ms, got .nan"),
        ("slo: {ttft: 1e400}", "slo.ttft: '1e400' is too large"),
        ("slo: {ttft: ٣}", "'٣' is not a duration"),
        ("slo: {ttft: 1000d}", "slo.ttft: must be at most 366d, got 1000d"),
        ("slo: {ttft: " + "9" * 5000 + "}", "slo.ttft: '999"),
        ("slo: 5", "slo: expected a mapping with keys such as ttft, itl; got a number 5"),
        ("gateway: {queue: {max_requests: 1.5}}", "gateway.queue.max_requests: 1.5 is not a whole count"),
        ("gateway: {queue: {max_bytes: 8 quarks}}", "'quarks' is not a unit of size"),
        ("gateway: {admission: {kv_high: 120%}}", "gateway.admission.kv_high: must be at most 1, got 1.2"),
        ("gateway: {limits: {body: 0}}", "gateway.limits.body: must be at least 1KiB, got 0"),
        ("gateway: {scrape_interval: 1us}", "gateway.scrape_interval: must be at least 10ms, got 0.001ms"),
        ("gateway: {bytes_per_token: '4'}", "gateway.bytes_per_token: expected a number, got the text '4'"),
        ("gateway: {listen: 8080}", "gateway.listen: expected text, but YAML reads 8080 as a number"),
        ("gateway: {listen: ':8080'}", "gateway.listen: ':8080' is not an address like 127.0.0.1:8080"),
        ("gateway: {listen: }", "gateway.listen: expected an address like 127.0.0.1:8080 or [::1]:8080, got nothing"),
        ("tenants: {name: a}", "tenants: expected a list (lines that start with '- '), got a mapping"),
        ("tenants: [{name: a, key_sha256: [abc]}]", "tenants[0].key_sha256[0]: 'abc' is not the SHA-256 of a key"),
        ("tenants: [{key_sha256: []}]", "tenants[0]: missing key 'name'"),
        ("version: 2", "version: expected 1, got a number 2"),
        ("version: '1'", "version: expected 1, got the text '1'"),
        ("slo: {ttft: ~}", "slo.ttft: expected a duration like 800ms, got nothing\n"),
        ("gateway: {admission: {enabled: [true]}}", "enabled: expected true or false, got a list"),
        ("tenants: [{name: a, priority: {a: 1}}]", "of best_effort, critical, high, normal, got a mapping"),
        ("gateway: {listen: [a]}", "gateway.listen: expected an address like 127.0.0.1:8080 or [::1]:8080, got a list"),
        ("ttft: 1s", "unknown key 'ttft'; it belongs at slo.ttft"),
        ("max_sequences: 1", "unknown key 'max_sequences'; it belongs at pools[].engine.max_sequences"),
        ("speed: 2", "unknown key 'speed'; it belongs at traffic.trace.speed"),
        ("gateway: {limits: {body_bytes: 1MiB}}", "unknown key 'body_bytes'; did you mean 'body'?"),
        ("gateway: {ttft_s: 1s}", "gateway: unknown key 'ttft_s'; known here: listen, admin"),
        ("slo: {ttft_s: 1s}", "slo: unknown key 'ttft_s'; did you mean 'ttft'?"),
        ("gateway: {scrape-interval: 1s}", "did you mean 'scrape_interval'?"),
        ("gateway: {[a]: 1}", "gateway: a key must be a word, not a list"),
        ("slo: {ttft: 1s, ttft: 2s}", "slo: key 'ttft' was already given on line 2; delete one"),
        ("slo: &a {ttft: 1s}\ngateway: {<<: *a}", "gateway: merge keys (<<) are not supported"),
        ("cost: {currency: \"a\\nb\"}", "cost.currency: 'a\\nb' holds a line break"),
        ("traffic: {trace: {file: t.csv}}", "traffic.trace: missing key 'format'"),
    ],
)  # fmt: skip
def test_wrong_value_gets_one_sentence(extra: str, said: str) -> None:
    line = only(LEAST + extra)
    assert line.startswith(("t.yaml:2: ", "t.yaml:3: "))
    assert said in line + "\n"
    assert len(line) < 250


@pytest.mark.parametrize(
    ("word", "meant"),
    [("on", "true"), ("yes", "true"), ("Y", "true"), ("ON", "true"), ("off", "false"), ("no", "false"), ("n", "false")],
)
def test_yaml_11_booleans_are_not_guessed(word: str, meant: str) -> None:
    assert only(LEAST + f"gateway: {{admission: {{enabled: {word}}}}}").endswith(f"; write {meant}")


@pytest.mark.parametrize(
    ("word", "said"), [("1:30", "base 60"), ("010", "not a plain decimal"), ("0x10", "not a plain decimal")]
)
def test_yaml_11_numbers_are_not_guessed(word: str, said: str) -> None:
    assert said in only(LEAST + f"slo: {{ttft: {word}}}")


@pytest.mark.parametrize("word", ["70", "1.5", "true", "2024-01-01", "1:30", "no"])
def test_unquoted_word_that_yaml_reads_as_something_else_is_no_name(word: str) -> None:
    line = only(f"pools: [{{model: {word}, instances: [{{url: 'http://a:1'}}]}}]")
    assert f'put it in quotes: "{word}"' in line
    assert parse_spec(f"pools: [{{model: '{word}', instances: [{{url: 'http://a:1'}}]}}]").pools[0].model == word


@pytest.mark.parametrize(
    "url", ["https://a:1", "a:1", "http://a:1/v1", "http://u:p@a:1", "http://a:99999999", "http://"]
)
def test_url_that_cannot_be_called_is_refused(url: str) -> None:
    assert f"'{url}' is not a URL like" in only(f"pools: [{{model: m, instances: [{{url: '{url}'}}]}}]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.yaml: the file is empty"),
        ("# nothing\n", "t.yaml: the file is empty"),
        ("---\n", "expected a mapping"),
        ("- a\n", "t.yaml:1: expected a mapping with keys such as version, pools"),
        ("hello", "got the text 'hello'"),
        ("{}", "t.yaml:1: missing key 'pools'"),
        ("pools: []", "t.yaml:1: pools: needs at least 1 entry"),
        ("slo:\n\tttft: 1s\n", "t.yaml:2: a tab indents this line"),
        ("slo: {ttft: 1s\n", "this is not YAML"),
        ("slo: 'open\n", "this is not YAML"),
        ("slo: *nowhere\n", "undefined alias"),
        (LEAST + "---\n" + LEAST, "t.yaml:2: a second document starts here"),
        ("slo: !!python/object:os.system {}\n", "the tag 'tag:yaml.org,2002:python/object:os.system' is not supported"),
        ("slo: \x00\n", "t.yaml:1: the character U+0000 may not stand in YAML"),
        ("slo: \ud800\n", "U+D800"),
        ("[" * 90, "nested deeper than 32 levels"),
        ("[" * 100_000, "exceeded maximum nesting depth"),
        ("- " * 100_000, "nested deeper than 32 levels"),
        ("a: &a [*a]\n" + LEAST, "unknown key 'a'"),
        ("[" + "1," * 250_000 + "]", "more than 200,000 values"),
    ],
)
def test_text_that_is_no_document_is_refused_clearly(text: str, said: str) -> None:
    assert said in problems(text)[0]


def test_alias_bomb_is_refused() -> None:
    entries = ", ".join(["*i"] * 2000)
    pools = ", ".join(["*p"] * 2000)
    text = f"pools: [&p {{model: m, instances: [&i {{url: 'http://a:1'}}, {entries}]}}, {pools}]"
    assert "aliases make this document larger" in only(text)


def test_flood_of_problems_is_cut() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(LEAST + "".join(f"key{i}: 1\n" for i in range(500)))
    assert len(caught.value.problems) == 500
    assert len(caught.value.message.splitlines()) < 50
    assert "more problems" in caught.value.message


def test_bom_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (LEAST + "slo: {ttft: 2s}\n").replace("\n", "\r\n").encode())
    assert load_spec(path).slo.ttft_s == 2


def told(path: Path) -> BadInputError:
    with pytest.raises(BadInputError) as caught:
        load_spec(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_missing_file_points_to_init(tmp_path: Path) -> None:
    error = told(tmp_path / "none.yaml")
    assert "no such file" in error.message
    assert "tidegate init" in error.hint


def test_directory_is_named_as_one(tmp_path: Path) -> None:
    assert "directory" in told(tmp_path).message


def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)  # holds for root too, unlike a mode of 000
    assert "cannot be read" in told(loop).message
    assert "cannot be read" in told(tmp_path / ("x" * 5000)).message


def test_file_in_another_encoding_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(LEAST.encode() + b"# caf\xe9\n")
    error = told(path)
    assert f"{path}:2: byte 0xe9 is not UTF-8" in error.message


def test_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**34)
    assert "larger than 1 MiB" in told(path).message


TOKENS = """
    pools model instances url http://a:1 engine gateway slo ttft 800ms tenants traffic phases trace 1 0x1 on null ~
    1:30 1e999 &a *a << !!str [ ] { } , : - ' " # | > % ? = é
"""
WORDS = st.sampled_from(
    [LEAST, "\n", "\n  ", "\n    ", "\t", "\x85", "\ufeff", "---\n", "...\n", "- ", ": ", *TOKENS.split()]
)
DOCUMENTS = st.one_of(
    st.text(),
    st.lists(WORDS, max_size=30).map("".join),
    st.lists(WORDS, max_size=30).map(lambda words: LEAST + " ".join(words)),
)


@settings(max_examples=400, deadline=None)
@given(DOCUMENTS)
def test_any_text_is_a_spec_or_bad_input(text: str) -> None:
    try:
        assert isinstance(parse_spec(text), ClusterSpec)
    except SpecError as error:
        told = error.problems
    else:
        return
    assert told


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_spec_or_bad_input(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with pytest.raises(BadInputError):
        load_spec(path)
