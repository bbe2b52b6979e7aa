"""What measured runs add to the kernel tables, in a few constants.

A step without prefill takes `decode_factor` × table + `decode_constant_s` + `decode_stream_s` × streams; a step that
holds any prefill takes `prefill_factor` × table + `prefill_constant_s` + `prefill_stream_s` × streams beside it.
Around the engine there is its API server: a request reaches the scheduler `ingest_s` + `ingest_token_s` × prompt
tokens after it was sent, and every chunk costs the server `front_chunk_s` one after the other, so that readers lag
behind the engine once streams ÷ `front_chunk_s` is above what it can write. Defaults add nothing.
"""

from __future__ import annotations


class Calibration:
    """See the module's docstring. Immutable by convention: step costs are memoised from it."""

    __slots__ = (
        "decode_constant_s", "decode_factor", "decode_stream_s", "front_chunk_s", "ingest_s", "ingest_token_s",
        "prefill_constant_s", "prefill_factor", "prefill_stream_s",
    )  # fmt: skip

    def __init__(
        self,
        decode_factor: float = 1.0,
        decode_constant_s: float = 0.0,
        prefill_factor: float = 1.0,
        prefill_constant_s: float = 0.0,
        decode_stream_s: float = 0.0,
        prefill_stream_s: float = 0.0,
        ingest_s: float = 0.0,
        ingest_token_s: float = 0.0,
        front_chunk_s: float = 0.0,
    ) -> None:
        self.decode_factor = decode_factor
        self.decode_constant_s = decode_constant_s
        self.prefill_factor = prefill_factor
        self.prefill_constant_s = prefill_constant_s
        self.decode_stream_s = decode_stream_s
        self.prefill_stream_s = prefill_stream_s
        self.ingest_s = ingest_s
        self.ingest_token_s = ingest_token_s
        self.front_chunk_s = front_chunk_s

    def values(self) -> dict[str, float]:
        """The constants by name, as they are written to a file."""
        return {
            "decode_factor": self.decode_factor,
            "decode_constant_s": self.decode_constant_s,
            "decode_stream_s": self.decode_stream_s,
            "prefill_factor": self.prefill_factor,
            "prefill_constant_s": self.prefill_constant_s,
            "prefill_stream_s": self.prefill_stream_s,
            "ingest_s": self.ingest_s,
            "ingest_token_s": self.ingest_token_s,
            "front_chunk_s": self.front_chunk_s,
        }


def slowed(calibration: Calibration, factor: float) -> Calibration:
    """The same, on a GPU that takes `factor` times as long for every step."""
    return Calibration(
        calibration.decode_factor * factor,
        calibration.decode_constant_s * factor,
        calibration.prefill_factor * factor,
        calibration.prefill_constant_s * factor,
        calibration.decode_stream_s * factor,
        calibration.prefill_stream_s * factor,
        calibration.ingest_s,
        calibration.ingest_token_s,
        calibration.front_chunk_s,
    )


def lag_after(lag_s: float, elapsed_s: float, steps: int, chunk_s: float) -> float:
    """How far a front end that needs `chunk_s` for the chunks of one step is behind at the end of `steps` steps, which
    took `elapsed_s` since it was `lag_s` behind."""
    step_s = elapsed_s / steps
    first_s = max(lag_s - step_s, 0.0) + chunk_s
    return max(first_s + (steps - 1) * (chunk_s - step_s), chunk_s)


class FrontEnd:
    """An engine's API server as a queue of chunks: `lag_s` is how long after the end of the last step its last token
    reaches a reader, `rise_s` by how much that rose (or fell) with each of the steps before."""

    __slots__ = ("_at_s", "lag_s", "rise_s")

    def __init__(self) -> None:
        self._at_s = 0.0
        self.lag_s = 0.0
        self.rise_s = 0.0

    def steps_ended(self, start_s: float, end_s: float, steps: int, chunk_s: float) -> None:
        """`steps` steps ran from `start_s` to `end_s`, each with chunks that take `chunk_s` to write."""
        idle_s = start_s - self._at_s
        before_s = max(0.0, self.lag_s - idle_s)
        self.lag_s = lag_after(self.lag_s, end_s - self._at_s, steps, chunk_s)
        self.rise_s = (self.lag_s - before_s) / steps
        self._at_s = end_s
