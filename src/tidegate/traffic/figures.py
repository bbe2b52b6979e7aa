"""Every figure of a run, computed from its record (`report.definitions` says each in words).

In: a `RunRecord`. Out: `RunFigures` (seconds, shares in [0, 1], counts, money). What is not known is `None`.
Requests count where their *intended* send time lies in the measured window; tokens and completions count
where they happened in it. Nothing here reads anything but the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from tidegate.errors import Outcome
from tidegate.traffic import fleet
from tidegate.traffic.gappool import length_class
from tidegate.traffic.histogram import Histogram
from tidegate.traffic.record import PhaseMark, RequestRecord, RunRecord

CLASSES = ("short", "mixed", "long")
GAPS_WITHIN_SLO_SHARE = 0.99
"""A request meets the ITL part of the SLO when at least this share of its gaps is within it."""

Span = tuple[float, float]


class Spread(Struct, frozen=True):
    """A distribution of durations in seconds: nearest-rank percentiles, `None` where nothing was seen."""

    count: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of one scope: a whole run, one phase of it, or one length class."""

    sent: int
    """Unfinished requests included, so that they count against goodput."""
    outcomes: dict[str, int]
    """Requests per `Outcome`, by name; only outcomes that occurred."""
    duration_s: float
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    requests_per_s: float | None
    goodput_share: float | None
    goodput_per_s: float | None
    ttft: Spread
    ttft_from_send: Spread
    ttft_visible: Spread
    itl: Spread
    gap: Spread
    longest_gap: Spread
    tpot: Spread
    e2e_last_token: Spread
    e2e_end: Spread

    @property
    def completed(self) -> int:
        return self.outcomes.get(Outcome.COMPLETED.value, 0)


class Accounting(Struct, frozen=True):
    """Invariant 1. `balanced` is `None` when the run did not count what it sent apart from how it ended."""

    sent: int | None
    completed: int
    rejected: int
    errors: int
    cancelled: int
    in_flight: int
    balanced: bool | None


class RunFigures(Struct, frozen=True, kw_only=True):
    """A run's figures as reports print and tools read them."""

    id: str
    label: str
    kind: str
    emulated: bool
    slo_ttft_s: float
    slo_itl_s: float
    total: Figures
    phases: dict[str, Figures]
    classes: dict[str, Figures]
    accounting: Accounting
    exits_per_instance_hour: float | None
    crash_failed_share: float | None
    preemptions: int | None
    mfu: float | None
    kv_peak_fraction: float | None
    text_faults: int
    """Answers whose text was verified and found wrong: lost, repeated or foreign tokens."""
    cost_per_m_output: float | None
    cost_per_m_prompt: float | None
    currency: str
    client_lag_p99_s: float | None
    client_bound: bool
    client_bound_why: str
    interrupted: bool
    notes: list[str] = field(default_factory=list)


def figures_of(run: RunRecord) -> RunFigures:
    """All figures of a run."""
    window = [run.window_s]
    measured = [r for r in run.requests if run.window_s[0] <= r.plan.at_s <= run.window_s[1]]
    total = _figures(run, measured, measured, window, None)
    return RunFigures(
        id=run.id,
        label=run.label,
        kind=run.kind,
        emulated=run.emulated,
        slo_ttft_s=run.slo_ttft_s,
        slo_itl_s=run.slo_itl_s,
        total=total,
        phases=_by_phase(run, measured),
        classes=_by_class(run, measured),
        accounting=accounting_of(run),
        exits_per_instance_hour=fleet.exits_per_instance_hour(run),
        crash_failed_share=fleet.crash_failed_share(run, measured),
        preemptions=fleet.preemptions(run.instances),
        mfu=fleet.mfu(run),
        kv_peak_fraction=fleet.kv_peak_fraction(run.instances),
        text_faults=sum(bool(record.text_fault) for record in run.requests),
        cost_per_m_output=fleet.cost_per_million(run, total.output_tokens_per_s, 1.0 - run.prompt_cost_share),
        cost_per_m_prompt=fleet.cost_per_million(run, total.prompt_tokens_per_s, run.prompt_cost_share),
        currency=run.currency,
        client_lag_p99_s=run.client_lag_p99_s,
        client_bound=run.client_bound,
        client_bound_why=run.client_bound_why,
        interrupted=run.interrupted,
        notes=run.notes,
    )


