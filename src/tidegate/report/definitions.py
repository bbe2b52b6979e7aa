"""What every printed figure means. A report always shows these, because tools disagree on every word."""

from __future__ import annotations

from typing import Final

DEFINITIONS: Final[dict[str, str]] = {
    "TTFT": "first chunk with content, reasoning or a tool call − intended send time of the open-loop schedule; "
    "role-only chunks, usage and [DONE] do not count; streamed requests that got a first token",
    "ITL": "time between consecutive token-carrying chunks ÷ tokens in a chunk (the answer's mean, where usage counts "
    "more tokens than chunks), pooled over all requests",
    "Longest gap": "the largest gap between chunks of one request; percentiles over requests",
    "TPOT": "(last token − first token) ÷ (output tokens − 1), per request, tokens from usage",
    "E2E": "intended send time to the last token, completed streams",
    "Throughput": "output tokens (from usage) and completions per second inside the measured window; only completed "
    "requests; an answer that crosses the window's edge counts by the share of its stream inside",
    "Goodput": "requests that completed with TTFT within the SLO and at least 99 % of their gaps within the ITL SLO "
    "÷ all sent; failures, rejections and unfinished count against it. A non-streamed answer must be there within "
    "TTFT + ITL × (tokens − 1)",
    "Crash rate": "instance exits nobody asked for ÷ instance-hours; and, once there was one, the share of requests "
    "that ended unreachable, broken or truncated (an upper bound)",
    "Preemptions": "times an engine threw a running request out of its KV cache and computed it again",
    "MFU": "model FLOPs of processed tokens ÷ (dense peak of the weights' dtype × observed time), all instances",
    "KV peak": "highest KV cache use of any instance",
    "Cost": "GPUs × price per hour × window ÷ million tokens of completed requests; split between prompt and output "
    "tokens by the stated share",
    "Accounting": "sent = completed + rejections + errors + cancellations + in flight, the left side counted apart",
    "Percentiles": "nearest rank from a merged full-resolution histogram, at most 0.2 % above the exact value",
}
