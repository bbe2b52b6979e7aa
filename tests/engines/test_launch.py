"""Profiles become commands that the engine of that version takes, and nothing changes without a sentence."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.helptext import HelpOption
from tidegate.engines.launch import Launch, launch
from tidegate.engines.optiontable import OptionSet, table
from tidegate.engines.profile import PROFILES, LaunchProfile, built_in, of_pool
from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile


def options_of(engine: str, version: str) -> OptionSet:
    return table(engine).options(version)


def names_of(made: Launch) -> list[str]:
    return [word for word in made.argv if word.startswith("--")]


def said(made: Launch, pattern: str) -> bool:
    return any(re.search(pattern, sentence) for sentence in made.adaptations)


def test_the_flood_profile_starts_on_the_present_vllm() -> None:
    made = launch(built_in("flood"), options_of("vllm", "0.33.0"))
    assert " ".join(made.argv[3:]) == (
        "--model /models/Meta-Llama-3-70B-Instruct --tensor-parallel-size 8 --dtype bfloat16 --kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.92 --max-num-batched-tokens 8192 --max-num-seqs 512 --max-model-len 8192 "
        "--block-size 16 --attention-backend FLASHINFER --port 8000 --enable-chunked-prefill"
    )
    assert "VLLM_ATTENTION_BACKEND" not in made.env
    assert made.env["NCCL_NET_GDR_LEVEL"] == "SYS"
    assert said(made, r"does not take --swap-space \(gone since 0\.18, ")
    assert said(made, "--disable-log-requests dropped")


def test_the_flood_profile_keeps_the_old_words_for_an_old_vllm() -> None:
    made = launch(built_in("flood"), options_of("vllm", "0.8.5"))
    assert "--swap-space" in made.argv
    assert "--disable-log-requests" in made.argv
    assert made.env["VLLM_ATTENTION_BACKEND"] == "FLASHINFER"
    assert said(made, "has no --attention-backend")


def test_long_chat_starts_on_the_present_sglang_and_can_be_watched() -> None:
    made = launch(built_in("long-chat"), options_of("sglang", "0.5.23"))
    assert "--enable-radix-cache" not in made.argv
    assert "--enable-metrics" in made.argv
    assert list(made.argv[made.argv.index("--tp-size") :][:2]) == ["--tp-size", "8"]
    assert said(made, "prefix cache on by default")


def test_a_profile_can_cross_to_the_other_engine() -> None:
    made = launch(built_in("flood"), options_of("sglang", "0.5.23"))
    assert list(made.argv[made.argv.index("--kv-cache-dtype") :][:2]) == ["--kv-cache-dtype", "fp8_e4m3"]
    assert not [name for name in made.env if name.startswith("VLLM_")]
    assert said(made, "VLLM_WORKER_MULTIPROC_METHOD belongs to another engine")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in made.env
    assert said(made, "swap_gib")


def test_defaults_says_nothing_to_the_engine() -> None:
    made = launch(LaunchProfile(model="m"), options_of("vllm", "0.33.0"))
    assert list(made.argv[3:]) == ["--model", "m"]
    assert made.env == {}


def test_the_installed_engine_is_the_judge_not_its_version(
    help_options: dict[tuple[str, str], list[HelpOption]],
) -> None:
    """A patched build that still takes --swap-space gets it, whatever its version says."""
    patched = [*help_options["vllm", "0.33.0"]]
    patched.append(
        HelpOption(names=("--swap-space",), off=(), arity="one", choices=(), open_choices=False, default="4")
    )
    made = launch(built_in("flood"), table("vllm").from_help(patched, "0.33.0"))
    assert list(made.argv[made.argv.index("--swap-space") :][:2]) == ["--swap-space", "32"]
    shorn = [one for one in help_options["vllm", "0.33.0"] if "--block-size" not in one.names]
    made = launch(built_in("flood"), table("vllm").from_help(shorn, "0.33.0"))
    assert "--block-size" not in made.argv
    assert said(made, "the installed vllm does not take --block-size")


def test_a_pool_of_tidegate_yaml_becomes_a_command() -> None:
    made = launch(of_pool(EngineProfile(kind="sglang", gpus=2), "/m"), options_of("sglang", "0.5.23"))
    assert {"--tp-size", "--quantization", "--context-length", "--page-size"} <= set(names_of(made))
    with pytest.raises(BadInputError, match=r"llama\.cpp"):
        of_pool(EngineProfile(kind="llamacpp"), "/m")


def test_missing_model_and_unknown_profile_are_refused() -> None:
    with pytest.raises(BadInputError, match="names no model"):
        launch(built_in("defaults"), options_of("vllm", "0.33.0"))
    with pytest.raises(BadInputError, match="no profile 'fast'"):
        built_in("fast")


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    engine=st.sampled_from(["vllm", "sglang"]),
    index=st.integers(0, 30),
)
def test_every_word_of_every_launch_is_taken_by_its_version(profile: str, engine: str, index: int) -> None:
    versions = table(engine).versions
    options = options_of(engine, versions[index % len(versions)])
    made = launch(msgspec.structs.replace(PROFILES[profile], model="m"), options)
    assert [name for name in names_of(made) if options.find(name) is None] == []
