"""The emulated engine: the twin's instance on the wall clock, behind HTTP, with vLLM's face.

In: an `EngineProfile`, HTTP requests as vLLM 0.33 takes them. Out: answers of deterministic words at the moments
the twin's scheduler and step costs say, vLLM's metrics and errors. The one part of the twin that reads a clock and
opens a socket. Not to be touched: how long a step takes and what fits in memory, which are the twin's to say.
"""
