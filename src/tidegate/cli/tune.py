"""`tidegate tune`: the settings of engine and gateway that keep the SLO, found in the twin."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from tidegate.cli.report import write_page
from tidegate.cli.tune_live import prove_on_emulated
from tidegate.errors import BadInputError, ExitCode
from tidegate.spec import ClusterSpec, SloSpec, load_spec
from tidegate.spec.lock import digest_of
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.schedule import plan
from tidegate.tune.explain import explanation, impossible
from tidegate.tune.outcome import RANKED, TuneReport, cells_of, proof_lines, report_of, with_proof
from tidegate.tune.page import page
from tidegate.tune.search import Found, Limits, Search
from tidegate.tune.space import Setting, Space, Value, applied, current, space_of
from tidegate.tune.study import Study
from tidegate.tune.trial import Case, Judge, TwinPool, TwinTrial
from tidegate.tune.verdict import Goal, Judged
from tidegate.units import format_duration, parse_duration_s

GOOD_STARTS: Final[tuple[Setting, ...]] = (
    {"step_tokens": 768, "max_sequences": 128, "max_in_flight": 128, "max_prefill_tokens": 8192},
    {"step_tokens": 1024, "max_sequences": 128, "max_in_flight": 128, "max_prefill_tokens": 8192},
)
"""Settings that were good elsewhere: a step that fits 50 ms, a batch that fits the step."""

SHOWN_KNOBS: Final = 3


def command(
    config: Annotated[Path, typer.Argument(help="The cluster and its traffic.")] = Path("tidegate.yaml"),
    budget: Annotated[str, typer.Option(help="Wall-clock for everything, as 30m; it is kept.")] = "30m",
    trials: Annotated[int, typer.Option(min=1, help="Settings to run before the best is refined.")] = 100,
    goal: Annotated[
        Literal["goodput", "cost"], typer.Option(help="Most goodput, or least cost per output token.")
    ] = "goodput",
    least_goodput: Annotated[
        float | None, typer.Option(min=0, max=1, help="Hard bound on goodput. [default: 0.95 for cost, else none]")
    ] = None,
    headroom: Annotated[
        float, typer.Option(min=0.1, max=1, help="Keep this share of the SLO: what the twin does not know.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="First seed. [default: the traffic's]")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=50, help="Seeds that a winner must hold on.")] = 3,
    slice_of: Annotated[str, typer.Option("--slice", help="What a trial plays, around the busiest phase.")] = "10m",
    free: Annotated[list[str] | None, typer.Option(help="Search this knob too: weights, kind, replicas.")] = None,
    fix: Annotated[list[str] | None, typer.Option(help="Leave this knob as it is.")] = None,
    knob: Annotated[list[str] | None, typer.Option(help="A knob's values, as step_tokens=512,1024.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 2,
    live: Annotated[
        Literal["emulated"] | None, typer.Option(help="Prove the shortlist on engines started here, behind a gateway.")
    ] = None,
    shortlist: Annotated[int, typer.Option(min=1, help="Settings to prove live.")] = 3,
    gpu_minutes: Annotated[float | None, typer.Option(min=0, help="GPU time for live trials; it is kept.")] = None,
    error: Annotated[
        float, typer.Option(min=0, help="What twin and live may differ by, as a share of the SLO; more stops.")
    ] = 0.3,
    study: Annotated[Path | None, typer.Option(help="Keep what was tried here; an interrupted tune goes on.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tuned cluster, the JSON and the page.")] = Path("runs"),
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write the page.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> ExitCode:
    """Find the engine and gateway settings that keep the SLO with the most goodput, or at the least cost.

    P99 TTFT, P99 ITL and no risk of running out of GPU memory are hard constraints. Exit 1: nothing keeps the SLO.
    """
    spec = _seeded(load_spec(config), seed)
    case = _case(spec, config.parent, headroom, goal, least_goodput, _duration(slice_of, "--slice"))
    plans = plan(spec.traffic, config.parent)
    space = _space(spec, plans, goal, free or [], fix or [], knob or [])
    limits = Limits(trials=trials, budget_s=_duration(budget, "--budget"), seed=spec.traffic.seed, seeds=seeds)
    reason = impossible(case.spec, plans)
    found = _nothing() if reason else _search(case, space, limits, current(spec), jobs, study)
    lines = [] if found.winner is not None else _explained(found, reason, case.spec, plans)
    every = range(limits.seed, limits.seed + seeds)
    report = report_of(found, space, current(spec), case.spec.slo, goal, every, lines)
    if live is not None and found.winner is not None:
        report = with_proof(report, prove_on_emulated(case, found, count=shortlist, gpu_minutes=gpu_minutes,
                                                      error=error, seed=limits.seed))  # fmt: skip
    folder = _write(report, spec, out, html)
    if json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(report, folder)
    return ExitCode.OK if report.winner is not None else ExitCode.FAILED


def _case(
    spec: ClusterSpec, base_dir: Path, headroom: float, goal: Goal, least_goodput: float | None, slice_s: float
) -> Case:
    least = least_goodput if least_goodput is not None else 0.95 if goal == "cost" else 0.0
    judged = _judged_by(spec, headroom)
    return Case(spec=judged, base_dir=base_dir, goal=goal, least_goodput=least, slice_s=slice_s)


def _space(
    spec: ClusterSpec, plans: list[PlannedRequest], goal: Goal, free: list[str], fix: list[str], knobs: list[str]
) -> Space:
    """Where cost is the goal, fewer instances are an answer too."""
    longest = max(one.prompt_tokens + one.output_tokens for one in plans)
    opened = [*free, *(["replicas"] if goal == "cost" else [])]
    return space_of(spec, longest, free=opened, fix=fix, only=_values(knobs))


def _seeded(spec: ClusterSpec, seed: int | None) -> ClusterSpec:
    if seed is None:
        return spec
    return msgspec.structs.replace(spec, traffic=msgspec.structs.replace(spec.traffic, seed=seed))


def _judged_by(spec: ClusterSpec, headroom: float) -> ClusterSpec:
    strict = SloSpec(ttft_s=spec.slo.ttft_s * headroom, itl_s=spec.slo.itl_s * headroom)
    return msgspec.structs.replace(spec, slo=strict) if headroom < 1 else spec


def _duration(text: str, option: str) -> float:
    try:
        value_s = parse_duration_s(text)
    except ValueError as exc:
        raise BadInputError(f"{option}: {exc}") from None
    if value_s <= 0:
        raise BadInputError(f"{option} {text} is no time at all", hint="for example 10m")
    return value_s


def _values(words: list[str]) -> dict[str, Sequence[Value]]:
    found: dict[str, Sequence[Value]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not values:
            raise BadInputError(f"--knob {word} names no values", hint="write for example step_tokens=512,1024")
        found[name] = [_value(value) for value in values.split(",")]
    return found


def _value(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _search(case: Case, space: Space, limits: Limits, start: Setting, jobs: int, path: Path | None) -> Found:
    anywhere = msgspec.structs.replace(case, base_dir=Path())
    study = Study(space, limits.seed, digest_of([space, msgspec.to_builtins(anywhere, enc_hook=str)]), path)
    if study.resumed:
        print(f"resumed: {len(study.known)} settings are known", file=sys.stderr)
    with _judge(case, jobs) as judge:
        search = Search(judge, space, study, limits, case.goal, _Meter())
        return search.run([start, *({**start, **one} for one in GOOD_STARTS)])


@contextmanager
def _judge(case: Case, jobs: int) -> Iterator[Judge]:
    if jobs == 1:
        yield TwinTrial(case)
        return
    with TwinPool(case, jobs) as pool:
        yield pool


class _Meter:
    """Progress on stderr: a line that rewrites itself on a terminal, a line every 20 settings elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._best: Judged | None = None

    def __call__(self, stage: str, known: int, judged: Judged | None) -> None:
        if judged is not None and judged.feasible and stage != "finals":
            self._best = judged if self._best is None or judged.goal > self._best.goal else self._best
        best = "none keeps the SLO yet" if self._best is None else f"best {cells_of(self._best)[0]}"
        line = f"{stage}: {known} judged in {format_duration(time.monotonic() - self._began_s)}, {best}"
        if self._live:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif known % 20 == 0:
            print(line, file=sys.stderr)


