"""Shipped length tables are those of the public traces, and draws follow them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tidegate.errors import BadInputError
from tidegate.rng import Streams
from tidegate.spec.traffic import LengthSpec, TraceSpec
from tidegate.traffic.lengths import LengthSource, fit_quantiles, fitted, quantile
from tidegate.traffic.traces import read_trace

TRACES = [
    ("azure-conv", "azure-2023-conv.csv", "azure"),
    ("azure-code", "azure-2023-code.csv", "azure"),
    ("mooncake", "mooncake-conversation.jsonl", "mooncake"),
]
PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
FIT_ERROR = 0.03


def unclamped(name: str, seed: int = 5) -> LengthSource:
    spec = LengthSpec(
        distribution=name,  # type: ignore[arg-type]
        prompt_min_tokens=1,
        prompt_max_tokens=10**6,
        output_min_tokens=1,
        output_max_tokens=10**6,
        long_share=0,
    )
    return LengthSource(spec, Streams(seed))


def percentile(values: list[int], percent: float) -> int:
    return sorted(values)[round((len(values) - 1) * percent / 100)]


@pytest.mark.parametrize(("name", "file", "trace_format"), TRACES)
def test_the_fit_has_the_traces_percentiles_and_means_within_three_percent(
    shared_dir: Path, name: str, file: str, trace_format: str
) -> None:
    rows = read_trace(TraceSpec(file=file, format=trace_format), shared_dir / "traces")  # type: ignore[arg-type]
    grid = [(step + 0.5) / 20_000 for step in range(20_000)]
    for real, table in (
        ([row.prompt_tokens for row in rows], fitted(name).prompt),
        ([row.output_tokens for row in rows], fitted(name).output),
    ):
        made = [round(quantile(table, probability)) for probability in grid]
        assert statistics.fmean(made) == pytest.approx(statistics.fmean(real), rel=FIT_ERROR)
        for percent in PERCENTILES:
            assert percentile(made, percent) == pytest.approx(percentile(real, percent), rel=FIT_ERROR, abs=1)


@pytest.mark.parametrize("name", ["azure-conv", "azure-code", "mooncake"])
def test_draws_follow_the_fit(name: str) -> None:
    source = unclamped(name)
    drawn = [source.draw() for _ in range(20_000)]
    for column, table in ((0, fitted(name).prompt), (1, fitted(name).output)):
        values = [pair[column] for pair in drawn]
        for probability in (0.25, 0.5, 0.9):
            wanted = quantile(table, probability)
            below = sum(value <= wanted for value in values) / len(values)
            ties = sum(value == round(wanted) for value in values) / len(values)
            assert below == pytest.approx(probability, abs=0.012 + ties)


@pytest.mark.parametrize(("name", "file", "trace_format"), TRACES)
def test_the_shipped_table_is_the_fit_of_the_trace_and_names_its_source(
    shared_dir: Path, name: str, file: str, trace_format: str
) -> None:
    rows = read_trace(TraceSpec(file=file, format=trace_format), shared_dir / "traces")  # type: ignore[arg-type]
    table = fitted(name)
    assert table.rows == len(rows)
    assert table.prompt == fit_quantiles([row.prompt_tokens for row in rows])
    assert table.output == fit_quantiles([row.output_tokens for row in rows])
    assert "github.com" in table.source
    assert table.licence in {"CC-BY-4.0", "Apache-2.0"}


def test_draws_are_clamped_and_a_share_of_prompts_is_very_long() -> None:
    spec = LengthSpec(prompt_min_tokens=128, prompt_max_tokens=2048, output_max_tokens=300, long_share=0.2)
    source = LengthSource(spec, Streams(1))
    drawn = [source.draw() for _ in range(20_000)]
    long = [prompt for prompt, _ in drawn if prompt > 2048]
    assert len(long) / len(drawn) == pytest.approx(0.2, abs=0.01)
    assert min(long) >= 4096
    assert max(long) <= 8192
    assert min(prompt for prompt, _ in drawn) == 128
    assert min(output for _, output in drawn) >= 8
    assert max(output for _, output in drawn) == 300


def test_the_long_share_does_not_shift_other_requests_lengths() -> None:
    none, some = (LengthSource(LengthSpec(long_share=share), Streams(9)) for share in (0.0, 0.5))
    pairs = [(none.draw(), some.draw()) for _ in range(500)]
    assert all(a[1] == b[1] for a, b in pairs)
    assert all(a[0] == b[0] for a, b in pairs if b[0] < 4096)


def test_uniform_lengths_cover_their_range() -> None:
    spec = LengthSpec(
        distribution="uniform",
        prompt_min_tokens=3,
        prompt_max_tokens=5,
        output_min_tokens=1,
        output_max_tokens=2,
        long_share=0,
    )
    source = LengthSource(spec, Streams(2))
    assert {source.draw() for _ in range(300)} == {(p, o) for p in (3, 4, 5) for o in (1, 2)}


def test_an_upside_down_range_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"prompt_min \(9\) is above prompt_max \(8\)"):
        LengthSource(LengthSpec(prompt_min_tokens=9, prompt_max_tokens=8), Streams(1))
