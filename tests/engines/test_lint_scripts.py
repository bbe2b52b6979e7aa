"""Launches in the wild: every form of script is read, judged at the right place and mended in its own style."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.lint import RULES, Finding, LintRequest, Report, Severity, lint_text
from tidegate.engines.lint.sarif import sarif
from tidegate.engines.optiontable import table
from tidegate.engines.scripts import read_launches
from tidegate.errors import BadInputError, TidegateError


def lint(text: str, name: str = "launch.sh", version: str | None = "0.33.0") -> Report:
    return lint_text(text, name, LintRequest(version=version))


def rules(report: Report, least: Severity = Severity.ERROR) -> list[str]:
    return [one.rule for one in report.findings if one.severity >= least]


def only(report: Report, rule: str) -> Finding:
    found = [one for one in report.findings if one.rule == rule]
    assert len(found) == 1, [one.text for one in report.findings]
    return found[0]


@pytest.mark.parametrize(
    ("line", "rule", "fixed"),
    [
        ("vllm serve m --swap-space=4 --port 1", "option-removed", "vllm serve m --port 1"),
        ("vllm serve m --max-num-batch-tokens 8k", "option-misspelt", "vllm serve m --max-num-batched-tokens 8k"),
        ("vllm serve m --max-lora-size 256", "option-misspelt", ""),
        ("vllm serve m --api-keys secret", "option-misspelt", "vllm serve m --api-key secret"),
        ("vllm serve m --max_num_seqs 8", "", "vllm serve m --max_num_seqs 8"),
        ("vllm serve m --mem-fraction-static 0.9", "option-of-other-engine",
         "vllm serve m --gpu-memory-utilization 0.9"),
        ("vllm serve m --make-it-fast", "option-unknown", ""),
        ("vllm serve m --cuda-graph-sizes 8", "option-renamed", "vllm serve m --cudagraph-capture-sizes 8"),
        ("vllm serve m --disable-mm-preprocessor-cache", "option-renamed", "vllm serve m --mm-processor-cache-gb 0"),
        ("vllm serve m --enable-chunked-prefill false", "flag-with-value", "vllm serve m --no-enable-chunked-prefill"),
        ("vllm serve m --enable-chunked-prefill=true", "flag-with-value", "vllm serve m --enable-chunked-prefill"),
        ("vllm serve m --gpu-memory-utilization 92", "value-out-of-range",
         "vllm serve m --gpu-memory-utilization 0.92"),
        ("vllm serve m --max-num-seqs many", "value-wrong", "vllm serve m --max-num-seqs many"),
        ("vllm serve m --max-model-len 8k", "", "vllm serve m --max-model-len 8k"),
        ("vllm serve m --dtype bfloat61", "value-wrong", "vllm serve m --dtype bfloat16"),
        ("vllm serve m --port", "value-missing", "vllm serve m --port"),
        ("vllm serve m stray --port 1", "word-unexpected", ""),
        ("vllm serve m --speculative-config '{\"a\": '", "value-wrong", "vllm serve m --speculative-config '{\"a\": '"),
        ("vllm serve m --compilation-config.cudagraph_mode NONE -O3 -tp 2", "", ""),
        ("vllm serve --use-v2-block-manager m", "option-removed", "vllm serve m"),
        ("vllm serve m --worker-use-ray", "option-renamed", "vllm serve m --distributed-executor-backend ray"),
    ],
)  # fmt: skip
def test_one_mistake(line: str, rule: str, fixed: str) -> None:
    report = lint(line)
    assert rules(report) == ([rule] if rule else [])
    assert report.fixed == (fixed or line)


@pytest.mark.parametrize(
    ("line", "rule", "fixed"),
    [
        ("sglang serve --model-path m --cuda-graph-max-bs 8", "option-renamed", "--cuda-graph-max-bs-decode 8"),
        ("sglang serve --model-path m --gpu-memory-utilization 0.9", "option-of-other-engine",
         "--mem-fraction-static 0.9"),
        ("sglang serve --model-path m --schedule-policy lpmm", "value-wrong", "--schedule-policy lpm"),
        ("sglang serve --model-path m --schedule-policy lp", "value-wrong", "--schedule-policy lpm"),
        ("sglang serve --model-path m --schedule-policy lowest", "value-wrong", "--schedule-policy lowest"),
        ("sglang serve --model-path m --shutdown-timeout 5", "option-unknown", ""),
        ("sglang serve --model-path m --enable-m", "option-ambiguous", "--enable-m"),
    ],
)  # fmt: skip
def test_one_mistake_on_sglang(line: str, rule: str, fixed: str) -> None:
    report = lint(line, version="0.5.23")
    assert rules(report) == [rule]
    assert report.fixed.split("--enable-metrics")[1].strip() == fixed


def test_an_option_from_the_future_is_told_apart_from_one_of_the_past() -> None:
    report = lint("vllm serve m --attention-backend FLASHINFER", version="0.10.2")
    assert "came with vllm 0.13.0" in only(report, "option-too-new").text


def test_what_is_not_recorded_is_a_note_not_a_verdict() -> None:
    report = lint("sglang serve --model-path m --enable-flashinfer-autotune", version="0.5.7")
    assert only(report, "option-uncertain").severity is Severity.NOTE
    assert any("0.5.7 is not recorded" in remark for remark in report.remarks)


def test_variables_arrays_and_unknown_words() -> None:
    script = """\
