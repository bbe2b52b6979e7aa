"""The console: one page on the admin port that shows the cluster live, and the document behind it.

In: a running gateway's own state, read once a second. Out: a page without any outside resource, a stream of events
(SSE) that keeps it current, and `/console/state` for `tidegate status` and `tidegate top`. Read-only. Everything kept
is bounded: the last 15 minutes in fixed arrays, 200 events, 32 viewers. The data path knows nothing of it; the
command that runs a gateway hands it to the admin port.
"""

from tidegate.console.live import Console

__all__ = ["Console"]
