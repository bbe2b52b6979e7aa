"""Reports say what the figures say, label emulated runs, and hide nothing that is unknown."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console, RenderableType

from tidegate.cli import run as run_cli
from tidegate.errors import ExitCode, Outcome, UnavailableError
from tidegate.report.charts import Shown, all_charts
from tidegate.report.page import page
from tidegate.report.rows import ROWS, gain, milliseconds
from tidegate.report.series import itl_cdf, itl_over_time, outcomes_over_time, ttft_cdf, ttft_over_time
from tidegate.report.table import comparison_table, run_table
from tidegate.testing.runs import record, run_of
from tidegate.traffic.figures import figures_of
from tidegate.traffic.record import InstanceRecord, PhaseMark, RunRecord
from tidegate.traffic.store import write_run


def slow_run() -> RunRecord:
    run = run_of([
        record(0, 1.0, first_s=2.0, gaps_ms=[20.0, 200.0]),
        record(1, 2.0, first_s=3.5, gaps_ms=[30.0], phase="pulse"),
        record(2, 2.1, Outcome.QUEUE_FULL, phase="pulse"),
        record(3, 6.0, first_s=6.2, gaps_ms=[20.0, 30.0]),
    ])  # fmt: skip
    run.label = "default"
    run.phases = [PhaseMark("steady", 0, 2), PhaseMark("pulse", 2, 4), PhaseMark("steady", 4, 10)]
    return run


def fast_run() -> RunRecord:
    run = run_of([record(i, at, first_s=at + 0.2, gaps_ms=[20.0]) for i, at in enumerate((1.0, 2.0, 2.1, 6.0))])
    run.label = "frozen"
    run.instances = [InstanceRecord(name="a", gpus=8, preemptions=3)]
    return run


def text_of(renderable: RenderableType, width: int = 120) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def line_with(text: str, *words: str) -> str:
    return next(line for line in text.splitlines() if all(word in line for word in words))


def test_the_table_of_a_run_shows_figures_verdicts_and_the_accounting() -> None:
    text = text_of(run_table(figures_of(slow_run())))
    assert "EMULATED" in text
    assert "SLO: TTFT 800 ms, ITL 50 ms" in text
    assert "25.0%" in line_with(text, "Within SLO, of all sent")
    assert "1.50 s ✗" in text
    assert "4 sent = 3 completed + 1 rejected + 0 errors + 0 cancelled + 0 in flight: holds" in text
    assert "completed 3, queue_full 1" in text
    assert re.search(r"pulse +│ +2 +│ +1", text)


def test_what_is_not_known_is_printed_as_unknown_and_never_as_zero() -> None:
    text = text_of(run_table(figures_of(slow_run())))
    for title in ("Crashes per instance-hour", "Preemptions", "MFU", "KV cache peak", "Per million output tokens"):
        assert "unknown" in line_with(text, title)


NAME = "[/red][bold]<img src=x onerror=alert(1)></script>"


def test_names_are_shown_as_they_were_written() -> None:
    run = slow_run()
    run.label = NAME
    run.phases = [PhaseMark(NAME, 0, 10)]
    for request in run.requests:
        request.plan = structs.replace(request.plan, phase=NAME)
    figures = figures_of(run)
    assert text_of(run_table(figures), 300).count(NAME) == 3
    assert NAME in text_of(comparison_table(figures, figures), 300)
    assert "<img" not in page([run])
    drawn = str([chart.spec for chart in all_charts([Shown(run, figures, "after")])])
    assert "&lt;img" in drawn
    assert "<img" not in drawn


def test_trouble_with_a_run_is_said_loudly() -> None:
    run = slow_run()
    run.client_bound, run.client_bound_why, run.interrupted, run.sent = True, "send lag", True, 9
    run.requests[0].text_fault = "words lost"
    text = text_of(run_table(figures_of(run)))
    for words in ("CLIENT-BOUND, not to be quoted: send lag", "INTERRUPTED", "DOES NOT HOLD", "1 answers had lost"):
        assert words in text


def test_a_comparison_shows_both_runs_and_which_way_it_went() -> None:
    text = text_of(comparison_table(figures_of(slow_run()), figures_of(fast_run())))
    assert "default" in text
    assert "frozen" in text
    assert "+75.0 points" in line_with(text, "Within SLO, of all sent")
    assert "unknown" in line_with(text, "Preemptions")


def test_a_table_fits_eighty_columns() -> None:
    text = text_of(comparison_table(figures_of(slow_run()), figures_of(fast_run())), width=80)
    assert "Per million output tokens" in text
    assert max(map(len, text.splitlines())) <= 80


def test_gains_say_better_or_worse_by_the_figures_own_direction() -> None:
    before, after = figures_of(slow_run()), figures_of(fast_run())
    by_title = {f"{row.group} {row.title}": row for row in ROWS}
    assert gain(by_title["TTFT P99"], before, after) == ("7.5× lower", 1)
    assert gain(by_title["TTFT P99"], after, before) == ("7.5× higher", -1)
    assert gain(by_title["Goodput Within SLO, of all sent"], after, before) == ("−75.0 points", -1)
    assert gain(by_title["Requests Sent"], before, after) == ("same", 0)


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.0123, "12.3 ms"), (0.0999, "100 ms"), (0.812, "812 ms"), (1.239, "1.24 s"), (75, "75.0 s")]
)
def test_latencies_are_written_as_people_read_them(value_s: float, text: str) -> None:
    assert milliseconds(value_s) == text


def test_series_over_time_leave_holes_where_nothing_happened() -> None:
    run = slow_run()
    line = ttft_over_time(run).line(99)
    assert any(value is None for value in itl_over_time(run).line(50).y_ms)  # type: ignore[union-attr]
    assert max(value for value in line.y_ms if value is not None) == pytest.approx(1500, rel=0.005)
    _, counts = outcomes_over_time(run)
    assert {group: sum(values) for group, values in counts.items()} == {
        "completed": 3, "rejected": 1, "error": 0, "cancelled": 0,
    }  # fmt: skip


def test_the_ttft_distribution_counts_failures_as_never() -> None:
    steps = ttft_cdf(slow_run())
    assert steps.share[-1] == 0.75
    assert steps.x_ms[-1] == pytest.approx(1500, rel=0.005)
    assert itl_cdf(slow_run()).share[-1] == 1.0


def test_a_run_without_raw_gaps_draws_what_it_kept() -> None:
    run = run_of([record(0, 1.0, first_s=1.1)])
    run.gaps = {20_000: 9, 500_000: 1}
    assert itl_over_time(run) is None
    assert itl_cdf(run).x_ms == [20.0, 500.0]
    keys = {chart.key for chart in all_charts([Shown(run, figures_of(run), "after")])}
    assert "itl" not in keys
    assert "itl-cdf" in keys


def test_an_empty_run_still_has_a_page() -> None:
    run = run_of([])
    assert "unknown" in page([run])
    assert "unknown" in text_of(run_table(figures_of(run)))


class PageReader(HTMLParser):
    """Collects what a browser would load, show and run."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.charts = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [value for key in ("src", "href") if (value := found.get(key))]
        self.ids += [value for value in [found.get("id")] if value]
        if tag in ("script", "style"):
            self._inside = found.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "charts":
            self.charts += data
        elif not self._inside:
            self.text += data


