"""A profile and an engine version → argv and environment, with every adaptation said in a sentence.

In: `LaunchProfile` and an `OptionSet` (one version's, or the installed engine's own). Out: `Launch`. Nothing is
dropped, renamed or left to a default silently. Errors: `BadInputError` when the engine cannot do what is asked at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.engines.notes import notes
from tidegate.engines.optiontable import OptionSet, table
from tidegate.engines.profile import LaunchProfile
from tidegate.errors import BadInputError


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command and its environment. `adaptations`: one sentence for each thing that differs from the profile."""

    argv: tuple[str, ...]
    env: dict[str, str]
    adaptations: tuple[str, ...]


WORDS: Final[dict[str, dict[str, str]]] = {
    "gpus": {"vllm": "--tensor-parallel-size", "sglang": "--tp-size"},
    "stages": {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size"},
    "dtype": {"vllm": "--dtype", "sglang": "--dtype"},
    "quantization": {"vllm": "--quantization", "sglang": "--quantization"},
    "kv_cache": {"vllm": "--kv-cache-dtype", "sglang": "--kv-cache-dtype"},
    "memory_fraction": {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"},
    "step_tokens": {"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size"},
    "max_sequences": {"vllm": "--max-num-seqs", "sglang": "--max-running-requests"},
    "context_tokens": {"vllm": "--max-model-len", "sglang": "--context-length"},
    "block_tokens": {"vllm": "--block-size", "sglang": "--page-size"},
    "attention_backend": {"vllm": "--attention-backend", "sglang": "--attention-backend"},
    "schedule_policy": {"vllm": "--scheduling-policy", "sglang": "--schedule-policy"},
    "swap_gib": {"vllm": "--swap-space", "sglang": ""},
    "drain_s": {"vllm": "--shutdown-timeout", "sglang": ""},
    "served_name": {"vllm": "--served-model-name", "sglang": "--served-model-name"},
    "host": {"vllm": "--host", "sglang": "--host"},
    "port": {"vllm": "--port", "sglang": "--port"},
}
"""What each engine calls the settings that carry a value; empty where it has none."""

_VALUES: Final[dict[str, dict[str, str]]] = {
    "vllm": {"fp8": "fp8", "bf16": "auto"},
    "sglang": {"fp8": "fp8_e4m3", "bf16": "auto"},
}
_POLICIES: Final = {"vllm": {"fcfs", "priority"}, "sglang": {"lpm", "random", "fcfs", "dfs-weight", "lof", "priority"}}


def launch(profile: LaunchProfile, options: OptionSet) -> Launch:
    """The command for the engine `options` speaks for. Raises BadInputError when the profile names no model."""
    if not profile.model:
        raise BadInputError("the profile names no model", hint="give a path or a hub name, for example --model DIR")
    writer = _Writer(profile, options)
    writer.write()
    return Launch(argv=tuple(writer.argv), env=writer.env, adaptations=tuple(writer.said))


class _Writer:
    """Collects words, environment and sentences for one launch."""

    def __init__(self, profile: LaunchProfile, options: OptionSet) -> None:
        self.profile = profile
        self.options = options
        self.engine = options.engine
        self.argv = _entry(options)
        self.env = dict(profile.env)
        self.said: list[str] = []

    def write(self) -> None:
        name = "--model-path" if self.engine == "sglang" else "--model"
        self.argv += [name, self.profile.model]
        for field in WORDS:
            self._setting(field)
        self._switches()
        self._environment()

    def _setting(self, field: str) -> None:
        value = getattr(self.profile, field)
        if value is None:
            return
        name = WORDS[field][self.engine]
        if field == "attention_backend" and self._backend_by_variable(str(value)):
            return
        if field == "schedule_policy" and value not in _POLICIES[self.engine]:
            self.said.append(f"scheduling policy {value!r} is not one of {self.options.label}'s: left at its default.")
            return
        if not name:
            self.said.append(f"{self.options.label} has no setting for {field} ({value}): dropped.")
            return
        if self._takes(name):
            self.argv += [name, self._value(field, value)]
        else:
            self.said.append(self._gone(name))

    def _takes(self, name: str) -> bool:
        if name in self.options.uncertain:
            self.said.append(f"Whether {self.options.label} takes {name} is not known: check it against its --help.")
        return self.options.find(name) is not None

    def _value(self, field: str, value: object) -> str:
        if field == "kv_cache":
            told = _VALUES[self.engine].get(str(value), str(value))
            if told != value:
                self.said.append(f"{self.engine} calls the KV format {value!r} {told!r}.")
            return told
        if field == "attention_backend" and self.engine == "sglang":
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _gone(self, name: str) -> str:
        entry = table(self.engine).file.names.get(name)
        gone = table(self.engine).gone(entry.spans, self.options.version) if entry is not None else ""
        change = notes(self.engine).options.get(name)
        because = ", ".join(part for part in (gone, change.why if change else "") if part)
        return f"{self.options.label} does not take {name}" + (f" ({because})" if because else "") + ": dropped."

    def _backend_by_variable(self, value: str) -> bool:
        """Old vLLM reads the attention backend from the environment only."""
        if self.engine != "vllm" or self.options.find("--attention-backend") is not None:
            return False
        self.env["VLLM_ATTENTION_BACKEND"] = value
        self.said.append(f"{self.options.label} has no --attention-backend: set VLLM_ATTENTION_BACKEND={value}.")
        return True

    def _switches(self) -> None:
        profile = self.profile
        if self.engine == "vllm":
            self._switch(profile.chunked_prefill, "--enable-chunked-prefill", "--no-enable-chunked-prefill")
            self._switch(profile.prefix_cache, "--enable-prefix-caching", "--no-enable-prefix-caching")
            self._request_logging()
            return
        self._by_absence(profile.prefix_cache, "--disable-radix-cache", "the prefix cache")
        if profile.chunked_prefill is False:
            self.argv += ["--chunked-prefill-size", "-1"]
        if profile.log_requests:
            self.argv.append("--log-requests")
        if profile.metrics is not False:
            self.argv.append("--enable-metrics")
            if profile.metrics is None:
                self.said.append("sglang serves no /metrics unless told to: added --enable-metrics.")

    def _switch(self, wanted: bool | None, on: str, off: str) -> None:
        if wanted is not None:
            self.argv.append(on if wanted else off)

    def _by_absence(self, wanted: bool | None, off: str, what: str) -> None:
        if wanted is False:
            self.argv.append(off)
        elif wanted:
            self.said.append(f"{self.options.label} has {what} on by default and no option to say so: nothing written.")

    def _request_logging(self) -> None:
        wanted = self.profile.log_requests
        if wanted is None:
            return
        if self.options.find("--enable-log-requests") is not None:
            if wanted:
                self.argv.append("--enable-log-requests")
            else:
                self.said.append(
                    f"{self.options.label} logs no requests unless told to: --disable-log-requests dropped."
                )
        elif not wanted:
            self.argv.append("--disable-log-requests")

    def _environment(self) -> None:
        known = table(self.engine).file.env
        for name in list(self.env):
            if name == "CUDA_DEVICE_MAX_CONNECTIONS" and self.engine == "sglang":
                self.said.append("sglang sets CUDA_DEVICE_MAX_CONNECTIONS to 8 itself: dropped.")
                del self.env[name]
            elif name.startswith(("VLLM_", "SGLANG_")) and not name.startswith(self.engine.upper() + "_"):
                self.said.append(f"{name} belongs to another engine: dropped.")
                del self.env[name]
            elif name in known and table(self.engine).within(known[name], self.options.version) is False:
                self.said.append(f"{name} is not read by {self.options.label}: dropped.")
                del self.env[name]
        if self.env.get("NCCL_NET_GDR_LEVEL", "").isdigit():
            self._name_gdr_level(int(self.env["NCCL_NET_GDR_LEVEL"]))

    def _name_gdr_level(self, level: int) -> None:
        name = GDR_LEVELS[min(level, len(GDR_LEVELS) - 1)]
        self.said.append(f"NCCL_NET_GDR_LEVEL={level} is the old way to write {name}: written so.")
        self.env["NCCL_NET_GDR_LEVEL"] = name


GDR_LEVELS: Final = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""NCCL_NET_GDR_LEVEL by its legacy number; 4 and everything above mean SYS (NCCL's environment page)."""


def _entry(options: OptionSet) -> list[str]:
    if options.engine == "vllm":
        return ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    return ["python3", "-m", "sglang.launch_server"]
