"""Rules and dashboards against the real thing: promtool, a Prometheus that scrapes a running cluster, Grafana's model.

Beside a gateway and its emulated engine, Prometheus scrapes engines that name their metrics differently: an SGLang
page as recorded, and a page with the names that vLLM has since given up.
"""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from tidegate.node.process import Child, answers
from tidegate.observe.dashboards import boards, dashboard_files
from tidegate.observe.enginequeries import recorded
from tidegate.observe.rules import FILE, groups, rule_file
from tidegate.spec import ClusterSpec, InstanceSpec, PoolSpec
from tidegate.testing.live import HOST, free_port, wait_until
from tidegate.testing.processes import MODEL, Emulated, Gateway, request
from tidegate.wire.prometheus import KINDS, wanted_names

SPEC = ClusterSpec(pools=[PoolSpec(model=MODEL, instances=[InstanceSpec(url="http://127.0.0.1:1")])])
RENAMED = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
NOT_COMPARED = ["sglang:num_pages", "sglang:page_size", "sglang:max_total_num_tokens", "vllm:cache_config_info"]
SHORT = {"$__rate_interval": "1m", "$model": ".*", "$instance": ".*", "$tenant": ".*"}


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is missing: make deps"
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=60, check=False)


def queries() -> list[tuple[str, str]]:
    """Board and panel, and expression, of every target."""
    return [
        (f"{board['uid']}: {panel['title']}", target["expr"])
        for board in boards(SPEC)
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


# --- rules ---


@pytest.mark.parametrize("kind", KINDS)
def test_promtool_takes_the_rules(kind: str, tmp_path: Path) -> None:
    pool = msgspec.structs.replace(
        SPEC.pools[0], model="a.b/c", engine=msgspec.structs.replace(SPEC.pools[0].engine, kind=kind)
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text(rule_file(msgspec.structs.replace(SPEC, pools=[pool]))[FILE])
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "tidegate.rules.yaml").write_text(rule_file(SPEC)[FILE])
    shutil.copy(Path(__file__).with_name("alerts.yaml"), tmp_path)
    done = promtool("test", "rules", str(tmp_path / "alerts.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_has_its_page(repo_root: Path) -> None:
    alerts = {rule["alert"] for group in groups(SPEC) for rule in group["rules"] if "alert" in rule}
    cases = yaml.safe_load(Path(__file__).with_name("alerts.yaml").read_text())["tests"]
    checks = [check for case in cases for check in case.get("alert_rule_test", ())]
    assert alerts == {check["alertname"] for check in checks if check.get("exp_alerts")}, "fires"
    assert alerts == {check["alertname"] for check in checks if not check.get("exp_alerts")}, "stays silent"
    page = (repo_root / "docs/guides/see.md").read_text("utf-8")
    assert not [alert for alert in alerts if f"### {alert}\n" not in page]


def test_every_name_the_gateway_reads_is_graphed_too() -> None:
    expressions = "\n".join(recorded().values())
    wanted = {name for kind in KINDS for name in wanted_names(kind)}.difference(NOT_COMPARED)
    assert not [name for name in wanted if name not in expressions]


# --- dashboards ---


@pytest.mark.parametrize("number", range(len(boards(SPEC))))
def test_grafana_knows_every_field_of_a_board(number: int) -> None:
    board = boards(SPEC)[number]
    read = json.loads(json.dumps(Dashboard.from_json(board), default=lambda value: value.to_json()))
    assert not list(lost(board, read, board["uid"]))


def lost(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    """What Grafana's own model did not take over."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key not in theirs and value is not None:
                yield f"{where}.{key}"
            elif key in theirs:
                yield from lost(value, theirs[key], f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} became {len(theirs)}"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from lost(one, other, f"{where}[{number}]")
    elif ours != theirs:
        yield f"{where}: {ours!r} became {theirs!r}"


def test_panels_lie_side_by_side_and_not_on_one_another() -> None:
    for board in boards(SPEC):
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24
            taken |= cells
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_boards_are_files_that_say_the_same_every_time() -> None:
    files = dashboard_files(SPEC)
    assert files == dashboard_files(SPEC)
    names = {json.loads(text)["uid"] for name, text in files.items() if name.endswith(".json")}
    assert names == {"tidegate-fleet", "tidegate-slo", "tidegate-instance", "tidegate-tenant"}


# --- a Prometheus that scrapes a running cluster ---


class Pages:
    """Static metrics pages by path, as engines that run elsewhere."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(pages[self.path])

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                return

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.target = f"{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Prometheus(Child):
    """A Prometheus of its own in a directory."""

    def __init__(self, directory: Path, jobs: list[dict[str, Any]]) -> None:
        self.port = free_port()
        (directory / "rules.yaml").write_text(rule_file(SPEC)[FILE])
        config = directory / "prometheus.yaml"
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config.write_text(yaml.safe_dump({"global": every, "rule_files": ["rules.yaml"], "scrape_configs": jobs}))
        program = shutil.which("prometheus")
        assert program is not None, "prometheus is missing: make deps"
        words = [program, f"--config.file={config}", f"--storage.tsdb.path={directory}/data", "--log.level=warn",
                 f"--web.listen-address={HOST}:{self.port}"]  # fmt: skip
        super().__init__("prometheus", words, directory / "prometheus.log")
        self.wait_ready(lambda: answers(HOST, self.port, "/-/ready"), 30.0)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        status, body = request("GET", self.port, path)
        assert status == 200, (expression, body)
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        _, body = request("GET", self.port, "/api/v1/rules")
        return [rule for group in json.loads(body)["data"]["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> Iterator[Prometheus]:
    """After a minute's worth of scrapes of everything, with traffic through the gateway."""
    directory = tmp_path_factory.mktemp("prometheus")
    engines = shared_dir / "reference/engines"
    old = (engines / "vllm/metrics.load16.eager.txt").read_text()
    for new, name in RENAMED.items():
        old = old.replace(new, name)
    recorded_pages = {
        "/sglang": (engines / "sglang/run-0.5.17/metrics.after.txt").read_bytes(),
        "/old-vllm": old.encode(),
    }
    with (
        Emulated(directory / "engine") as engine,
        Gateway(directory, [engine.url]) as gateway,
        Pages(recorded_pages) as pages,
    ):
        jobs = [
            {"job_name": "tidegate-gateway", "honor_labels": True, **target(f"{HOST}:{gateway.health_port}")},
            {"job_name": "tidegate-engine-a", **target(f"{HOST}:{engine.port}", "emulated")},
            {"job_name": "tidegate-engine-b", "metrics_path": "/sglang", **target(pages.target, "sglang")},
            {"job_name": "tidegate-engine-c", "metrics_path": "/old-vllm", **target(pages.target, "old-vllm")},
        ]  # fmt: skip
        with Prometheus(directory, jobs) as running:
            wait_until("everything is scraped", lambda: len(running.ask("up == 1")) == len(jobs))
            for _ in range(4):
                gateway.post("/v1/chat/completions", STREAMED)
                gateway.chat()
            before = time.time()
            seen = f"min(timestamp(tidegate_requests_queued)) > {before + 2}"
            wait_until("the traffic is scraped", lambda: bool(running.ask(seen)))
            last = "model:tidegate_slo_bad:ratio_rate3d"
            wait_until("the traffic is in the rules", lambda: bool(running.ask(f'{last}{{model="{MODEL}"}}')))
            yield running


STREAMED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}


def target(address: str, name: str = "") -> dict[str, Any]:
    labels = {"instance_name": name, "pool": MODEL} if name else {}
    return {"static_configs": [{"targets": [address], "labels": labels}]}


def test_every_query_of_every_board_finds_something(prometheus: Prometheus) -> None:
    empty = []
    for where, expression in queries():
        for variable, value in SHORT.items():
            expression = expression.replace(variable, value)
        if not prometheus.ask(expression):
            empty.append(f"{where}: {expression}")
    assert not empty, "\n".join(empty)


def test_every_rule_is_evaluated_without_a_complaint(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert len(rules) == sum(len(group["rules"]) for group in groups(SPEC))
    assert not [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")]


def test_engines_that_name_things_differently_are_read_alike(prometheus: Prometheus) -> None:
    for series in ("running:sum", "waiting:sum", "kv_used:avg", "ttft_seconds:p99_5m", "gap_seconds:p99_5m"):
        found = {one["metric"]["instance_name"] for one in prometheus.ask(f"server:tidegate_engine_{series}")}
        assert found == {"emulated", "sglang", "old-vllm"}, series


def test_instances_keep_their_names(prometheus: Prometheus) -> None:
    (one,) = prometheus.ask('tidegate_instance_state{state="ready"}')
    assert one["metric"]["instance"].startswith(f"{HOST}:")
    assert not prometheus.ask('{__name__=~"tidegate_instance_.*",exported_instance!=""}')
