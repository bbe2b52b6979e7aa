"""A diff says all that differs, nothing else, what it is about and what it does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spec import ClusterSpec, EngineProfile, GatewaySpec, InstanceSpec, PhaseSpec, PoolSpec, TrafficSpec
from tidegate.spec.lock import Lock, canonical
from tidegate.tune.difference import ABSENT, Difference, compare, differences, flat, from_defaults, with_effects
from tidegate.tune.freeze import Known, freeze

WRITTEN = "2026-01-31T08:15:00Z"


def cluster(gateway: GatewaySpec | None = None, **engine: Any) -> ClusterSpec:
    urls = [InstanceSpec(url=f"http://10.0.0.{number}:8000", name=f"node-{number}") for number in (1, 2)]
    pool = PoolSpec(model="llama", instances=urls, engine=EngineProfile(**engine))
    traffic = TrafficSpec(warmup_requests=0, phases=[PhaseSpec(name="pulse", duration_s=20, rate=25)])
    return ClusterSpec(pools=[pool], traffic=traffic, gateway=gateway or GatewaySpec())


def lock(version: str = "0.33.0", **engine: Any) -> Lock:
    return freeze(cluster(**engine), {"llama": Known(version=version)}, written=WRITTEN)


def by_name(found: list[Difference]) -> dict[str, Difference]:
    return {one.name: one for one in found}


LEAVES = st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=2)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "options", "env", "x", "y"]), inner, max_size=4)
        | st.lists(st.fixed_dictionaries({"name": st.sampled_from("abc"), "v": inner}), max_size=3)
    ),
    max_leaves=10,
).map(lambda value: {"root": value})


@given(DOCUMENTS)
def test_a_document_does_not_differ_from_itself(document: Any) -> None:
    assert compare(document, copy.deepcopy(document)) == []


@given(DOCUMENTS, DOCUMENTS)
def test_the_differences_turn_one_side_into_the_other(left: Any, right: Any) -> None:
    turned = flat(left)
    for one in compare(left, right):
        assert turned.get(one.path, ABSENT) == one.left
        if one.right is ABSENT:
            del turned[one.path]
        else:
            turned[one.path] = one.right
    assert turned == flat(right)
    assert {one.path: type(value) for one in compare(left, right) for value in [one.right]} == {
        one.path: type(value) for one in compare(right, left) for value in [one.left]
    }


@given(DOCUMENTS, DOCUMENTS)
def test_equal_values_are_exactly_those_without_differences(left: Any, right: Any) -> None:
    if canonical(left) == canonical(right):
        assert compare(left, right) == []
    elif compare(left, right) == []:
        assert canonical(sorted_lists(left)) == canonical(sorted_lists(right)), "only the order of named entries"


def sorted_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted_lists(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((sorted_lists(each) for each in value), key=canonical)
    return value


def test_one_changed_setting_is_told_in_profile_and_command_line() -> None:
    found = by_name(differences(lock(step_tokens=2048), lock(step_tokens=1024)))
    assert list(found) == [
        "cluster.pools[llama].engine.step_tokens",
        "engines[llama].options[--max-num-batched-tokens]",
    ]
    profile = found["cluster.pools[llama].engine.step_tokens"]
    assert (profile.left, profile.right) == (2048, 1024)
    assert "Token budget of one scheduler step" in profile.about
    assert "command line" in found["engines[llama].options[--max-num-batched-tokens]"].about


def test_an_entry_put_in_front_changes_only_itself() -> None:
    one = lock()
    urls = [InstanceSpec(url="http://10.0.0.9:8000", name="node-9"), *one.cluster.pools[0].instances]
    pools = [msgspec.structs.replace(one.cluster.pools[0], instances=urls)]
    other = msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, pools=pools))
    assert {part.path[3] for part in differences(one, other)} == {"instances"}
    assert {part.path[4] for part in differences(one, other)} == {"[node-9]"}


def test_against_the_defaults_only_what_was_set_is_told() -> None:
    assert from_defaults(lock()) == []
    found = from_defaults(lock(max_sequences=128))
    assert [(one.name, one.left, one.right) for one in found] == [
        ("cluster.pools[llama].engine.max_sequences", 1024, 128)
    ]


def test_each_difference_is_simulated_alone() -> None:
    """The step budget is what mends the gaps here; the listen address is none of the twin's business."""
    left = lock(step_tokens=8192)
    right = lock(step_tokens=1024, gateway=GatewaySpec(listen="0.0.0.0:80"))
    results, told = with_effects(left.cluster, differences(left, right), Path())
    found = by_name(told)
    effect = found["cluster.pools[llama].engine.step_tokens"].effect
    assert effect is not None
    assert effect.itl_p99_s is not None
    assert results.itl_p99_s is not None
    assert effect.itl_p99_s < 0.06 < results.itl_p99_s
    assert found["cluster.gateway.listen"].effect is None


def test_a_change_that_would_not_start_alone_says_so() -> None:
    left, right = lock(), lock(step_tokens=512, max_sequences=256)
    _, told = with_effects(left.cluster, differences(left, right), Path())
    note = by_name(told)["cluster.pools[llama].engine.step_tokens"].effect_note
    assert "would not start" in note
    assert "1024 sequences" in note or "max_sequences" in note
