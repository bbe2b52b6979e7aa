"""Traffic as values: what will be sent and what became of it.

In: a `TrafficSpec` or a trace file's text, and a seed. Out: `PlannedRequest` lists (before a run) and
`RunRecord`s (after it), which load, drill and twin write and report reads. The definitions of every figure
(measuring.md) live here. Pure: no clock, no sockets; files only as text handed in or paths handed to `store`.
"""