TP=8
ARGS=(
  --swap-space 32
  --block-size 16
)
EXTRA="--max-num-seqs 8 --num-scheduler-steps 4"
ARGS+=(--port "$PORT")
exec vllm serve "$MODEL" -tp $TP "${ARGS[@]}" $EXTRA ${MORE_ARGS} --max-model-len $(( 8 * 1024 )) 2>&1 | tee log
"""
    report = lint(script)
    assert rules(report) == ["option-removed", "option-removed"]
    assert [one.line for one in report.findings if one.rule == "option-removed"] == [3, 6]
    assert "  --block-size 16\n" in report.fixed
    assert "--swap-space" not in report.fixed
    assert 'EXTRA="--max-num-seqs 8"' in report.fixed
    assert any("running shell" in remark for remark in report.remarks)


def test_an_option_and_its_value_from_different_places_go_each_from_its_own() -> None:
    report = lint('OLD=(--swap-space)\nvllm serve m "${OLD[@]}" 4 --port 1\n')
    assert rules(report) == ["option-removed"]
    assert report.fixed == 'OLD=()\nvllm serve m "${OLD[@]}" --port 1\n'


def test_here_documents_comments_and_quotes_are_not_commands() -> None:
    script = """\
cat > README <<'EOF'
vllm serve m --swap-space 1
EOF
# vllm serve m --swap-space 2
echo "vllm serve m --swap-space 3"
bash -c "vllm serve m --swap-space 4"
"""
    assert [one.line for one in lint(script).findings if one.rule == "option-removed"] == [6]


def test_docker_run_keeps_the_hosts_environment_out_and_knows_the_images_version() -> None:
    script = """\
export VLLM_ATTENTION_BACKEND=FLASHINFER
docker run --gpus all -p 8000:8000 \\
  -e VLLM_USE_V1=1 \\
  vllm/vllm-openai:v0.20.2 \\
  --model m --tensor-parallel-size 2 --swap-space 4
"""
    report = lint(script, version=None)
    assert report.judged == ("vllm 0.20.2",)
    assert [one.line for one in report.findings if one.rule == "env-removed"] == [3]
    assert only(report, "shm-small").advice.startswith("add --shm-size")
    assert "  -e VLLM_USE_V1=1 \\\n" not in report.fixed
    assert report.fixed.endswith("--model m --tensor-parallel-size 2\n")


COMPOSE = """\
services:
  llm:
    image: vllm/vllm-openai:v0.33.0
    shm_size: 16gb
    stop_grace_period: 20s
    environment:
      - VLLM_ATTENTION_BACKEND=FLASHINFER
      - NCCL_NET_GDR_LEVEL=5
    command: >
      --model m --tensor-parallel-size 2
      --swap-space 4
      --shutdown-timeout 60
  other:
    image: redis
    command: redis-server
"""
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: engine
          image: vllm/vllm-openai:v0.33.0
          args:
            - --model=m
            - --tensor-parallel-size
            - "2"
            - --swap-space
            - "4"
            - --enable-chunked-prefill
            - "true"
          env:
            - name: VLLM_ATTENTION_BACKEND
              value: FLASHINFER
          volumeMounts:
            - {name: shm, mountPath: /dev/shm}
---
apiVersion: apps/v1
kind: StatefulSet
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 120
      containers:
        - name: engine
          image: lmsysorg/sglang:v0.5.23
          command: ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-radix-cache", "--tp", "2"]
"""