def _nothing() -> Found:
    return Found(
        ranking=[], winner=None, finals=[], neighbours=[], importance={}, evaluations=0, ended="infeasible", wall_s=0.0
    )


def _explained(found: Found, reason: str, spec: ClusterSpec, plans: list[PlannedRequest]) -> list[str]:
    """Why there is no winner."""
    if found.ended == "budget" and any(one.feasible for one in found.ranking):
        return ["the budget ended before a finalist was proved on every seed; give more --budget or fewer --seeds"]
    if found.finals:
        return [f"{len(found.finals)} finalists kept the SLO on the slice, none on every seed of the whole scenario",
                f"the nearest: {found.finals[0].why}", *explanation(spec, plans)]  # fmt: skip
    lines = [reason] if reason else []
    ran = [one for one in found.ranking if one.ran]
    if ran:
        lines.append(f"the nearest of {len(ran)} settings run: {ran[0].why}")
    elif found.ranking:
        lines.append(f"no setting can start: {found.ranking[0].why}")
    return lines + explanation(spec, plans)


def _write(report: TuneReport, spec: ClusterSpec, out: Path, html: bool) -> Path:
    folder = out / f"tune-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    write_page(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n", folder / "tune.json")
    if html:
        write_page(page(report), folder / "tune.html")
    if report.winner is not None:
        tuned = applied(spec, report.winner.setting)
        text = yaml.safe_dump(msgspec.to_builtins(tuned), sort_keys=False, allow_unicode=True)
        head = f"# Written by tidegate tune, seed {report.seed}. Lock it: tidegate freeze -c tidegate.yaml\n"
        write_page(head + text, folder / "tidegate.yaml")
    return folder


