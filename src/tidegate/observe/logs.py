"""Log lines: for people, or one JSON object each. Both go to stderr."""

from __future__ import annotations

import logging
import sys

import msgspec


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up(as_json: bool) -> None:
    """Sends Tidegate's own log lines to stderr. For the process that runs a command, not for libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("tidegate")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
