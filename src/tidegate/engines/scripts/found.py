"""What a reader finds in a script: words with their place, variables, the container around a command."""

from __future__ import annotations

import msgspec


class Word(msgspec.Struct, frozen=True):
    """One word of a command. `start` and `end` count characters of the source; `known` is False when the text holds
    something only a running shell could tell."""

    text: str
    start: int
    end: int
    known: bool = True


class Variable(msgspec.Struct, frozen=True):
    """One environment setting. `start` to `end` is what a removal takes away; the value alone lies at `value_start`
    to `value_end`."""

    name: str
    value: str
    start: int
    end: int
    value_start: int
    value_end: int
    known: bool = True


class Container(msgspec.Struct, frozen=True):
    """What is around the command. `kind`: docker, compose or kubernetes. None: not said."""

    kind: str
    image: str = ""
    shm_said: bool = False
    """Shared memory was set, or the host's IPC namespace is used."""
    grace_s: float | None = None
    """How long the container may take to stop before it is killed."""


class FoundLaunch(msgspec.Struct, frozen=True):
    """One engine command. `words` are what follows the program: the options, and vLLM's positional model.

    `style` says how its source is edited: `shell` text, `block` or `flow` entries of a YAML list.
    """

    engine: str
    entry: str
    """How it is started: `vllm serve`, `vllm.entrypoints.openai.api_server`, `sglang.launch_server`, `sglang serve`,
    `image` where the container's own entry point is used."""
    program: Word | None
    words: tuple[Word, ...]
    env: tuple[Variable, ...]
    style: str
    container: Container | None = None