def _show(report: TuneReport, folder: Path) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    console = Console(soft_wrap=True, highlight=False)
    console.print(_ranking(report))
    for line in report.explanation:
        console.print(line)
    if report.winner is not None:
        console.print(_winner(report))
        for one in report.neighbours:
            console.print(f"  {one.knob} {one.value}: {one.why}", style="dim")
    for line in proof_lines(report):
        console.print(line)
    console.print(
        f"{report.evaluations} of {report.points:,} settings run in {format_duration(report.wall_s)}"
        f" (ended: {report.ended}); written to {folder}"
    )


def _ranking(report: TuneReport) -> Table:
    """The knobs that matter most and differ among the best; the page has all."""
    best = report.ranking[:RANKED]
    differing = [name for name in report.free if len({one.setting[name] for one in best}) > 1]
    shown = sorted(differing, key=lambda name: -report.importance.get(name, 0.0))[:SHOWN_KNOBS]
    table = Table(title=f"the best {len(best)}, on the slice", title_justify="left", show_edge=False)
    for name in ("goodput", "P99 TTFT", "P99 ITL", *shown):
        table.add_column(name, justify="right")
    table.add_column("why not", overflow="fold")
    for one in best:
        goodput, ttft, itl, why = cells_of(one)
        table.add_row(goodput, ttft, itl, *(str(one.setting[name]) for name in shown), why)
    return table


def _winner(report: TuneReport) -> Table:
    winner = report.winner
    assert winner is not None
    goodput = "unknown" if winner.results.goodput is None else f"{winner.results.goodput:.1%}"
    table = Table(title=f"winner: goodput {goodput} on the worst of {len(winner.seeds)} seeds", title_justify="left",
                  show_edge=False)  # fmt: skip
    for name in ("knob", "winner", "before", "importance"):
        table.add_column(name)
    for name in report.free:
        share = report.importance.get(name)
        now, before = winner.setting[name], report.start[name]
        table.add_row(name, f"[bold]{now}[/]" if now != before else str(now), str(before),
                      "unknown" if share is None else f"{share:.0%}")  # fmt: skip
    return table
