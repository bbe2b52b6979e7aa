"""What an instance counts."""

from __future__ import annotations


class Statistics:
    """What an instance's metrics would say; counters since the start, gauges now."""

    __slots__ = (
        "attended_pairs", "busy_s", "capacity_blocks", "computed_tokens", "kv_peak_blocks", "kv_used_blocks",
        "model_flops", "output_tokens", "preemptions", "prefix_hit_tokens", "prefix_query_tokens", "prompt_tokens",
        "running", "steps", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_used_blocks = 0
        self.kv_peak_blocks = 0
        self.capacity_blocks = 0
        self.preemptions = 0
        self.steps = 0
        self.busy_s = 0.0
        self.prompt_tokens = 0
        """Of prompts whose first token came."""
        self.output_tokens = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.computed_tokens = 0
        """Prompt tokens run through the model, those computed again after a preemption included."""
        self.attended_pairs = 0.0
        """Σ (token computed × tokens it attends to)."""
        self.model_flops = 0.0