def read_page(*runs: RunRecord) -> PageReader:
    reader = PageReader()
    reader.feed(page(list(runs)))
    return reader


def test_the_page_is_one_file_that_loads_nothing_and_draws_every_chart() -> None:
    reader = read_page(slow_run(), fast_run())
    assert reader.loads == []
    charts = json.loads(reader.charts)
    assert set(charts) == {
        "goodput", "ttft", "itl", "outcomes-before", "outcomes-after", "ttft-cdf", "itl-cdf",
    }  # fmt: skip
    assert {f"plot-{key}" for key in charts} <= set(reader.ids)
    shaded = [shape for shape in charts["ttft"]["layout"]["shapes"] if shape.get("fillcolor") == "shade"]
    assert [(shape["x0"], shape["x1"]) for shape in shaded] == [(2, 4)]


def test_the_page_labels_emulation_prints_definitions_and_the_seed() -> None:
    text = read_page(slow_run(), fast_run()).text
    assert "EMULATED ENGINES" in text
    assert "intended send time" in text
    assert "seed 1" in text
    assert "default → frozen" in text
    assert "+75.0 points" in text
    run = fast_run()
    run.emulated = False
    assert "EMULATED" not in read_page(run).text


def test_what_users_wrote_cannot_break_out_of_the_page() -> None:
    run = slow_run()
    run.label = "</script><script>alert(1)</script>"
    run.command = (run.notes[:] and "") or "tidegate load --label '<b>'"
    assert "<script>alert" not in page([run])
    assert "<b>'" not in page([run])
    reader = read_page(run)
    assert "</script><script>alert(1)</script>" in reader.text
    assert json.loads(reader.charts)["ttft"]["data"][0]["name"].startswith("&lt;/script&gt;")


def test_a_missing_plotly_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UnavailableError, match="plotly") as caught:
        page([slow_run()])
    assert caught.value.hint == 'pip install "tidegate[report]"'


def test_the_command_prints_a_table_json_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = slow_run(), fast_run()
    before.id, after.id = "a", "b"
    paths = [str(write_run(run, tmp_path)) for run in (before, after)]
    assert run_cli(["report", *paths, "--html", str(tmp_path / "deep" / "out.html")]) == ExitCode.OK
    assert "change" in capsys.readouterr().out
    assert (tmp_path / "deep" / "out.html").read_text().startswith("<!doctype html>")
    assert run_cli(["report", paths[0], "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["total"]["goodput_share"] == 0.25
    assert run_cli(["report", str(tmp_path / "none")]) == ExitCode.BAD_INPUT
    assert "is not a run" in capsys.readouterr().err