def meets_slo(record: RequestRecord, ttft_s: float, itl_s: float) -> bool:
    """Completed, TTFT within the SLO and at least 99 % of gaps within the ITL.

    A whole (non-streamed) answer shows its reader no first token: it meets the SLO when it is there as
    soon as a stream that just keeps the SLO would have ended, `ttft + itl × (output tokens − 1)`.
    """
    if record.outcome is not Outcome.COMPLETED:
        return False
    if not record.plan.stream:
        allowed_s = ttft_s + itl_s * max(0, record.output_tokens - 1)
        return record.end_s is not None and record.end_s - record.plan.at_s <= allowed_s
    first = record.ttft_s
    if first is None or first > ttft_s:
        return False
    within = record.gap_count - record.gaps_over_slo
    return within >= GAPS_WITHIN_SLO_SHARE * record.gap_count


def accounting_of(run: RunRecord) -> Accounting:
    """Checks sent = completed + rejected + errors + cancelled + in flight, over the whole run."""
    groups = Counter(record.outcome.group for record in run.requests)
    ended = sum(groups.values())
    return Accounting(
        sent=run.sent,
        completed=groups["completed"],
        rejected=groups["rejected"],
        errors=groups["error"],
        cancelled=groups["cancelled"],
        in_flight=run.in_flight,
        balanced=None if run.sent is None else run.sent == ended + run.in_flight,
    )


def phase_marks(run: RunRecord) -> list[PhaseMark]:
    """The run's phases in time; taken from intended send times where the run did not note them."""
    if run.phases:
        return run.phases
    marks: list[PhaseMark] = []
    for record in sorted(run.requests, key=lambda r: r.plan.at_s):
        name, at_s = record.plan.phase, record.plan.at_s
        if marks and marks[-1].name == name:
            marks[-1] = PhaseMark(name, marks[-1].start_s, at_s)
        else:
            marks.append(PhaseMark(name, at_s, at_s))
    return [mark for mark in marks if mark.name]


def spread_of(histogram: Histogram) -> Spread:
    """Percentiles of a histogram."""
    return Spread(
        histogram.total,
        histogram.percentile_s(50),
        histogram.percentile_s(90),
        histogram.percentile_s(99),
        histogram.maximum_s(),
    )


def itl_divisor(record: RequestRecord) -> float:
    """Tokens per token-carrying chunk of one answer: 1 unless `usage` counts more tokens than chunks came.

    Chunks do not say how many tokens they carry; the answer's mean is used for each of them.
    """
    if not record.usage_known or not record.gap_count:
        return 1.0
    return max(1.0, record.output_tokens / (record.gap_count + 1))


def _by_phase(run: RunRecord, measured: list[RequestRecord]) -> dict[str, Figures]:
    spans: dict[str, list[Span]] = {}
    for mark in phase_marks(run):
        start_s, end_s = max(mark.start_s, run.window_s[0]), min(mark.end_s, run.window_s[1])
        spans.setdefault(mark.name, []).append((start_s, max(start_s, end_s)))
    return {
        name: _figures(run, [r for r in measured if r.plan.phase == name], measured, spans[name], (name, None))
        for name in spans
    }


def _by_class(run: RunRecord, measured: list[RequestRecord]) -> dict[str, Figures]:
    found: dict[str, list[RequestRecord]] = {name: [] for name in CLASSES}
    for record in measured:
        found[length_class(record.plan.prompt_tokens)].append(record)
    return {
        name: _figures(run, members, members, [run.window_s], (None, name))
        for name, members in found.items()
        if members
    }


