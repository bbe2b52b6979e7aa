"""Rendered files do on a host what the lock says."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tidegate.cli.render import rendered
from tidegate.deploy.place import places
from tidegate.engines.lint import LintRequest, Severity, lint_text
from tidegate.errors import BadInputError
from tidegate.spec import ClusterSpec, EngineProfile, GatewaySpec, InstanceSpec, PoolSpec, SpecError, parse_spec
from tidegate.spec.lock import Lock
from tidegate.spec.lock_file import lock_text, parse_lock
from tidegate.tune.freeze import Known, freeze

WRITTEN = "2026-01-31T08:15:00Z"
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
FAKE_PYTHON = """#!/usr/bin/env bash
if [[ "$1" == -c ]]; then echo "${FAKE_VERSION}"; exit 0; fi
printf '%s\\n' "$@" > argv
env > environment
ulimit -n > files
exit 17
"""


def a_lock(kind: str = "vllm", path: str = "", urls: tuple[str, ...] = ("http://10.0.0.1:8000",), **known: Any) -> Lock:
    instances = [InstanceSpec(url=url) for url in urls]
    engine = EngineProfile(kind=kind, gpus=2, step_tokens=1024, max_sequences=128)  # type: ignore[arg-type]
    spec = ClusterSpec(pools=[PoolSpec(model="llama", instances=instances, engine=engine)])
    return freeze(spec, {"llama": Known(version=VERSIONS[kind], path=path, **known)}, written=WRITTEN)


def with_env(lock: Lock, *env: str) -> Lock:
    engines = [msgspec.structs.replace(lock.engines[0], env=list(env))]
    return msgspec.structs.replace(lock, engines=engines)


def only(files: dict[str, str]) -> str:
    (text,) = files.values()
    return text


def start(folder: Path, script: str, version: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a launch script where python is a program that only writes down how it was called."""
    (folder / "python3").write_text(FAKE_PYTHON)
    (folder / "python3").chmod(0o755)
    (folder / "launch.sh").write_text(script)
    return subprocess.run(
        ["bash", "launch.sh", *words], capture_output=True, text=True, timeout=30, cwd=folder, check=False,
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "FAKE_VERSION": version},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_script_starts_exactly_what_the_lock_says(kind: str, tmp_path: Path) -> None:
    lock = with_env(a_lock(kind), "NCCL_NET_GDR_LEVEL=SYS", "ODD=two words $HOME")
    done = start(tmp_path, only(rendered(lock, "launch")), VERSIONS[kind])
    assert done.returncode == 17, "the engine's exit code is the script's: " + done.stderr
    argv = (tmp_path / "argv").read_text().splitlines()
    options = [word for line in lock.engines[0].options for word in shlex.split(line)]
    assert argv == ["-m", argv[1], *options, "--host", "0.0.0.0", "--port", "8000"]
    assert kind in argv[1]
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "ODD=two words $HOME" in environment
    assert "CUDA_VISIBLE_DEVICES=0,1" in environment
    assert f"TIDEGATE_LOCK={lock.hash}" in environment
    hard = subprocess.run(["bash", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "files").read_text() == hard, "as many files as the host allows"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_every_option_has_its_comment(kind: str) -> None:
    lines = only(rendered(a_lock(kind), "launch")).splitlines()
    inside = lines[lines.index("args=(") + 1 : lines.index(")")]
    options = [number for number, line in enumerate(inside) if line.strip().startswith("--")]
    bare = [inside[number] for number in options if not inside[number - 1].strip().startswith("#")]
    assert bare == ["  --port 8000"], "host and port share one"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_our_own_lint_finds_nothing_wrong(kind: str) -> None:
    script = only(rendered(a_lock(kind), "launch"))
    report = lint_text(script, "launch.sh", LintRequest(engine=kind, version=VERSIONS[kind]))
    assert not [finding for finding in report.findings if finding.severity is not Severity.NOTE], report.findings


def test_a_script_refuses_what_is_not_the_locks(tmp_path: Path) -> None:
    script = only(rendered(a_lock(), "launch"))
    other = start(tmp_path, script, "0.32.0")
    assert other.returncode == 3
    assert "vllm 0.32.0 is installed, and the lock says 0.33.0" in other.stderr
    assert not (tmp_path / "argv").exists()
    assert start(tmp_path, script, "0.33.0+cu130").returncode == 17, "a build of the same version will do"
    assert start(tmp_path, script, "0.33.01").returncode == 3
    added = start(tmp_path, script, "0.33.0", "--max-num-seqs", "4096")
    assert added.returncode == 3
    assert "takes no arguments" in added.stderr


def test_a_missing_model_is_told_before_the_engine_loads(tmp_path: Path) -> None:
    model = tmp_path / "a model's folder"
    script = only(rendered(a_lock(path=str(model)), "launch"))
    done = start(tmp_path, script, "0.33.0")
    assert done.returncode == 3
    assert f"the model is not there: {model}" in done.stderr
    model.mkdir()
    assert start(tmp_path, script, "0.33.0").returncode == 17


def test_an_environment_line_is_no_way_into_the_script() -> None:
    with pytest.raises(SpecError, match="an environment variable as NAME=value"):
        parse_lock(lock_text(with_env(a_lock(), "A;touch x;B=1")))


def test_instances_of_one_host_share_its_gpus() -> None:
    lock = a_lock(urls=("http://a:8000", "http://a:8001", "http://b:8000", "http://127.0.0.1:9"))
    found = [(place.host, place.gpus, place.bind) for place in places(lock)]
    assert found == [
        ("a", (0, 1), "0.0.0.0"), ("a", (2, 3), "0.0.0.0"), ("b", (0, 1), "0.0.0.0"),
        ("127.0.0.1", (0, 1), "127.0.0.1"),
    ]  # fmt: skip


def test_names_that_collide_are_refused() -> None:
    lock = a_lock()
    twins = [InstanceSpec(url="http://a:1", name="x:y"), InstanceSpec(url="http://a:2", name="x-y")]
    pools = [msgspec.structs.replace(lock.cluster.pools[0], instances=twins)]
    clash = msgspec.structs.replace(lock, cluster=msgspec.structs.replace(lock.cluster, pools=pools))
    with pytest.raises(BadInputError, match="both be called 'llama-x-y'"):
        rendered(clash, "launch")


def unit_of(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_units_end_the_whole_group_and_not_before_the_drain() -> None:
    lock = a_lock()
    gateway = GatewaySpec(drain_s=40)
    lock = msgspec.structs.replace(lock, cluster=msgspec.structs.replace(lock.cluster, gateway=gateway))
    files = rendered(lock, "systemd", "/opt/tide", "llm")
    engine = unit_of(files["systemd/tidegate-llama-10.0.0.1-8000.service"])["Service"]
    assert engine["ExecStart"] == "/opt/tide/launch/llama-10.0.0.1-8000.sh"
    assert engine["KillMode"] == "control-group"
    assert engine["Restart"] == "always"
    assert "3" in engine["RestartPreventExitStatus"].split()
    served = unit_of(files["systemd/tidegate-gateway.service"])["Service"]
    assert int(served["TimeoutStopSec"]) > 40
    assert served["ExecStart"].endswith("tidegate gateway -c /opt/tide/tidegate.yaml --json-log")
    assert {"User=llm"} <= set(files["systemd/tidegate-gateway.service"].splitlines())


def test_systemd_itself_takes_the_units(tmp_path: Path) -> None:
    """Where systemd is installed, its own checker; it looks for the programs too, so they are made."""
    files = rendered(a_lock(), "systemd", str(tmp_path), "root") | rendered(a_lock(), "launch")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    units = sorted(str(path) for path in (tmp_path / "systemd").iterdir())
    known = subprocess.run(
        ["sh", "-c", "command -v systemd-analyze || true"], capture_output=True, text=True, check=True
    )
    if known.stdout:
        checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
        assert "Unknown" not in checked.stderr
        assert str(tmp_path) not in checked.stderr, checked.stderr
    assert len(units) == 3


def test_prometheus_finds_gateway_and_engines() -> None:
    lock = a_lock(urls=("http://a:8000", "http://[::1]:8001"))
    page = yaml.safe_load(rendered(lock, "prometheus")["prometheus/tidegate.yaml"])
    gateway, engines = page["scrape_configs"]
    assert gateway["static_configs"][0]["targets"] == [lock.cluster.gateway.admin]
    assert [one["targets"] for one in engines["static_configs"]] == [["a:8000"], ["[::1]:8001"]]
    labels = [one["labels"] for one in engines["static_configs"]]
    assert {one["pool"] for one in labels} == {"llama"}
    assert all(lock.hash.removeprefix("sha256:").startswith(one["lock"]) for one in labels)


def test_each_pool_scrapes_its_own_engines() -> None:
    pools = [PoolSpec(model=name, instances=[InstanceSpec(url=f"http://{name}:1")]) for name in ("a", "b")]
    lock = freeze(ClusterSpec(pools=pools), {name: Known(version="0.33.0") for name in "ab"}, written=WRITTEN)
    jobs = yaml.safe_load(rendered(lock, "prometheus")["prometheus/tidegate.yaml"])["scrape_configs"][1:]
    found = {job["job_name"]: [one["targets"] for one in job["static_configs"]] for job in jobs}
    assert found == {"tidegate-engine-a": [["a:1"]], "tidegate-engine-b": [["b:1"]]}


def test_the_command_writes_what_the_gateway_takes(tmp_path: Path) -> None:
    (tmp_path / "tidegate.lock").write_text(lock_text(a_lock()))
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "render", "all", "-o", "out"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is draft, not frozen" in done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert all((tmp_path / path).is_file() for path in written)
    script = tmp_path / "out/launch/llama-10.0.0.1-8000.sh"
    assert os.access(script, os.X_OK)
    assert parse_spec((tmp_path / "out/tidegate.yaml").read_text()) == a_lock().cluster
    again = rendered(a_lock(), "all")
    assert {str(path.relative_to("out")): (tmp_path / path).read_text() for path in written} == again
