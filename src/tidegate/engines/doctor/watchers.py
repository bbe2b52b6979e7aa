"""Symptoms that one line cannot show: figures that build up over a log.

Each watcher names the literal pieces of the lines it wants, keeps a bounded state, and says at the end what it found.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tidegate.engines.doctor.diagnosis import Confidence, Diagnosis, Evidence, quoted

KV_FULL: Final = 0.97
STALL_S: Final = 2.0
STALL_BATCHES: Final = 20
FRAGMENTED_GIB: Final = 1.0
_MOST_VERSIONS: Final = 16


class Watcher:
    """Base: sees lines that hold one of `triggers`."""

    triggers: tuple[bytes, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def line(self, number: int, text: str) -> None:
        """One line."""
        raise NotImplementedError

    def found(self) -> Diagnosis | None:
        """What the log showed as a whole."""
        raise NotImplementedError

    def evidence(self, number: int, text: str) -> Evidence:
        return Evidence(self.name, number, quoted(text))


class VllmLoad(Watcher):
    """vLLM's periodic line: KV usage, running and waiting requests."""

    triggers = (b"GPU KV cache usage:",)
    _FIGURES: Final = re.compile(r"Running: (\d+) reqs, Waiting: (\d+) reqs.*GPU KV cache usage: ([\d.]+)%")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lines = 0
        self.full = 0
        self.fullest = -1.0
        self.at: Evidence | None = None
        self.queued: tuple[int, int] = (0, 0)
        self.queue_at: Evidence | None = None

    def line(self, number: int, text: str) -> None:
        match = self._FIGURES.search(text)
        if match is None:
            return
        self.lines += 1
        running, waiting, usage = int(match.group(1)), int(match.group(2)), float(match.group(3)) / 100
        self.full += usage >= KV_FULL
        if usage > self.fullest:
            self.fullest, self.at = usage, self.evidence(number, text)
        if waiting > self.queued[1]:
            self.queued, self.queue_at = (running, waiting), self.evidence(number, text)

    def found(self) -> Diagnosis | None:
        if self.full and self.at is not None:
            return Diagnosis(
                id="kv-cache-full",
                title="The KV cache is full and requests are computed twice",
                confidence=Confidence.HIGH,
                evidence=(self.at,),
                count=self.full,
                cause="more running tokens than KV blocks; the last request is thrown out and recomputed later",
                fix=(
                    "admit less in front of the engine, or lower --max-num-seqs",
                    "an FP8 KV cache holds twice the tokens, more GPUs hold more",
                ),
                try_command="tidegate fit MODEL --gpu GPU --kv-cache fp8",
            )
        return None

    def queue(self) -> Diagnosis | None:
        """A queue inside the engine that grew beside a running batch."""
        running, waiting = self.queued
        if self.queue_at is None or waiting < 64 or waiting * 5 < running:
            return None
        return Diagnosis(
            id="queue-in-engine",
            title="Requests queue inside the engine",
            confidence=Confidence.HIGH if waiting > running else Confidence.MEDIUM,
            evidence=(self.queue_at,),
            cause=f"{waiting} requests waited beside {running} running: more arrives than is served, and TTFT grows",
            fix=(
                "bound admission in front with 429 and Retry-After",
                "add instances, or raise the sequences if KV is free",
            ),
            try_command="tidegate demo",
            reference="vllm-project/vllm#32193",
        )


