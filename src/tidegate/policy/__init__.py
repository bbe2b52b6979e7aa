"""Decisions: who is admitted, where a request goes, what happens when something breaks.

In: events with `now` (float seconds, monotonic) — a request's head, an engine's answer, a scrape, a tick. Out:
commands (`Attempt`, `Wait`, `Refuse`, `Cancel`, `Settle`) that a shell executes in order. The gateway and the
twin run the very same objects, which is what makes the twin's promises hold live. May not be touched: no I/O, no
clock, no randomness, no callbacks; per-chunk metering stays in the shell. Compiles with mypyc.
"""