def test_a_compose_file() -> None:
    report = lint(COMPOSE, "compose.yaml", None)
    assert [one.line for one in report.findings if one.rule == "option-removed"] == [11]
    assert "after 20 s, the engine drains for 60 s" in only(report, "grace-too-short").text
    assert not [one for one in report.findings if one.rule == "shm-small"]
    fixed = yaml.safe_load(report.fixed)["services"]["llm"]
    assert fixed["environment"] == ["NCCL_NET_GDR_LEVEL=SYS"]
    mended = "--model m --attention-backend FLASHINFER --tensor-parallel-size 2 --shutdown-timeout 60"
    assert fixed["command"].split() == mended.split()


def test_a_kubernetes_manifest_in_both_list_styles() -> None:
    report = lint(MANIFEST, "engine.yaml", None)
    assert report.judged == ("vllm 0.33.0", "sglang 0.5.23")
    first, second = yaml.safe_load_all(report.fixed)
    engine = first["spec"]["template"]["spec"]["containers"][0]
    assert engine["args"] == [
        "--model=m", "--attention-backend", "FLASHINFER", "--tensor-parallel-size", "2", "--enable-chunked-prefill",
    ]  # fmt: skip
    assert not engine["env"]
    command = second["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == [
        "python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-metrics", "--host", "0.0.0.0",
        "--tp-size", "2",
    ]  # fmt: skip
    assert only(report, "shm-small").line == 32


def test_a_script_inside_a_manifest_is_mended_in_place() -> None:
    manifest = """\
kind: Job
spec:
  containers:
    - image: x
      command: [/bin/bash, -c]
      args:
        - |
          export VLLM_USE_V1=1
          vllm serve m \\
            --swap-space 4
"""
    report = lint(manifest, "job.yml")
    script = yaml.safe_load(report.fixed)["spec"]["containers"][0]["args"][0]
    assert script == "vllm serve m\n"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("echo hello\n", "x.sh", "starts neither vLLM nor SGLang"),
        ("", "x.sh", "starts neither"),
        ("a: [1,\n", "x.yaml", r"x\.yaml:2: this is not YAML"),
        ("{{- if .Values.x }}\na: {{ .b }}\n{{- end }}\n", "x.yaml", "helm template"),
        ("\0\0", "x.sh", "binary"),
        ("kind: Pod\nspec: {containers: [{image: nginx, args: [-v]}]}\n", "x.yaml", "starts neither"),
        ("x" * 5_000_000, "x.sh", "too long"),
        ("[" * 4000, "x.yaml", "nested too deeply|not YAML"),
    ],
)
def test_bad_input_is_one_sentence(text: str, name: str, says: str) -> None:
    with pytest.raises(BadInputError) as caught:
        lint(text, name)
    assert re.search(says, f"{caught.value.message} {caught.value.hint}")


def test_asking_for_the_other_engine_is_said() -> None:
    with pytest.raises(BadInputError, match="starts vllm, not sglang"):
        lint_text("vllm serve m", "x.sh", LintRequest(engine="sglang"))


def test_the_burst_of_256_sequences_beyond_200_requests_a_second() -> None:
    line = "vllm serve m --max-num-seqs 256 --max-num-queued-reqs 64"
    told = only(lint(line), "burst-capacity").text
    assert "200 requests/s of 5 s each are 1000 at once; this runs 256 and queues 64: after 1.6 s" in told
    calm = lint_text(line, "x", LintRequest(rate_per_s=20))
    assert "burst-capacity" not in rules(calm, Severity.NOTE)
    large = lint_text("vllm serve m --max-num-seqs 1024", "x", LintRequest(rate_per_s=200))
    assert "burst-capacity" not in rules(large, Severity.NOTE)


def test_sarif_names_every_finding_where_it_is() -> None:
    report = lint("set -e\nvllm serve m --swap-space 4\n")
    document = sarif([report], "1.0")
    run = document["runs"][0]
    removed = next(one for one in run["results"] if one["ruleId"] == "option-removed")
    assert removed["level"] == "error"
    assert removed["locations"][0]["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 14}
    assert run["tool"]["driver"]["rules"][removed["ruleIndex"]]["id"] == "option-removed"
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)


NAMES = st.sampled_from(sorted(set(table("vllm").file.names) - {"--model"}))
VALUES = st.sampled_from(["", "", "1", "true", "0.5", "auto", "'a b'", "$X", "${Y:-3}", "{}"])
GAPS = st.sampled_from([" ", "  ", " \\\n  ", " \\\n    "])


