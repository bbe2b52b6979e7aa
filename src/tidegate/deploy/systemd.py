"""systemd units: one for each engine instance, one for the gateway, a target that holds them.

In: a lock and the folder the files will lie in. Out: unit files. An exit code says nothing (vLLM exits with 0 when
its engine died), so that units restart whatever it was; a bad command line (2) or a wrong host (3) is not retried,
and five restarts in ten minutes are the end.
"""

from __future__ import annotations

from typing import Final

from tidegate.deploy.place import Place, origin, places
from tidegate.spec.lock import Lock

FOLDER: Final = "/etc/tidegate"
USER: Final = "tidegate"
START_PATIENCE_S: Final = 1800
"""Loading a large model and capturing graphs takes minutes."""
STOP_MARGIN_S: Final = 30
"""Beyond the gateway's drain: the engine's own teardown (5 s seen with vLLM, 16 s with SGLang)."""

ENGINE_UNIT: Final = """\
# {name}: {kind} {version} serving {model}. Rendered from tidegate.lock {origin}.
[Unit]
Description=Tidegate engine {name} ({kind} {version}, {model})
After=network-online.target nvidia-persistenced.service
Wants=network-online.target
PartOf=tidegate.target
# A crash loop ends after five starts in ten minutes.
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=exec
User={user}
ExecStart={folder}/launch/{stem}.sh
# Workers outlive a killed parent (vllm-project/vllm#55510): the whole group goes.
KillMode=control-group
KillSignal=SIGTERM
TimeoutStartSec={start_s}
# The gateway has drained it by then; what is left is the engine's own teardown.
TimeoutStopSec={stop_s}
# The exit code says nothing: vLLM ends with 0 when its engine died.
Restart=always
RestartSec=10
RestartPreventExitStatus=2 3
LimitNOFILE=1048576
# Pinned host memory for GPU copies, and no core files of 80 GB.
LimitMEMLOCK=infinity
LimitCORE=0
OOMScoreAdjust=-500
SyslogIdentifier=tidegate-{stem}

[Install]
WantedBy=tidegate.target
"""

GATEWAY_UNIT: Final = """\
# The gateway. Rendered from tidegate.lock {origin}.
[Unit]
Description=Tidegate gateway
After=network-online.target
Wants=network-online.target
PartOf=tidegate.target
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
Type=exec
User={user}
ExecStart=/usr/bin/env tidegate gateway -c {folder}/tidegate.yaml --json-log
# SIGTERM drains: streams may go on for {drain_s:g} s.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_s}
Restart=always
RestartSec=1
RestartPreventExitStatus=2 3
LimitNOFILE=1048576
OOMScoreAdjust=-900
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
SyslogIdentifier=tidegate-gateway

[Install]
WantedBy=tidegate.target
"""

TARGET: Final = """\
# Everything of Tidegate on this host. Rendered from tidegate.lock {origin}.
[Unit]
Description=Tidegate: engines and gateway

[Install]
WantedBy=multi-user.target
"""


def systemd_units(lock: Lock, folder: str = FOLDER, user: str = USER) -> dict[str, str]:
    """Every unit, by file name; enable on each host the instances that run there."""
    found = {f"systemd/tidegate-{place.stem}.service": _engine(lock, place, folder, user) for place in places(lock)}
    drain_s = lock.cluster.gateway.drain_s
    found["systemd/tidegate-gateway.service"] = GATEWAY_UNIT.format(
        origin=origin(lock), folder=folder, user=user, drain_s=drain_s, stop_s=int(drain_s) + STOP_MARGIN_S
    )
    found["systemd/tidegate.target"] = TARGET.format(origin=origin(lock))
    return found


def _engine(lock: Lock, place: Place, folder: str, user: str) -> str:
    return ENGINE_UNIT.format(
        name=_literal(place.name),
        stem=place.stem,
        kind=place.engine.kind,
        version=_literal(place.engine.version),
        model=_literal(place.engine.model),
        origin=origin(lock),
        folder=folder,
        user=user,
        start_s=START_PATIENCE_S,
        stop_s=int(lock.cluster.gateway.drain_s) + STOP_MARGIN_S,
    )


def _literal(text: str) -> str:
    """systemd reads % as a specifier."""
    return text.replace("%", "%%")