def _figures(
    run: RunRecord,
    members: list[RequestRecord],
    everyone: list[RequestRecord],
    spans: list[Span],
    group: tuple[str | None, str | None] | None,
) -> Figures:
    """`members` are judged (latency, goodput); what `everyone` delivered inside `spans` is the throughput."""
    duration_s = sum(end_s - start_s for start_s, end_s in spans)
    good = sum(meets_slo(record, run.slo_ttft_s, run.slo_itl_s) for record in members)
    sent = len(members) + (run.in_flight if group is None else 0)
    done = [record for record in everyone if record.outcome is Outcome.COMPLETED]
    itl, gap = _gap_spreads(run, members, group)
    return Figures(
        sent=sent,
        outcomes=_outcomes(members),
        duration_s=duration_s,
        output_tokens_per_s=_rate(sum(_output_inside(r, spans) for r in done), duration_s),
        prompt_tokens_per_s=_rate(sum(_prompt_inside(r, spans) for r in done), duration_s),
        requests_per_s=_rate(sum(_inside(r.end_s, spans) for r in done), duration_s),
        goodput_share=good / sent if sent else None,
        goodput_per_s=_rate(good, duration_s),
        ttft=_spread(record.ttft_s for record in members),
        ttft_from_send=_spread(_between(r.sent_s, r.first_token_s) for r in members),
        ttft_visible=_spread(_between(r.plan.at_s, r.first_visible_s) for r in members),
        itl=itl,
        gap=gap,
        longest_gap=_spread(r.longest_gap_s for r in members if r.gap_count),
        tpot=_spread(_tpot_s(record) for record in members),
        e2e_last_token=_spread(_between(r.plan.at_s, r.last_token_s) for r in _completed(members)),
        e2e_end=_spread(_between(r.plan.at_s, r.end_s) for r in _completed(members)),
    )


def _outcomes(members: Iterable[RequestRecord]) -> dict[str, int]:
    counts = Counter(record.outcome for record in members)
    return {outcome.value: counts[outcome] for outcome in Outcome if counts[outcome]}


def _completed(members: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [record for record in members if record.outcome is Outcome.COMPLETED]


def _spread(durations_s: Iterable[float | None]) -> Spread:
    histogram = Histogram()
    histogram.record_all(duration for duration in durations_s if duration is not None)
    return spread_of(histogram)


def _gap_spreads(
    run: RunRecord, members: list[RequestRecord], group: tuple[str | None, str | None] | None
) -> tuple[Spread, Spread]:
    """(ITL, gap). Raw gaps where the run kept them, else its pooled histograms."""
    itl, gap = Histogram(), Histogram()
    for record in members:
        seconds = [milliseconds * 1e-3 for milliseconds in record.gaps_ms]
        tokens = itl_divisor(record)
        gap.record_all(seconds)
        itl.record_all(seconds if tokens == 1.0 else [gap_s / tokens for gap_s in seconds])
    if gap.total == 0:
        gap = _pooled(run, group)
        itl = gap
    return spread_of(itl), spread_of(gap)


def _pooled(run: RunRecord, group: tuple[str | None, str | None] | None) -> Histogram:
    if group is None:
        return Histogram(run.gaps)
    wanted_phase, wanted_class = group
    merged = Histogram()
    for key, counts in run.gaps_by_group.items():
        phase, _, length = key.rpartition("/")
        if wanted_phase in (None, phase) and wanted_class in (None, length):
            merged.merge(counts)
    return merged


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s


def _tpot_s(record: RequestRecord) -> float | None:
    span_s = _between(record.first_token_s, record.last_token_s)
    if span_s is None or not record.usage_known or record.output_tokens < 2 or not record.plan.stream:
        return None
    return span_s / (record.output_tokens - 1)


def _rate(amount: float, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None


def _inside(instant_s: float | None, spans: Sequence[Span]) -> bool:
    return instant_s is not None and any(start_s <= instant_s <= end_s for start_s, end_s in spans)


def _output_inside(record: RequestRecord, spans: Sequence[Span]) -> float:
    """Output tokens inside the spans; an answer across an edge counts by the share of its stream inside."""
    first_s, last_s = record.first_token_s, record.last_token_s
    if not record.plan.stream or first_s is None or last_s is None or last_s <= first_s:
        end_s = record.end_s if last_s is None or not record.plan.stream else last_s
        return record.output_tokens if _inside(end_s, spans) else 0
    overlap_s = sum(max(0.0, min(last_s, end) - max(first_s, start)) for start, end in spans)
    return record.output_tokens * overlap_s / (last_s - first_s)


def _prompt_inside(record: RequestRecord, spans: Sequence[Span]) -> int:
    """A prompt counts where its first token came (its prefill was done), else where the answer ended."""
    done_s = record.end_s if record.first_token_s is None else record.first_token_s
    return record.prompt_tokens if _inside(done_s, spans) else 0