@given(st.lists(st.tuples(NAMES, VALUES, GAPS), max_size=8), st.sampled_from(table("vllm").versions))
def test_after_the_fix_nothing_is_left_to_fix_and_bash_reads_it(
    words: list[tuple[str, str, str]], version: str
) -> None:
    line = "vllm serve m" + "".join(f"{gap}{name}{' ' + value if value else ''}" for name, value, gap in words)
    script = f"set -e\n{line}\necho done\n"
    text = script
    for _ in range(3):
        text = lint(text, version=version).fixed
    report = lint(text, version=version)
    left = [one.text for one in report.findings if one.edits]
    assert not left
    assert text.startswith("set -e\nvllm serve m")
    assert text.endswith("\necho done\n")
    assert [word.text for word in read_launches(text, "x")[0].words][:1] == ["m"]


@given(st.text(alphabet="vllm serve --swap-pace 4\n\\'\"$(){}#;|&<>=", max_size=80))
def test_no_text_is_too_broken_to_read(text: str) -> None:
    script = f"vllm serve m --swap-space 4 {text}"
    try:
        report = lint(script)
    except TidegateError:
        return
    assert all(one.line >= 1 and one.column >= 1 for one in report.findings)


@given(st.text(alphabet="kind: args:\n- [{}],\"'|>&*a b--swap-space 4 vllm serve", max_size=120))
def test_no_manifest_is_too_broken_to_read(text: str) -> None:
    manifest = f"kind: Pod\nspec:\n  containers:\n    - command: [vllm, serve, m]\n{text}\n"
    try:
        report = lint(manifest, "x.yaml")
    except TidegateError:
        return
    assert report.judged == ("vllm 0.33.0",)


def test_variables_that_double_stay_bounded() -> None:
    arrays = "A=(--swap-space 4)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40
    scalars = "B=--block-size\n" + 'B="$B $B"\n' * 60
    tracemalloc.start()
    launches = read_launches(f'{arrays}{scalars}vllm serve m "${{A[@]}}" $B\n', "x.sh")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert launches[0].words[1].text == "--swap-space"


def test_aliases_do_not_multiply() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 20))
    manifest = f"l0: &l0 {{command: [vllm, serve, m, --swap-space, '4']}}\n{levels}"
    assert rules(lint(manifest, "x.yaml")) == ["option-removed"]


def run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tidegate", "lint", *words]
    return subprocess.run(line, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_for_ci(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text("vllm serve m --swap-space 4 --shutdown-timeout 30\n")
    done = run(str(script), "--engine", "vllm==0.33.0", "--json", "--sarif", str(tmp_path / "out.sarif"))
    assert done.returncode == 1
    assert json.loads(done.stdout)[0]["findings"][0]["severity"] == "error"
    document = json.loads((tmp_path / "out.sarif").read_text())
    jsonschema.validate(document, {"required": ["version", "runs"]})
    assert run(str(script), "--fix").returncode == 0
    assert script.read_text() == "vllm serve m --shutdown-timeout 30\n"
    assert run(str(script), "--fail-on", "note").returncode == 0
    assert run(str(tmp_path / "none.sh")).returncode == 3
    large = tmp_path / "large.sh"
    large.write_text("é" * 3_000_000)
    assert "larger than 4 MiB" in run(str(large)).stderr
    assert run("-", text="vllm serve m --swap-space 4").returncode == 1
    done = run("--fix", "--", "vllm", "serve", "m", "--swap-space", "4", "--shutdown-timeout", "30")
    assert done.stdout.strip() == "vllm serve m --shutdown-timeout 30"


def test_the_command_with_bad_options(tmp_path: Path, recorded: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text("vllm serve m --shutdown-timeout 30\n")
    assert run(str(script), "--engine", "vlm").returncode == 3
    assert run(str(script), "--gpu", "h100").returncode == 3
    assert run(str(script), "--model", str(tmp_path)).returncode == 3
    half = tmp_path / "config.json"
    half.write_text('{"hidden_size": 4096,')
    done = run(str(script), "--model", str(half))
    assert done.returncode == 3
    assert "half written" in done.stderr
    assert run(str(script), "--rate", "fast").returncode == 3
    assert run(str(script), "--help-text", str(script), "--engine", "vllm").returncode == 3
    help_file = recorded / "vllm/serve-help-all.vllm-0.33.0.txt"
    assert run(str(script), "--help-text", str(help_file), "--engine", "vllm").returncode == 0
    done = run(str(script), "--installed", "--engine", "sglang")
    assert done.returncode == 4
    assert "--help-text FILE" in done.stderr
