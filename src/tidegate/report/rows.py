"""The rows of every table: title, value, how to print it, and which way is better.

One list serves the terminal, the comparison and the page, so that they never disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidegate.traffic.figures import Accounting, RunFigures

UNKNOWN: Final = "unknown"
HIGHER: Final = 1
LOWER: Final = -1
NEITHER: Final = 0

Value = float | int | None


class Row(NamedTuple):
    """One figure of a run."""

    group: str
    title: str
    value: Callable[[RunFigures], Value]
    show: Callable[[float, RunFigures], str]
    better: int
    slo: Callable[[RunFigures], float] | None = None
    """The SLO's bound on this figure, where it has one."""


def show(row: Row, figures: RunFigures) -> str:
    """The value as text; `unknown` where it is not known."""
    value = row.value(figures)
    return UNKNOWN if value is None else row.show(value, figures)


def meets(row: Row, figures: RunFigures) -> bool | None:
    """Whether the figure is within its SLO; `None` where there is no SLO, or no figure."""
    value = row.value(figures)
    return None if row.slo is None or value is None else value <= row.slo(figures)


def milliseconds(value_s: float, figures: RunFigures | None = None) -> str:
    """Seconds as people read latencies: `12.3 ms`, `812 ms`, `1.24 s`, `75.2 s`."""
    if value_s < 0.0995:
        return f"{value_s * 1e3:.1f} ms"
    if value_s < 0.9995:
        return f"{value_s * 1e3:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 9.995 else f"{value_s:.1f} s"


def bound(value_s: float) -> str:
    """An SLO as it was written: `50 ms`, `800 ms`, `1.2 s`."""
    return f"{value_s * 1e3:g} ms" if value_s < 1 else f"{value_s:g} s"


def count(value: float, figures: RunFigures | None = None) -> str:
    return f"{value:,.0f}"


def rate(value: float, figures: RunFigures | None = None) -> str:
    return f"{value:,.0f} /s" if value >= 100 else f"{value:.2f} /s"


def share(value: float, figures: RunFigures | None = None) -> str:
    return f"{value:.1%}"


def money(value: float, figures: RunFigures) -> str:
    return f"{value:,.2f} {figures.currency}"


def per_hour(value: float, figures: RunFigures | None = None) -> str:
    return f"{value:.2f} /h"


def accounting_line(accounting: Accounting) -> str:
    """Invariant 1 in numbers, and whether it holds."""
    right = (
        f"{accounting.completed} completed + {accounting.rejected} rejected + {accounting.errors} errors + "
        f"{accounting.cancelled} cancelled + {accounting.in_flight} in flight"
    )
    if accounting.sent is None:
        return f"sent unknown; {right}"
    verdict = "holds" if accounting.balanced else "DOES NOT HOLD"
    return f"{accounting.sent} sent = {right}: {verdict}"


def gain(row: Row, before: RunFigures, after: RunFigures) -> tuple[str, int]:
    """How much `after` changed, as text, and 1 better, -1 worse, 0 neither."""
    old, new = row.value(before), row.value(after)
    if old is None or new is None:
        return UNKNOWN, 0
    if old == new:
        return "same", 0
    direction = row.better * (1 if new > old else -1)
    if row.show is share:
        return f"{'+' if new > old else '−'}{abs(new - old) * 100:.1f} points", direction
    if old == 0 or new == 0:
        return f"{'+' if new > old else '−'}{row.show(abs(new - old), after)}", direction
    ratio = new / old
    if ratio >= 2:
        return f"{ratio:.1f}× higher", direction
    if ratio <= 0.5:
        return f"{1 / ratio:.1f}× lower", direction
    return f"{'+' if ratio > 1 else '−'}{abs(ratio - 1):.1%}", direction


ROWS: Final = (
    Row("Throughput", "Output tokens", lambda f: f.total.output_tokens_per_s, rate, HIGHER),
    Row("Throughput", "Requests completed", lambda f: f.total.requests_per_s, rate, HIGHER),
    Row("Goodput", "Within SLO, of all sent", lambda f: f.total.goodput_share, share, HIGHER),
    Row("Goodput", "Within SLO, per second", lambda f: f.total.goodput_per_s, rate, HIGHER),
    Row("TTFT", "P50", lambda f: f.total.ttft.p50_s, milliseconds, LOWER),
    Row("TTFT", "P90", lambda f: f.total.ttft.p90_s, milliseconds, LOWER),
    Row("TTFT", "P99", lambda f: f.total.ttft.p99_s, milliseconds, LOWER, lambda f: f.slo_ttft_s),
    Row("TTFT", "P99 from actual send", lambda f: f.total.ttft_from_send.p99_s, milliseconds, LOWER),
    Row("ITL", "P50", lambda f: f.total.itl.p50_s, milliseconds, LOWER),
    Row("ITL", "P99", lambda f: f.total.itl.p99_s, milliseconds, LOWER, lambda f: f.slo_itl_s),
    Row("Longest gap", "P50 over requests", lambda f: f.total.longest_gap.p50_s, milliseconds, LOWER),
    Row("Longest gap", "P99 over requests", lambda f: f.total.longest_gap.p99_s, milliseconds, LOWER),
    Row("TPOT", "P50", lambda f: f.total.tpot.p50_s, milliseconds, LOWER),
    Row("E2E", "P50 to last token", lambda f: f.total.e2e_last_token.p50_s, milliseconds, LOWER),
    Row("E2E", "P99 to last token", lambda f: f.total.e2e_last_token.p99_s, milliseconds, LOWER),
    Row("Requests", "Sent", lambda f: f.accounting.sent, count, NEITHER),
    Row("Requests", "Completed", lambda f: f.accounting.completed, count, HIGHER),
    Row("Requests", "Rejected, typed", lambda f: f.accounting.rejected, count, NEITHER),
    Row("Requests", "Errors, typed", lambda f: f.accounting.errors, count, LOWER),
    Row("Stability", "Crashes per instance-hour", lambda f: f.exits_per_instance_hour, per_hour, LOWER),
    Row("Stability", "Requests a crash failed", lambda f: f.crash_failed_share, share, LOWER),
    Row("Stability", "Preemptions", lambda f: f.preemptions, count, LOWER),
    Row("Efficiency", "MFU", lambda f: f.mfu, share, HIGHER),
    Row("Efficiency", "KV cache peak", lambda f: f.kv_peak_fraction, share, NEITHER),
    Row("Cost", "Per million output tokens", lambda f: f.cost_per_m_output, money, LOWER),
    Row("Cost", "Per million prompt tokens", lambda f: f.cost_per_m_prompt, money, LOWER),
)
