"""The cluster on a virtual clock: engine scheduler, KV cache, step cost, instances behind the gateway's own policy.

In: a `ClusterSpec`, planned requests, a seed. Out: a `RunRecord`, the same bytes for the same input. Policies are
the gateway's (`policy.Gate`), never re-implemented here, and never see a request's true output length. Nothing here
does I/O or reads a clock, but for `twin/emulate`, which puts an instance on the wall clock behind HTTP.
"""
