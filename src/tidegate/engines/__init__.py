"""Engines as they are: what each kind calls its probes and metrics, and which habits a client must know.

In: an engine kind from the spec. Out: a `Dialect`, and for llama.cpp a command that starts a real server with a
tiny model made on the spot. Not here: talking to an engine (gateway, load) or supervising one (node). Importing
this package imports no engine; `llamacpp_server` does, and is run as a process of its own.
"""

from tidegate.engines.dialect import DIALECTS, Dialect

__all__ = ["DIALECTS", "Dialect"]
