"""Rules on what is missing or habitual: metrics, drain, eager mode, addresses, shared memory, entry points."""

from __future__ import annotations

from typing import Final

from tidegate.engines.lint import edit
from tidegate.engines.lint.context import Context
from tidegate.engines.lint.edit import Edit

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_GRACE_S: Final = {"kubernetes": 30.0, "compose": 10.0}
"""How long a stopping container gets when nothing is said."""


def judge_habits(context: Context) -> None:
    """Everything that is not about one option's own correctness."""
    _metrics(context)
    _eager(context)
    _shutdown(context)
    _address(context)
    _shared_memory(context)
    _entry(context)
    _prefill_first(context)
    _restated_switches(context)
    _small_chunk(context)


def _metrics(context: Context) -> None:
    if context.launch.engine != "sglang" or context.parsed.find("--enable-metrics") is not None:
        return
    context.say(
        "metrics-off",
        context.start,
        "SGLang serves no /metrics unless told to",
        why="without it the gateway cannot see the KV cache or the queue",
        edits=_added(context, ["--enable-metrics"]),
    )


def _eager(context: Context) -> None:
    name = "--enforce-eager" if context.launch.engine == "vllm" else "--disable-cuda-graph"
    use = context.parsed.find(name)
    if use is not None and use.option is not None and use.option.kind == "flag":
        context.say(
            "eager-mode",
            use.word.start,
            f"{use.name} switches CUDA graphs off",
            why="good for a quick start or debugging; every decode step then pays for its kernel launches",
            edits=edit.remove(context.source, context.launch, use.words),
        )


def _shutdown(context: Context) -> None:
    container = context.launch.container
    if context.launch.engine == "vllm" and context.options.find("--shutdown-timeout") is not None:
        use = context.parsed.find("--shutdown-timeout")
        if use is None:
            context.say(
                "shutdown-cuts-streams",
                context.start,
                "without --shutdown-timeout SIGTERM ends every stream at once",
                why="the default is 0: streams end as if complete, or hang until the client leaves",
                advice="add --shutdown-timeout 30, or drain in front before SIGTERM is sent",
            )
            return
        wanted = use.value
        grace = container.grace_s or _GRACE_S.get(container.kind) if container is not None else None
        if wanted is not None and wanted.isdigit() and grace is not None and int(wanted) + 5 > grace:
            context.say(
                "grace-too-short",
                use.word.start,
                f"the container is killed after {grace:g} s, the engine drains for {wanted} s",
                why="teardown takes about 5 s more than the drain",
                advice=f"set the grace period to at least {int(wanted) + 10} s",
            )


def _address(context: Context) -> None:
    container = context.launch.container
    if container is None:
        return
    use = context.parsed.find("--host")
    silent = use is None and context.launch.engine == "sglang"
    if silent or (use is not None and use.value in _LOOPBACK):
        edits: list[Edit] = []
        if use is None:
            edits = _added(context, ["--host", "0.0.0.0"])
        elif not use.inline:
            edits = [edit.replace(context.source, context.launch, use.values[0], "0.0.0.0")]
        context.say(
            "host-unreachable",
            use.word.start if use is not None else context.start,
            "the server listens on 127.0.0.1 inside the container",
            why="SGLang's default host is the loopback address" if silent else "",
            edits=edits,
        )


def _shared_memory(context: Context) -> None:
    container = context.launch.container
    name = "--tensor-parallel-size" if context.launch.engine == "vllm" else "--tp-size"
    use = context.parsed.find(name)
    if container is None or container.shm_said or use is None or not (use.value or "").isdigit():
        return
    if int(use.value or "1") > 1:
        how = {
            "docker": "--shm-size 16g or --ipc=host",
            "compose": "shm_size: 16gb or ipc: host",
            "kubernetes": "an emptyDir of medium Memory mounted at /dev/shm",
        }[container.kind]
        context.say(
            "shm-small",
            use.word.start,
            f"tensor parallelism over {use.value} GPUs shares memory that a container limits to 64 MiB",
            why="NCCL and the workers talk through /dev/shm",
            advice=f"add {how}",
        )


def _entry(context: Context) -> None:
    launch = context.launch
    if launch.program is None:
        return
    if launch.entry == "sglang.launch_server":
        why = "the module announces it at start; it still works"
        context.say("entry-superseded", launch.program.start, "sglang serve is the recommended entry point", why=why)
    elif launch.entry == "vllm.entrypoints.openai.api_server" and _since_0_30(context):
        why = "the module warns since 0.30 that it will go; it still works"
        context.say(
            "entry-superseded", launch.program.start, "vllm serve MODEL is the recommended entry point", why=why
        )
    elif launch.entry == "vllm.entrypoints.api_server":
        why = "it was a demonstration and has neither streaming chat nor metrics"
        context.say("entry-superseded", launch.program.start, "this is not the OpenAI-compatible server", why=why)


def _since_0_30(context: Context) -> bool:
    return context.table.within("0.30.0-", context.options.version) is True


def _prefill_first(context: Context) -> None:
    if context.launch.engine != "sglang" or context.parsed.find("--enable-mixed-chunk") is not None:
        return
    context.say(
        "prefill-starves-decode",
        context.start,
        "while prompts wait, SGLang prefills them and open streams stand still",
        why="measured on one H200 under a pulse: gaps up to 20.9 s, 461 of 894 requests with one above a second;"
        " a smaller --chunked-prefill-size bounds one batch, not the stall",
        advice="try --enable-mixed-chunk, or bound the queued prompts in front of the engine",
    )


_ON_ANYWAY: Final = {
    "--enable-chunked-prefill": "chunked prefill is on wherever the model allows it",
    "--enable-prefix-caching": "the prefix cache is on wherever the model allows it",
    "--disable-log-requests": "requests are not logged unless asked for",
    "--no-enable-log-requests": "requests are not logged unless asked for",
}
_LEAST_AUTOMATIC_CHUNK: Final = 2048


def _restated_switches(context: Context) -> None:
    """Switches that say what present versions do anyway; old ones needed them."""
    if context.launch.engine != "vllm" or context.table.within("0.11.2-", context.options.version) is not True:
        return
    for use in context.parsed.uses:
        why = _ON_ANYWAY.get(use.name)
        if why is not None and use.option is not None and use.stray is None:
            text = f"{use.name} is what {context.options.label} does anyway"
            context.say("default-restated", use.word.start, text, why=why)


def _small_chunk(context: Context) -> None:
    use = context.parsed.find("--chunked-prefill-size")
    if use is None or not (use.value or "").isdigit() or int(use.value or "0") >= _LEAST_AUTOMATIC_CHUNK:
        return
    context.say(
        "below-default",
        use.word.start,
        f"--chunked-prefill-size {use.value} is below every size SGLang takes by itself (2048 and more)",
        why="smaller chunks cost prefill throughput and do not keep prompts from stopping decode",
    )


def _added(context: Context, words: list[str]) -> list[Edit]:
    after = context.parsed.model or (context.launch.words[-1] if context.launch.words else context.launch.program)
    return [edit.add(context.source, context.launch, after, words)] if after is not None else []
