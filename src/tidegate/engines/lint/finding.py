"""A finding, its rule and its severity."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from tidegate.engines.lint.edit import Edit


class Severity(IntEnum):
    """`ERROR`: it will not start, or dies under load. `WARNING`: it runs, but not as meant. `NOTE`: worth knowing."""

    NOTE = 1
    WARNING = 2
    ERROR = 3


RULES: Final[dict[str, tuple[Severity, str]]] = {
    "option-removed": (Severity.ERROR, "The option existed, but this version does not take it."),
    "option-renamed": (Severity.ERROR, "The option has another name or form in this version."),
    "option-deprecated": (Severity.WARNING, "The option still works and announces its end."),
    "option-misspelt": (Severity.ERROR, "No such option; another one is spelt nearly the same."),
    "option-unknown": (Severity.ERROR, "No such option in any recorded version."),
    "option-of-other-engine": (Severity.ERROR, "The option belongs to the other engine, under another name here."),
    "option-too-new": (Severity.ERROR, "The option came with a later version."),
    "option-uncertain": (Severity.NOTE, "Whether this version takes the option is not recorded."),
    "option-abbreviated": (Severity.NOTE, "The parser completes it today; a new option makes it ambiguous."),
    "option-ambiguous": (Severity.ERROR, "The abbreviation fits several options."),
    "option-repeated": (Severity.WARNING, "Given twice: the last one wins."),
    "flag-with-value": (Severity.ERROR, "A switch takes no value; the word after it stops the parser."),
    "word-unexpected": (Severity.ERROR, "A word that belongs to no option stops the parser."),
    "value-missing": (Severity.ERROR, "The option needs a value."),
    "value-wrong": (Severity.ERROR, "The value is not of the option's kind."),
    "value-out-of-range": (Severity.ERROR, "The value cannot work."),
    "value-uncommon": (Severity.WARNING, "The value is not among those the engine lists."),
    "env-removed": (Severity.WARNING, "This version does not read the variable."),
    "env-unknown": (Severity.WARNING, "No recorded version reads the variable."),
    "env-overwritten": (Severity.NOTE, "The engine sets the variable itself."),
    "env-default": (Severity.NOTE, "The variable says what is so anyway."),
    "env-legacy": (Severity.WARNING, "The value is written in an old way."),
    "env-not-read": (Severity.NOTE, "The engine does not read it; something below may."),
    "default-restated": (Severity.NOTE, "The option repeats the engine's default."),
    "below-default": (Severity.NOTE, "The value is lower than what the engine takes unasked."),
    "entry-superseded": (Severity.NOTE, "The program works and has a recommended successor."),
    "metrics-off": (Severity.WARNING, "Without metrics the instance cannot be watched or routed by load."),
    "eager-mode": (Severity.WARNING, "CUDA graphs are off: decode is slower."),
    "shutdown-cuts-streams": (Severity.WARNING, "SIGTERM ends every stream at once."),
    "grace-too-short": (Severity.WARNING, "The container is killed before the engine has drained."),
    "host-unreachable": (Severity.WARNING, "The server listens where nobody outside the container can reach it."),
    "shm-small": (Severity.WARNING, "Tensor parallelism needs more shared memory than a container's 64 MiB."),
    "prefill-starves-decode": (Severity.NOTE, "Prompts are prefilled before any open stream goes on."),
    "memory-fraction-high": (Severity.WARNING, "Too little memory is left beside the engine's share."),
    "weights-do-not-fit": (Severity.ERROR, "The weights and the working memory exceed the engine's share."),
    "headroom-small": (Severity.WARNING, "Little memory is left outside of the engine's share."),
    "kv-too-small": (Severity.ERROR, "Not even one request of full length fits the KV cache."),
    "kv-shared-thin": (Severity.WARNING, "More sequences than the KV cache holds at a usual length."),
    "parallelism-impossible": (Severity.ERROR, "The heads cannot be divided among that many GPUs."),
    "kv-format-unsupported": (Severity.ERROR, "The GPU cannot compute in this KV format."),
    "dtype-unsupported": (Severity.ERROR, "The GPU cannot compute in this number format."),
    "context-beyond-rope": (Severity.ERROR, "The context is longer than the model's positions."),
    "step-exceeds-itl": (Severity.WARNING, "One full step takes longer than the ITL promised."),
    "burst-capacity": (Severity.WARNING, "The burst exceeds what the instance runs and queues."),
}
"""Every rule: its usual severity and what it means. `docs/reference/lint-rules.md` lists them."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `line` and `column` count from 1. `edits` is what --fix does; empty: nothing."""

    rule: str
    severity: Severity
    line: int
    column: int
    text: str
    """One sentence: what is wrong."""
    why: str = ""
    """Reason and evidence."""
    advice: str = ""
    """What a person should do, where no edit can."""
    edits: tuple[Edit, ...] = ()
    corrected: str = ""
    """The line or lines after the fix."""
