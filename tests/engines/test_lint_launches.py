"""The two published launches: every finding, and a corrected script that the recorded parsers accept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.engines.fit import find_gpu, read_shape
from tidegate.engines.helptext import HelpOption
from tidegate.engines.lint import LintRequest, Report, Severity, lint_text
from tidegate.engines.optiontable import table
from tidegate.engines.scripts import read_launches
from tidegate.testing.launches import SGLANG, VLLM

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def lint(text: str, **request: object) -> Report:
    return lint_text(text, "launch.sh", LintRequest(**request))  # type: ignore[arg-type]


def told(report: Report, severity: Severity) -> set[tuple[str, str]]:
    """(rule, the source's own word at the place)."""
    source = SGLANG if "sglang" in report.judged[0] else VLLM
    lines = source.splitlines()
    words = {
        one: re.split(r"[\s=]", lines[one.line - 1][one.column - 1 :].removeprefix("export "))[0]
        for one in report.findings
    }
    return {(one.rule, words[one]) for one in report.findings if one.severity is severity}


def test_every_finding_about_the_vllm_launch_today() -> None:
    report = lint(VLLM, version="0.33.0")
    assert told(report, Severity.ERROR) == {("flag-with-value", "true"), ("option-removed", "--swap-space")}
    assert told(report, Severity.WARNING) == {
        ("env-legacy", "NCCL_NET_GDR_LEVEL"),
        ("env-removed", "VLLM_ATTENTION_BACKEND"),
        ("shutdown-cuts-streams", "vllm.entrypoints.openai.api_server"),
    }
    assert told(report, Severity.NOTE) == {
        ("env-not-read", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("entry-superseded", "vllm.entrypoints.openai.api_server"),
        ("default-restated", "--gpu-memory-utilization"),
        ("default-restated", "--disable-log-requests"),
        ("default-restated", "--port"),
    }


def test_the_release_before_also_lacks_disable_log_requests() -> None:
    report = lint(VLLM, version="0.32.0")
    assert told(report, Severity.ERROR) == {
        ("flag-with-value", "true"),
        ("option-removed", "--swap-space"),
        ("option-removed", "--disable-log-requests"),
    }
    gone = next(one for one in report.findings if "--disable-log-requests" in one.text)
    assert "gone since 0.17, and back in 0.33.0" in gone.text


def test_an_old_vllm_takes_the_launch_but_for_the_value_of_the_switch() -> None:
    report = lint(VLLM, version="0.8.5")
    assert told(report, Severity.ERROR) == {("flag-with-value", "true")}
    assert "VLLM_ATTENTION_BACKEND" in report.fixed


def test_every_finding_about_the_sglang_launch_today() -> None:
    report = lint(SGLANG, version="0.5.23")
    assert told(report, Severity.ERROR) == {("option-unknown", "--enable-radix-cache")}
    assert told(report, Severity.WARNING) == {
        ("env-legacy", "NCCL_NET_GDR_LEVEL"),
        ("metrics-off", "sglang.launch_server"),
    }
    assert told(report, Severity.NOTE) == {
        ("env-default", "CUDA_MODULE_LOADING"),
        ("entry-superseded", "sglang.launch_server"),
        ("option-abbreviated", "--tp"),
        ("below-default", "--chunked-prefill-size"),
        ("prefill-starves-decode", "sglang.launch_server"),
    }


def test_with_model_and_gpu_the_findings_of_the_flood_set_are_physical_too() -> None:
    shape = read_shape(LLAMA_70B)
    report = lint(VLLM, version="0.33.0", shape=shape, gpu=find_gpu("h100"))
    notes = told(report, Severity.NOTE)
    assert ("below-default", "--max-num-seqs") in notes
    assert ("default-restated", "--max-num-batched-tokens") in notes
    assert not [one for one in report.findings if one.rule in ("weights-do-not-fit", "headroom-small", "kv-too-small")]
    assert ("step-exceeds-itl", "--max-num-batched-tokens") in told(report, Severity.WARNING)


@pytest.mark.parametrize(("source", "engine", "version"), [
    (VLLM, "vllm", "0.33.0"), (VLLM, "vllm", "0.32.0"), (SGLANG, "sglang", "0.5.23"),
])  # fmt: skip
def test_the_fixed_script_is_one_the_recorded_help_accepts(
    source: str, engine: str, version: str, help_options: dict[tuple[str, str], list[HelpOption]]
) -> None:
    fixed = lint(source, version=version).fixed
    arity = {name: one.arity for one in help_options[engine, version] for name in (*one.names, *one.off)}
    words = [word.text for word in read_launches(fixed, "fixed.sh")[0].words]
    at = 0
    while at < len(words):
        assert words[at] in arity, f"{words[at]} is not in the help of {engine} {version}"
        at += 1 if arity[words[at]] == "none" else 2
    assert at == len(words)
    again = lint(fixed, version=version)
    assert not [one for one in again.findings if one.severity is Severity.ERROR or one.edits]


def test_the_fix_changes_only_what_it_names() -> None:
    fixed = lint(VLLM, version="0.33.0").fixed
    gone = [line for line in VLLM.splitlines() if line not in fixed.splitlines()]
    new = [line for line in fixed.splitlines() if line not in VLLM.splitlines()]
    assert gone == [
        "export NCCL_NET_GDR_LEVEL=5",
        "export VLLM_ATTENTION_BACKEND=FLASHINFER",
        "  --enable-chunked-prefill true \\",
        "  --swap-space 32 \\",
    ]
    assert new == [
        "export NCCL_NET_GDR_LEVEL=SYS",
        "  --attention-backend FLASHINFER \\",
        "  --enable-chunked-prefill \\",
    ]


def test_the_corrected_line_is_shown() -> None:
    report = lint(SGLANG, version="0.5.23")
    shown = {one.rule: one.corrected for one in report.findings}
    assert shown["option-abbreviated"] == "--tp-size 8"
    assert shown["metrics-off"] == "--enable-metrics"
    assert shown["option-unknown"] == ""


def test_the_help_of_an_installed_engine_overrules_the_version(
    help_options: dict[tuple[str, str], list[HelpOption]],
) -> None:
    swap = HelpOption(names=("--swap-space",), off=(), arity="one", choices=(), open_choices=False, default="4")
    patched = table("vllm").from_help([*help_options["vllm", "0.33.0"], swap], "0.33.0")
    report = lint(VLLM, version="0.33.0", installed=patched)
    assert told(report, Severity.ERROR) == {("flag-with-value", "true")}
    assert report.judged == ("the installed vllm",)


def test_the_launches_are_those_of_the_reference(shared_dir: Path) -> None:
    page = (shared_dir / "reference" / "engines.md").read_text("utf-8")
    for source in (VLLM, SGLANG):
        joined = " ".join(source.replace("\\\n", " ").split("\npython3 ", 1)[1].split())
        assert f"python3 {joined}".replace("--disable-log-requests --port 8000", "--disable-log-requests") in page
