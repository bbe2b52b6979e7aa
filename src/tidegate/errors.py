"""How things end: the closed set of request outcomes, process exit codes and the one error type people see.

In: nothing. Out: `Outcome`, `ExitCode`, `TidegateError`. Every request ends in exactly one `Outcome`, every
command in exactly one `ExitCode`. Adding an outcome is a deliberate change: reports, metrics and invariant 1
(sent = completed + typed rejections + typed errors + client cancellations + in flight) count on the set.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class Outcome(Enum):
    """How one request ended. Closed; `group` says which term of invariant 1 it counts under."""

    COMPLETED = "completed"
    """The engine's answer was delivered whole."""
    CLIENT_CANCELLED = "client_cancelled"
    """The client went away first; the engine was told within a second."""

    BAD_REQUEST = "bad_request"
    """Refused unread by an engine: malformed HTTP or JSON, an impossible value, an unknown path."""
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_MODEL = "unknown_model"
    BODY_TOO_LARGE = "body_too_large"
    ENGINE_REFUSED = "engine_refused"
    """The engine itself answered 4xx; passed on as it came."""

    LIMITED = "limited"
    """A limit of the tenant forbids it: requests or tokens a minute, or requests at once."""
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    OVERLOADED = "overloaded"
    """Admission saw that the request cannot meet its SLO and refused it at once."""
    NO_INSTANCE = "no_instance"
    """No ready instance serves the model."""
    DRAINING = "draining"
    """The gateway is stopping and takes no new work."""

    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_ERROR = "engine_error"
    """The engine answered 5xx, or nothing that parses."""
    ENGINE_TIMEOUT = "engine_timeout"
    STREAM_BROKEN = "stream_broken"
    """A stream ended early after its first token; the client got one in-band error event."""
    INTERNAL_ERROR = "internal_error"
    """A defect of Tidegate. Any count above zero is a bug."""

    CLIENT_TIMEOUT = "client_timeout"
    """Seen only by a load driver: it gave up waiting."""
    TRUNCATED = "truncated"
    """Seen only by a load driver: the stream ended with neither finish reason nor error event."""

    @property
    def group(self) -> str:
        """One of `completed`, `rejected`, `error`, `cancelled`."""
        return _GROUPS[self]


_REJECTED: Final = (
    Outcome.BAD_REQUEST,
    Outcome.UNAUTHORIZED,
    Outcome.UNKNOWN_MODEL,
    Outcome.BODY_TOO_LARGE,
    Outcome.ENGINE_REFUSED,
    Outcome.LIMITED,
    Outcome.QUEUE_FULL,
    Outcome.QUEUE_TIMEOUT,
    Outcome.OVERLOADED,
    Outcome.NO_INSTANCE,
    Outcome.DRAINING,
)
_GROUPS: Final[dict[Outcome, str]] = {
    outcome: "completed"
    if outcome is Outcome.COMPLETED
    else "cancelled"
    if outcome is Outcome.CLIENT_CANCELLED
    else "rejected"
    if outcome in _REJECTED
    else "error"
    for outcome in Outcome
}


class ExitCode(IntEnum):
    """How a `tidegate` process ends. Scripts and supervisors may rely on these."""

    OK = 0
    FAILED = 1
    """The command ran and its answer is no: a check failed, an SLO was missed, an invariant broke."""
    USAGE = 2
    """The command line is wrong."""
    BAD_INPUT = 3
    """A file or value handed in is wrong; starting again changes nothing."""
    UNAVAILABLE = 4
    """Something needed is not there: port in use, engine dead, permission missing."""
    DEFECT = 70
    """A bug in Tidegate."""
    INTERRUPTED = 130


class TidegateError(Exception):
    """What a person is told: one sentence with what is wrong and where, a hint how to mend it, an exit code.

    Not for requests: a request that ends badly is an `Outcome`, never an exception.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadInputError(TidegateError):
    """A file, value or option from the user is wrong. Retrying does not help; `UnavailableError` may pass."""

    exit_code = ExitCode.BAD_INPUT


class UnavailableError(TidegateError):
    """The surroundings are not as needed (port in use, engine dead). Retrying may help."""

    exit_code = ExitCode.UNAVAILABLE
