"""Tidegate keeps LLM inference clusters up, fast and within their SLA through the traffic peak.

Three flows run through the package: *requests* (client → gateway → policy → engine), *configuration*
(spec → twin and tune → lock → node) and *evidence* (load, drill and twin → report). Each sub-package is one
room; its docstring says what comes in, what goes out and what may not be touched.
"""

__version__ = "0.1.0"
