"""The scheduler: what a step holds, who waits, who is preempted; and leaping is stepping."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile
from tidegate.traffic.histogram import Histogram
from tidegate.twin.cost import StepCost
from tidegate.twin.instance import Instance
from tidegate.twin.kv import Run
from tidegate.twin.sequence import ABORTED, DECODE, FINISHED, PREFILL, WAITING, Sequence, StepResult
from tidegate.twin.sglang import SglangInstance
from tidegate.twin.steplog import StepLog

SLO_ITL_S = 0.012
SMALL = EngineProfile(step_tokens=256, max_sequences=16, context_tokens=1024)
SMALL_SGLANG = EngineProfile(kind="sglang", step_tokens=256, max_sequences=16, context_tokens=1024)
KINDS = (Instance, SglangInstance)
COST = StepCost.for_profile(SMALL)
Event = tuple[float, str, int]


def instance(capacity_tokens: int = 4096, log: StepLog | None = None, profile: EngineProfile = SMALL) -> Instance:
    return Instance("engine-1", profile, COST, log, capacity_tokens=capacity_tokens)


def held_blocks(engine: Instance, sequences: list[Sequence]) -> int:
    """What the sequences hold between steps, by their own token counts."""
    runs: dict[int, Run] = {}
    blocks = 0
    for seq in sequences:
        if seq.state not in (PREFILL, DECODE):
            continue
        decoded = engine.generated(seq) - seq.generated_tokens if seq.state == DECODE else 0
        tokens = seq.computed_tokens + decoded
        blocks += -(-tokens // SMALL.block_tokens)
        for run in seq.runs:
            blocks -= run.blocks
            runs[id(run)] = run
    return blocks + sum(run.blocks for run in runs.values())


def run_out(engine: Instance, now: float = 0.0) -> Iterator[tuple[float, StepResult]]:
    """Steps until idle."""
    while (end_s := engine.begin_step(now)) >= 0.0:
        now = end_s
        yield now, engine.finish_step()


def decoding_from(engine: Instance) -> float:
    """Computes the prompt submitted at 0; returns when decoding begins."""
    now = 0.0
    while not engine.statistics().output_tokens:
        now = engine.begin_step(now)
        engine.finish_step()
    return now


class Drive:
    """Plays arrivals and aborts against an instance, by steps or by leaps, and notes every event."""

    def __init__(self, leap: bool, capacity_tokens: int, kind: type[Instance] = Instance) -> None:
        self.counts = Histogram()
        profile = SMALL if kind is Instance else SMALL_SGLANG
        log = StepLog([self.counts.counts], SLO_ITL_S)
        self.engine = kind("engine-1", profile, COST, log, capacity_tokens=capacity_tokens)
        self.leap = leap
        self.events: list[Event] = []
        self.token_times: dict[int, list[float]] = {}
        self.sequences: list[Sequence] = []

    def play(self, jobs: list[tuple[float, int, int, tuple[int, ...], float]]) -> None:
        """Jobs are (at_s, prompt, output, prefix hashes, abort after s or -1)."""
        plan: list[tuple[float, int, int]] = []
        for index, (at_s, prompt, output, hashes, patience_s) in enumerate(jobs):
            self.sequences.append(Sequence(index, prompt, output, hashes, 64))
            plan.append((at_s, 0, index))
            if patience_s >= 0:
                plan.append((at_s + patience_s, 1, index))
        for at_s, kind, index in sorted(plan):
            self._advance(at_s)
            if kind == 0:
                self.engine.submit(self.sequences[index], at_s)
            else:
                self.engine.abort(self.sequences[index], at_s)
            if not self.engine.in_step:
                self._begin(at_s)
        self._advance(float("inf"))

    def _begin(self, now: float) -> None:
        if self.leap:
            self.engine.begin_leap(now)
        else:
            self.engine.begin_step(now)

    def _advance(self, until_s: float) -> None:
        while self.engine.in_step and self.engine.step_end_s < until_s:
            now = self.engine.step_end_s
            result = self.engine.finish_step()
            for name in ("preempted", "first", "finished"):
                self.events += [(now, name, seq.key) for seq in getattr(result, name)]
            if not self.leap:
                for seq in result.tokens:
                    self.token_times.setdefault(seq.key, []).append(now)
            assert held_blocks(self.engine, self.sequences) == self.engine.pool.used
            assert sum(run.blocks for run in self.engine.pool.queue()) == self.engine.pool.free
            self._begin(now)


HASHES = st.lists(st.integers(1, 3), max_size=4).map(tuple)
JOB = st.tuples(
    st.floats(0, 2, allow_nan=False), st.integers(1, 700), st.integers(1, 300), HASHES,
    st.one_of(st.just(-1.0), st.floats(0, 3, allow_nan=False)),
)  # fmt: skip
JOBS = st.lists(JOB, min_size=1, max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@given(JOBS, st.integers(64, 400).map(lambda blocks: blocks * 16))
@settings(max_examples=150)
def test_leaping_gives_the_same_events_as_stepping(
    kind: type[Instance], jobs: list[tuple[float, int, int, tuple[int, ...], float]], capacity_tokens: int
) -> None:
    stepped, leapt = Drive(False, capacity_tokens, kind), Drive(True, capacity_tokens, kind)
    stepped.play(jobs)
    leapt.play(jobs)
    assert stepped.events == leapt.events
    assert stepped.counts.counts == leapt.counts.counts
    for one, other in zip(stepped.sequences, leapt.sequences, strict=True):
        fields = ("state", "generated_tokens", "gap_count", "gaps_over_slo", "longest_gap_s", "preemptions")
        assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]
    a, b = stepped.engine.statistics(), leapt.engine.statistics()
    assert (a.steps, a.preemptions, a.output_tokens, a.kv_peak_blocks) == (
        b.steps, b.preemptions, b.output_tokens, b.kv_peak_blocks,
    )  # fmt: skip
    assert a.model_flops == pytest.approx(b.model_flops)


@pytest.mark.parametrize("kind", KINDS)
@given(JOBS, st.integers(64, 400).map(lambda blocks: blocks * 16))
def test_everybody_ends_and_everything_is_given_back(
    kind: type[Instance], jobs: list[tuple[float, int, int, tuple[int, ...], float]], capacity_tokens: int
) -> None:
    drive = Drive(True, capacity_tokens, kind)
    drive.play(jobs)
    for seq, job in zip(drive.sequences, jobs, strict=True):
        assert seq.state == FINISHED or (seq.state == ABORTED and job[4] >= 0)
        assert seq.state == ABORTED or seq.generated_tokens == seq.output_tokens
    assert drive.engine.pool.free == drive.engine.pool.total
    seen = drive.engine.statistics()
    assert (seen.running, seen.waiting, seen.kv_used_blocks) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@given(JOBS, st.integers(64, 400).map(lambda blocks: blocks * 16))
def test_the_gaps_counted_are_those_a_reader_would_measure(
    kind: type[Instance], jobs: list[tuple[float, int, int, tuple[int, ...], float]], capacity_tokens: int
) -> None:
    drive = Drive(False, capacity_tokens, kind)
    drive.play(jobs)
    read = Histogram()
    unread = 0
    for seq in drive.sequences:
        times = drive.token_times.get(seq.key, [])
        gaps = [later - earlier for earlier, later in pairwise(times)]
        read.record_all(gaps)
        if seq.state == ABORTED:  # may be counted the gap of the step it left in
            assert seq.gap_count - len(gaps) in (0, 1)
            unread += seq.gap_count - len(gaps)
            continue
        assert seq.gap_count == len(gaps)
        assert seq.longest_gap_s == pytest.approx(max(gaps, default=0.0))
        assert seq.gaps_over_slo == sum(gap_s > SLO_ITL_S for gap_s in gaps)
    assert sum(drive.counts.counts.values()) == read.total + unread
    pooled = Histogram(drive.counts.counts)
    for percent in (10, 50, 90, 100):
        if read.total and not unread:
            assert pooled.percentile_s(percent) == pytest.approx(read.percentile_s(percent), rel=0.005)


def test_decodes_share_the_budget_with_one_chunk_of_a_long_prompt() -> None:
    engine = instance()
    engine.submit(Sequence(0, 100, 50), 0.0)
    engine.submit(Sequence(1, 600, 5), 0.0)
    steps = [result for _, result in run_out(engine)]
    assert [s.key for s in steps[0].first] == [0]
    # 256 - 100 tokens beside the first prompt, then 255 a step beside its decode: 156 + 255 + 189 = 600.
    assert [s.key for s in steps[2].first] == [1]
    assert all(0 in [s.key for s in step.tokens] for step in steps[:50])


def test_the_last_prompt_tokens_step_gives_the_first_token() -> None:
    engine = instance()
    engine.submit(Sequence(0, 10, 1), 0.0)
    (_, only), *rest = list(run_out(engine))
    assert [s.key for s in only.first] == [s.key for s in only.finished] == [0]
    assert not rest


def test_no_more_than_max_sequences_run() -> None:
    engine = instance(profile=EngineProfile(step_tokens=256, max_sequences=3, context_tokens=1024))
    for key in range(5):
        engine.submit(Sequence(key, 8, 4), 0.0)
    engine.begin_step(0.0)
    seen = engine.statistics()
    assert (seen.running, seen.waiting) == (3, 2)


def test_the_newest_is_preempted_and_resumes_before_those_who_wait() -> None:
    profile = EngineProfile(step_tokens=256, max_sequences=3, context_tokens=1024)
    engine = instance(capacity_tokens=1024, profile=profile)
    for key in range(4):
        engine.submit(Sequence(key, 330, 100), 0.0)
    preempted: list[int] = []
    finished: list[int] = []
    for _, result in run_out(engine):
        preempted += [s.key for s in result.preempted]
        finished += [s.key for s in result.finished]
    assert preempted[0] == 2
    assert finished == [0, 1, 2, 3]
    assert engine.statistics().preemptions == len(preempted)


def test_a_prompt_that_does_not_fit_whole_waits_though_its_first_chunk_would() -> None:
    engine = instance(capacity_tokens=1024)
    engine.submit(Sequence(0, 500, 100), 0.0)
    engine.submit(Sequence(1, 600, 5), 0.0)
    for _ in range(10):
        engine.begin_step(0.0)
        engine.finish_step()
    assert (engine.statistics().running, engine.statistics().waiting) == (1, 1)


def test_an_abort_takes_effect_at_the_end_of_the_step() -> None:
    engine = instance()
    seq = Sequence(0, 100, 50)
    engine.submit(seq, 0.0)
    end_s = engine.begin_step(0.0)
    engine.abort(seq, end_s / 2)
    assert engine.statistics().running == 1
    result = engine.finish_step()
    assert not result.first
    assert not result.finished
    assert seq.state == ABORTED
    assert engine.pool.free == engine.pool.total
    assert engine.begin_step(end_s) == -1.0


def test_an_arrival_shortens_a_leap_to_the_step_under_way() -> None:
    engine = instance()
    engine.submit(Sequence(0, 260, 700), 0.0)
    now = decoding_from(engine)
    far_s = engine.begin_leap(now)
    arrival_s = now + (far_s - now) / 2
    late = Sequence(1, 16, 4)
    engine.submit(late, arrival_s)
    ends_s = engine.step_end_s
    assert arrival_s <= ends_s < arrival_s + 0.02 < far_s
    engine.finish_step()
    assert late.state == WAITING
    engine.begin_step(ends_s)
    assert late.state == PREFILL


def test_a_shared_prefix_is_computed_once() -> None:
    engine = instance()
    hashes = (11, 12, 13)
    engine.submit(Sequence(0, 200, 2, hashes, 64), 0.0)
    list(run_out(engine))
    first = engine.statistics().computed_tokens
    engine.submit(Sequence(1, 200, 2, hashes, 64), 1.0)
    list(run_out(engine, 1.0))
    seen = engine.statistics()
    assert first == 200
    assert seen.computed_tokens == 200 + (200 - 192)
    assert (seen.prefix_query_tokens, seen.prefix_hit_tokens) == (400, 192)


def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache() -> None:
    engine = instance()
    for key in range(2):
        engine.submit(Sequence(key, 128, 2, (1, 2), 64), float(key))
        list(run_out(engine, float(key)))
    assert engine.statistics().computed_tokens == 128 + 64


def test_without_prefix_cache_nothing_is_reused() -> None:
    engine = instance(profile=EngineProfile(step_tokens=256, max_sequences=16, context_tokens=1024, prefix_cache=False))
    for key in range(2):
        engine.submit(Sequence(key, 200, 2, (1, 2, 3), 64), float(key))
        list(run_out(engine, float(key)))
    assert engine.statistics().computed_tokens == 400


@pytest.mark.parametrize(("prompt", "output", "words"), [(2000, 8, "2000 prompt tokens"), (1020, 8, "8 output tokens")])
def test_what_exceeds_the_context_is_refused_up_front(prompt: int, output: int, words: str) -> None:
    engine = instance()
    assert words in engine.refusal(prompt, output)
    with pytest.raises(ValueError, match="maximum context length is 1024"):
        engine.submit(Sequence(0, prompt, output), 0.0)
    assert engine.begin_step(0.0) == -1.0


def test_settings_no_engine_starts_with_are_refused() -> None:
    with pytest.raises(BadInputError, match="step_tokens 256 is below max_sequences 512"):
        instance(profile=EngineProfile(step_tokens=256, max_sequences=512, context_tokens=1024))
    with pytest.raises(BadInputError, match="512 tokens of KV cache hold no context of 1024"):
        instance(capacity_tokens=512)


def test_statistics_move_while_a_leap_is_under_way() -> None:
    engine = instance()
    engine.submit(Sequence(0, 260, 700), 0.0)
    now = decoding_from(engine)
    far_s = engine.begin_leap(now)
    early = engine.statistics(now + (far_s - now) * 0.1).kv_used_blocks
    late = engine.statistics(now + (far_s - now) * 0.9).kv_used_blocks
    assert early < late
    assert now < engine.progress_s(now + (far_s - now) * 0.5) < far_s