class PrefillStall(Watcher):
    """SGLang: prefill batches back to back while requests that stream wait."""

    triggers = (b"Prefill batch", b"Decode batch")
    _TIME: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
    _RUNNING: Final = re.compile(r"#running-req: (\d+)")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.since: datetime | None = None
        self.first: Evidence | None = None
        self.batches = 0
        self.longest_s = 0.0
        self.worst: tuple[Evidence, ...] = ()
        self.worst_batches = 0
        self.stalls = 0

    def line(self, number: int, text: str) -> None:
        time, running = self._TIME.search(text), self._RUNNING.search(text)
        if time is None or running is None:
            return
        now = datetime.strptime(time.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        if "Decode batch" in text or running.group(1) == "0":
            self.since, self.batches = None, 0
            return
        if self.since is None:
            self.since, self.first = now, self.evidence(number, text)
        self.batches += 1
        lasted_s = (now - self.since).total_seconds()
        self.stalls += lasted_s >= STALL_S and self.batches == STALL_BATCHES
        if lasted_s > self.longest_s and self.batches >= STALL_BATCHES and self.first is not None:
            self.longest_s, self.worst_batches = lasted_s, self.batches
            self.worst = (self.first, self.evidence(number, text))

    def found(self) -> Diagnosis | None:
        if self.longest_s < STALL_S:
            return None
        return Diagnosis(
            id="prefill-starves-decode",
            title="Streams stand still while prompts are prefilled",
            confidence=Confidence.HIGH,
            evidence=self.worst,
            count=max(1, self.stalls),
            cause=f"{self.worst_batches} prefill batches in {self.longest_s:.0f} s with hardly a decode step between:"
            " as long as prompts wait and KV is free, SGLang prefills first; throughput and P99 TTFT look normal",
            fix=(
                "bound queued prompt tokens per instance in front",
                "try --enable-mixed-chunk, or --prefill-decode-interval in newer versions",
                "judge by the longest gap of a request, not by P99 of gaps",
            ),
            try_command="tidegate report RUN",
        )


class NcclVersions(Watcher):
    """More than one NCCL version in the logs of one instance."""

    triggers = (b"NCCL version", b"vLLM is using nccl==")
    _VERSION: Final = re.compile(r"(?:NCCL version |nccl==)v?(\d+\.\d+(?:\.\d+)?)")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.versions: dict[str, Evidence] = {}

    def line(self, number: int, text: str) -> None:
        match = self._VERSION.search(text)
        if match and len(self.versions) < _MOST_VERSIONS:
            self.versions.setdefault(match.group(1), self.evidence(number, text))

    def found(self) -> Diagnosis | None:
        return nccl_mismatch(self.versions)


def nccl_mismatch(versions: dict[str, Evidence]) -> Diagnosis | None:
    """The finding when one instance shows several versions, in one log or over several nodes' logs."""
    if len(versions) < 2:
        return None
    return Diagnosis(
        id="nccl-versions-differ",
        title="Nodes run different NCCL versions",
        confidence=Confidence.HIGH,
        evidence=tuple(versions.values()),
        cause=f"NCCL {' and '.join(sorted(versions))} in one instance: their protocols do not match across nodes",
        fix=("run the same image on every node", "remove LD_PRELOAD and VLLM_NCCL_SO_PATH settings that differ"),
        try_command="python3 -c 'import torch; print(torch.cuda.nccl.version())' on every node",
    )


class Fragmentation(Watcher):
    """An out-of-memory error with much memory reserved and unused."""

    triggers = (b"reserved by PyTorch but unallocated",)
    _UNUSED: Final = re.compile(r"([\d.]+) (GiB|MiB) is reserved by PyTorch but unallocated")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.most_gib = 0.0
        self.count = 0
        self.at: Evidence | None = None

    def line(self, number: int, text: str) -> None:
        match = self._UNUSED.search(text)
        if match is None:
            return
        unused_gib = float(match.group(1)) / (1 if match.group(2) == "GiB" else 1024)
        self.count += unused_gib >= FRAGMENTED_GIB
        if unused_gib > self.most_gib:
            start = max(0, match.start() - 60)
            self.most_gib, self.at = unused_gib, self.evidence(number, text[start : match.end() + 20])

    def found(self) -> Diagnosis | None:
        if self.most_gib < FRAGMENTED_GIB or self.at is None:
            return None
        return Diagnosis(
            id="memory-fragmented",
            title="Memory is fragmented",
            confidence=Confidence.HIGH,
            evidence=(self.at,),
            count=self.count,
            cause=f"{self.most_gib:.1f} GiB were reserved but in pieces too small when the allocation failed",
            fix=(
                "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                "lower the memory fraction, so that blocks outside of the KV cache have room",
            ),
            try_command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and start again",
        )


WATCHERS: Final[tuple[type[Watcher], ...]] = (VllmLoad, PrefillStall, NcclVersions, Fragmentation)
