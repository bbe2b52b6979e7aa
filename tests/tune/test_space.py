"""The space of settings: the present one is in it, a setting becomes a cluster, equal effects are one setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadInputError
from tidegate.spec import AdmissionSpec, ClusterSpec, EngineProfile, GatewaySpec, InstanceSpec, PhaseSpec, PoolSpec
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import PhaseMark
from tidegate.tune.space import Setting, applied, current, key_of, space_of
from tidegate.tune.trial import sliced
from tidegate.tune.verdict import oom_risk


def cluster(admission: AdmissionSpec | None = None, **engine: object) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://10.0.0.{number}:8000") for number in (1, 2)]
    pool = PoolSpec(model="llama", instances=urls, engine=EngineProfile(**engine))  # type: ignore[arg-type]
    return ClusterSpec(pools=[pool], gateway=GatewaySpec(admission=admission or AdmissionSpec()))


SPACE = space_of(cluster(), 9000)
INDICES = st.fixed_dictionaries({knob.name: st.integers(0, len(knob.values) - 1) for knob in SPACE.free})


def test_the_present_configuration_is_a_point_of_the_space() -> None:
    spec = cluster(AdmissionSpec(max_prefill_tokens=5000, max_in_flight=60), step_tokens=900, max_sequences=77)
    space = space_of(spec, 9000)
    start = space.settled(space.nearest(current(spec)))
    assert start == current(spec)
    assert applied(spec, start) == spec


@given(INDICES)
def test_settings_and_positions_are_the_same_thing(indices: dict[str, int]) -> None:
    assert SPACE.indices(SPACE.setting(indices)) == indices


@given(INDICES)
def test_settings_with_the_same_effect_are_one(indices: dict[str, int]) -> None:
    setting = SPACE.setting(indices)
    settled = SPACE.settled(setting)
    assert applied(cluster(), settled) == applied(cluster(), setting)
    assert SPACE.settled(settled) == settled
    keys = {key_of(one) for _, one in SPACE.neighbours(settled)}
    assert key_of(settled) not in keys


def test_all_gpus_are_used_whatever_the_size_of_an_instance() -> None:
    for gpus, count in ((8, 2), (4, 4), (2, 8)):
        pool = applied(cluster(), {"gpus": gpus}).pools[0]
        assert (pool.engine.gpus, len(pool.instances), len({one.url for one in pool.instances})) == (gpus, count, count)


def test_sizes_that_leave_gpus_idle_are_not_offered() -> None:
    """Twelve GPUs are not two instances of eight."""
    urls = [InstanceSpec(url=f"http://10.0.0.{number}:8000") for number in (1, 2, 3)]
    spec = ClusterSpec(pools=[PoolSpec(model="llama", instances=urls, engine=EngineProfile(gpus=4))])
    sizes = next(knob.values for knob in space_of(spec, 9000).knobs if knob.name == "gpus")
    assert 4 in sizes
    assert 8 not in sizes


def test_the_gateway_holds_no_more_than_the_engine_runs() -> None:
    spec = applied(cluster(), {"max_sequences": 64, "max_in_flight": 512})
    assert spec.gateway.admission.max_in_flight == 64
    assert spec.gateway.admission.enabled


def test_other_answers_and_another_engine_are_not_searched_unasked() -> None:
    assert {"weights", "kind", "replicas"}.isdisjoint(knob.name for knob in SPACE.free)
    freed = space_of(cluster(), 9000, free=["weights"], fix=["gpus"], only={"step_tokens": [512, 768]})
    found = {knob.name: knob.values for knob in freed.free}
    assert set(found["weights"]) == {"bf16", "fp8"}
    assert found["step_tokens"] == (512, 768)
    assert "gpus" not in found


def test_an_unknown_knob_is_named_with_those_there_are() -> None:
    with pytest.raises(BadInputError, match="there is no knob 'warp'") as caught:
        space_of(cluster(), 9000, fix=["warp"])
    assert "step_tokens" in caught.value.hint


def test_a_context_that_the_traffic_does_not_need_may_be_capped() -> None:
    contexts = next(knob.values for knob in SPACE.knobs if knob.name == "context_tokens")
    assert contexts == (9216, 16384)


@pytest.mark.parametrize(
    ("fraction", "risky"), [(0.85, False), (0.92, False), (0.945, True), (0.97, True), (0.99, True)]
)
def test_memory_without_room_is_a_risk(fraction: float, risky: bool) -> None:
    """Operators saw 0.97 and 0.99 die under load (operators.md row 2); 0.92 is vLLM's own default."""
    assert bool(oom_risk(EngineProfile(memory_fraction=fraction))) == risky


def test_sglangs_fraction_must_leave_room_for_activations() -> None:
    large = EngineProfile(kind="sglang", memory_fraction=0.92, step_tokens=16384)
    assert "out-of-memory risk" in oom_risk(large)
    assert not oom_risk(EngineProfile(kind="sglang", memory_fraction=0.85, step_tokens=4096))


def test_the_slice_holds_the_pulse() -> None:
    plans = [PlannedRequest(i, i * 0.5 if i < 200 else 100 + (i - 200) * 0.1, 100, 10) for i in range(400)]
    plans += [PlannedRequest(400 + i, 120 + i * 0.5, 100, 10) for i in range(200)]
    marks = [PhaseMark("steady", 0, 100), PhaseMark("pulse", 100, 120), PhaseMark("after", 120, 220)]
    kept, inside = sliced(plans, marks, 60)
    assert [mark.name for mark in inside] == ["steady", "pulse", "after"]
    assert inside[1] == PhaseMark("pulse", 20, 40)
    assert inside[-1].end_s == 60
    assert sum(20 <= one.at_s < 40 for one in kept) == 200
    assert kept[0].at_s >= 0
    assert sliced(plans, marks, 500) == (plans, marks)


def test_phases_of_a_spec_are_kept_whole_when_they_are_short() -> None:
    phase = PhaseSpec(name="p", duration_s=5, rate=2)
    assert sliced([PlannedRequest(0, 1.0, 10, 10)], [PhaseMark(phase.name, 0, 5)], 600)[1][0].end_s == 5


def test_the_order_of_knobs_does_not_make_another_setting() -> None:
    setting: Setting = {"b": 1, "a": 0.5}
    assert key_of(setting) == key_of(dict(reversed(setting.items())))
