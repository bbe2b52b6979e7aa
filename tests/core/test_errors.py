"""Every ending counts once, and a failed command says one thing and ends with the right code."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tidegate import cli
from tidegate.errors import BadInputError, ExitCode, Outcome, TidegateError, UnavailableError


def test_every_outcome_counts_under_exactly_one_term_of_the_balance() -> None:
    groups = Counter(outcome.group for outcome in Outcome)
    assert set(groups) == {"completed", "rejected", "error", "cancelled"}
    assert sum(groups.values()) == len(Outcome)
    assert groups["completed"] == groups["cancelled"] == 1


@pytest.mark.parametrize(
    "outcome", [Outcome.QUEUE_FULL, Outcome.UNKNOWN_MODEL, Outcome.DRAINING, Outcome.ENGINE_REFUSED]
)
def test_a_request_that_no_engine_worked_on_is_rejected_not_failed(outcome: Outcome) -> None:
    assert outcome.group == "rejected"


@pytest.mark.parametrize(
    "outcome", [Outcome.ENGINE_ERROR, Outcome.STREAM_BROKEN, Outcome.TRUNCATED, Outcome.INTERNAL_ERROR]
)
def test_a_request_that_broke_is_an_error(outcome: Outcome) -> None:
    assert outcome.group == "error"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInputError("x.yaml: wrong", hint="mend it"), ExitCode.BAD_INPUT),
        (UnavailableError("port 80 is taken", hint="mend it"), ExitCode.UNAVAILABLE),
        (TidegateError("the SLO was missed", hint="mend it"), ExitCode.FAILED),
    ],
)
def test_a_command_that_fails_says_one_sentence_and_how_to_mend_it(
    error: TidegateError, code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr("tidegate.cli.check.command", command)
    assert cli.run(["check"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: {error.message}\nhint: mend it\n"


def test_the_process_ends_with_the_code_of_the_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "check", "/no/such/file.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.startswith("error: /no/such/file.yaml: there is no such file")
    assert "Traceback" not in done.stderr
