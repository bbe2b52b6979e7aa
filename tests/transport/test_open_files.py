"""A shortage of open files is this process's trouble; it is foreseen, and never taken for the death of an engine."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tidegate.testing.live import HOST, free_port
from tidegate.testing.processes import Emulated, Gateway
from tidegate.transport.network import SystemNetwork

SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


async def dial(host: str, port: int, starve: bool = False) -> str:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    last = os.dup(0)
    if starve:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, HARD))
    try:
        SystemNetwork().connect(host, port, asyncio.Protocol, 5.0, failed.set_result)
        return await asyncio.wait_for(failed, 10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
        os.close(last)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_only_a_refusal_is_a_refusal(run: Callable[[Coroutine[Any, Any, str]], str], host: str) -> None:
    port = free_port()
    assert run(dial(host, port)) == "refused"
    if host == HOST:  # a name cannot even be looked up then
        assert run(dial(host, port, starve=True)) == "timeout"


@pytest.mark.parametrize(("soft", "hard", "fits"), [(256, 1128, 400), (256, 628, 250), (64, 64, 1)])
def test_connections_are_bounded_by_what_the_system_allows(soft: int, hard: int, fits: int) -> None:
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from tidegate.transport.files import room_for_connections\n"
        "print(room_for_connections(400), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(fits), str(min(hard, 928))]


def test_idle_clients_do_not_use_up_what_engines_need(tmp_path: Path) -> None:
    with Emulated(tmp_path / "engine.log") as engine:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, HARD))
        try:
            gateway = Gateway(tmp_path, [engine.url])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
        with gateway:
            idle = [socket.create_connection((HOST, gateway.port)) for _ in range(200)]
            assert gateway.chat()["choices"]
            assert "ejected" not in gateway.output()
            for client in idle:
                client.close()
