"""When requests are sent: absolute schedules, fixed before a run.

In: phases and a seed's streams. Out: ascending send times in seconds since the run's start. Arrivals of a phase
come from a stream of their own, so changing one phase leaves the others' times as they are.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import BadInputError
from tidegate.rng import Stream, Streams
from tidegate.spec.traffic import PhaseSpec
from tidegate.traffic.record import PhaseMark

_NEVER: Final = 1e-9
"""Fewer expected arrivals than this are none; dividing by so small a rate would overflow."""


def marks_of(phases: list[PhaseSpec]) -> list[PhaseMark]:
    """Where each phase lies when they follow one another from 0."""
    marks: list[PhaseMark] = []
    start_s = 0.0
    for phase in phases:
        marks.append(PhaseMark(phase.name, start_s, start_s + phase.duration_s))
        start_s += phase.duration_s
    return marks


def send_times(phases: list[PhaseSpec], streams: Streams) -> list[tuple[float, str]]:
    """(send time, phase name) of every request, ascending."""
    times: list[tuple[float, str]] = []
    for number, (phase, mark) in enumerate(zip(phases, marks_of(phases))):
        stream = streams.stream(f"arrivals/{number}/{phase.name}")
        times.extend((mark.start_s + offset_s, phase.name) for offset_s in phase_offsets(phase, stream))
    return times


def phase_offsets(phase: PhaseSpec, stream: Stream) -> list[float]:
    """Send times of one phase, in seconds since its start, all below its duration."""
    if phase.rate * phase.duration_s < _NEVER:
        return []
    if phase.arrivals == "constant":
        return _constant(phase.rate, phase.duration_s)
    if phase.arrivals == "gamma":
        return _renewal(phase, stream, shape=1 / phase.burstiness**2)
    return _renewal(phase, stream, shape=1.0)


def _constant(rate: float, duration_s: float) -> list[float]:
    # Multiplied, not summed: a million additions of 1/rate drift, the schedule must not.
    count = int(duration_s * rate + 1)
    return [at_s for at_s in (number / rate for number in range(count)) if at_s < duration_s]


def _renewal(phase: PhaseSpec, stream: Stream, shape: float) -> list[float]:
    """Independent gamma gaps of mean 1 / rate; shape 1 is Poisson, 1 / cv² has a coefficient of variation cv."""
    times: list[float] = []
    scale_s = 1 / (phase.rate * shape)
    at_s = stream.exponential(phase.rate) if shape == 1.0 else stream.gamma(shape, scale_s)
    while at_s < phase.duration_s:
        times.append(at_s)
        at_s += stream.exponential(phase.rate) if shape == 1.0 else stream.gamma(shape, scale_s)
    return times


def pulsed(
    base: PhaseSpec, factor: float, pulse_s: float, first_at_s: float, every_s: float | None = None
) -> list[PhaseSpec]:
    """`base` with its rate multiplied by `factor` for `pulse_s`, first at `first_at_s`, then `every_s`.

    Returns alternating phases: `base.name`, `pulse`, `base.name` … whose durations sum to the base's. Raises
    `BadInputError` when a pulse does not fit or pulses overlap.
    """
    if pulse_s <= 0 or first_at_s + pulse_s > base.duration_s:
        raise BadInputError(
            f"a pulse of {pulse_s:g} s at {first_at_s:g} s does not fit into {base.duration_s:g} s",
            hint="lengthen the run, or start the pulse earlier",
        )
    if every_s is not None and every_s <= pulse_s:
        raise BadInputError(f"pulses of {pulse_s:g} s every {every_s:g} s overlap", hint="lengthen the period")
    phases: list[PhaseSpec] = []
    done_s, next_s = 0.0, first_at_s
    while next_s + pulse_s <= base.duration_s + 1e-9:
        _append(phases, base, base.name, next_s - done_s, base.rate)
        _append(phases, base, "pulse", pulse_s, base.rate * factor)
        done_s = next_s + pulse_s
        if every_s is None:
            break
        next_s += every_s
    _append(phases, base, base.name, base.duration_s - done_s, base.rate)
    return phases


def _append(phases: list[PhaseSpec], base: PhaseSpec, name: str, duration_s: float, rate: float) -> None:
    if duration_s > 1e-9:
        phases.append(
            PhaseSpec(
                name=name,
                duration_s=duration_s,
                rate=rate,
                arrivals=base.arrivals,
                burstiness=base.burstiness,
            )
        )
