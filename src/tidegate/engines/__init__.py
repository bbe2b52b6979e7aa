"""Engines as they are: what each version calls its options, variables and metrics, and the rules on them.

In: an engine kind or version, a profile, a launch script, a model's shape, an engine's logs and pages. Out: a
`Dialect`; argv and environment (`launch`); findings and corrected scripts (`lint`); where memory goes (`fit`); causes
(`doctor`); and for llama.cpp a command that starts a real server with a tiny model. The data is in `tables`.
Not here: talking to an engine (gateway, load) or supervising one (node). Importing this package imports no engine and
runs nothing; `installed` asks an installed engine for its help, `llamacpp_server` is run as a process of its own.
"""

from tidegate.engines.dialect import DIALECTS, Dialect

__all__ = ["DIALECTS", "Dialect"]
