"""What the gate decides, told as playbooks on a manual clock."""

from __future__ import annotations

import pytest

from tidegate.errors import Outcome
from tidegate.policy import lifecycle
from tidegate.policy.gate import Gate
from tidegate.policy.ledger import EngineSample
from tidegate.policy.ticket import Cancel, Usage
from tidegate.testing.playbook import at_rest, attempt_of, gate, head, refusal_of, settled, words


def test_a_request_runs_from_head_to_settled() -> None:
    g = gate()
    attempt = attempt_of(g.open(head(), 1.0))
    assert g.first_token(attempt, 1.2) == []
    commands = g.finished(attempt, Usage(100, 50), 2.0)
    assert words(commands) == ["settle 1 completed"]
    assert at_rest(g)


def test_in_flight_counts_at_the_decision_so_a_burst_spreads_evenly() -> None:
    g = gate(instances=4)
    for _ in range(16):
        g.open(head(), 1.0)
    assert [i.in_flight for i in g.instances] == [4, 4, 4, 4]


def test_ties_rotate_when_requests_come_one_by_one() -> None:
    g = gate(instances=3)
    names = []
    for n in range(6):
        attempt = attempt_of(g.open(head(), float(n)))
        names.append(attempt.instance.name)
        g.finished(attempt, None, n + 0.5)
    assert sorted(names) == ["i1", "i1", "i2", "i2", "i3", "i3"]


def test_the_instance_with_less_active_kv_is_chosen() -> None:
    g = gate()
    for instance, used in zip(g.instances, (0.6, 0.2), strict=True):
        g.sampled(instance, EngineSample(kv_used_fraction=used, capacity_blocks=1000, block_tokens=16), 1.0)
    assert [attempt_of(g.open(head(), 1.0)).instance.name for _ in range(3)] == ["i2"] * 3


def test_a_scrape_that_went_stale_fades_instead_of_stopping_dispatch() -> None:
    g = gate()
    busy = EngineSample(kv_used_fraction=0.99, capacity_blocks=1000, block_tokens=16)
    for instance in g.instances:
        g.sampled(instance, busy, 1.0)
        g.open(head(), 1.0)
    assert words(g.open(head(800), 1.1)) == ["wait 3"], "no KV room while the scrape is fresh"
    assert words(g.tick(2.0)) == ["refuse 3 queue_timeout", "settle 3 queue_timeout"]
    attempt_of(g.open(head(800), 60.0))


def test_an_absent_metric_is_unknown_and_admits_by_our_own_counts() -> None:
    g = gate(admission={"max_in_flight": 2}, instances=1)
    g.sampled(g.instances[0], EngineSample(), 1.0)
    assert words(g.open(head(), 1.0) + g.open(head(), 1.0) + g.open(head(), 1.0)) == [
        "attempt 1 → i1",
        "attempt 2 → i1",
        "wait 3",
    ]


def test_room_given_back_goes_to_whoever_waits() -> None:
    g = gate(instances=1, admission={"max_in_flight": 1})
    first = attempt_of(g.open(head(), 1.0))
    assert words(g.open(head(), 1.1)) == ["wait 2"]
    assert words(g.finished(first, None, 1.2)) == ["settle 1 completed", "attempt 2 → i1"]


def test_a_first_token_frees_prefill_room() -> None:
    g = gate(instances=1, admission={"max_prefill_tokens": 1000})
    first = attempt_of(g.open(head(900), 1.0))
    assert words(g.open(head(200), 1.1)) == ["wait 2"]
    assert words(g.first_token(first, 1.2)) == ["attempt 2 → i1"]


def test_a_whole_answer_frees_prefill_room_after_the_slos_ttft_not_at_its_end() -> None:
    g = gate(instances=1, admission={"max_prefill_tokens": 1000}, queue={"max_wait_s": 5.0})
    whole = head(900)
    whole.stream = False
    attempt = attempt_of(g.open(whole, 1.0))
    g.open(head(200), 1.1)
    assert words(g.tick(1.7)) == []
    assert words(g.tick(1.8)) == ["attempt 2 → i1"]
    g.first_token(attempt, 9.0)
    g.finished(attempt, None, 9.0)
    assert g.instances[0].prefill_tokens == 200


def test_a_prompt_beyond_the_bound_goes_in_alone() -> None:
    g = gate(instances=1, admission={"max_prefill_tokens": 1000})
    attempt = attempt_of(g.open(head(50_000), 1.0))
    assert attempt.instance.name == "i1"


def test_higher_classes_leave_the_queue_first() -> None:
    g = gate(instances=1, admission={"max_in_flight": 1})
    running = attempt_of(g.open(head(), 1.0))
    g.open(head(priority=3), 1.1)
    g.open(head(priority=0), 1.2)
    assert words(g.finished(running, None, 1.3))[1] == "attempt 3 → i1"


@pytest.mark.parametrize(
    ("bound", "body", "said"),
    [({"max_requests": 1}, 400, "1 requests waiting"), ({"max_bytes": 500}, 400, "bytes waiting")],
)
def test_a_full_queue_refuses_with_429_and_says_which_bound(bound: dict[str, int], body: int, said: str) -> None:
    g = gate(instances=1, admission={"max_in_flight": 1}, queue=bound)
    g.open(head(body=body), 1.0)
    g.open(head(body=body), 1.0)
    refuse = refusal_of(g.open(head(body=body), 1.0))
    assert (refuse.refusal.status, refuse.refusal.code, refuse.refusal.retryable) == (429, "queue_full", True)
    assert said in refuse.refusal.message


def test_retry_after_follows_the_measured_drain_rate() -> None:
    slow, fast = (
        gate(instances=1, admission={"max_in_flight": 1}, queue={"max_requests": 0}),
        gate(instances=1, admission={"max_in_flight": 1}, queue={"max_requests": 0}),
    )
    waits = []
    for g, gap_s in ((slow, 5.0), (fast, 0.05)):
        now = 0.0
        for _ in range(200):
            now += gap_s
            g.finished(attempt_of(g.open(head(), now - gap_s)), None, now)
        g.open(head(), now)
        waits.append(refusal_of(g.open(head(), now)).refusal.retry_after_s)
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0] >= 3 * waits[1]


def test_who_waits_too_long_is_refused_on_the_next_tick() -> None:
    g = gate(instances=1, admission={"max_in_flight": 1}, queue={"max_wait_s": 0.5})
    running = attempt_of(g.open(head(), 1.0))
    g.open(head(), 1.0)
    assert g.tick(1.4) == []
    commands = g.tick(1.5)
    assert words(commands) == ["refuse 2 queue_timeout", "settle 2 queue_timeout"]
    g.finished(running, None, 2.0)
    assert at_rest(g)


def test_without_admission_everything_goes_straight_through() -> None:
    g = gate(instances=1, admission={"enabled": False, "max_in_flight": 1})
    for _ in range(50):
        attempt_of(g.open(head(100_000), 1.0))
    assert g.instances[0].in_flight == 50


def test_an_unknown_model_is_refused_and_names_what_is_served() -> None:
    refuse = refusal_of(gate().open(head(model="nope"), 1.0))
    assert refuse.refusal.status == 404
    assert "`nope`" in refuse.refusal.message
    assert "m" in refuse.refusal.message.split("Served here:")[1]


def test_nothing_is_sent_before_an_instance_is_ready() -> None:
    g = gate(alive=False)
    assert refusal_of(g.open(head(), 1.0)).refusal.outcome is Outcome.NO_INSTANCE
    g.probed(g.instances[1], True, 2.0)
    assert attempt_of(g.open(head(), 2.1)).instance.name == "i2"


def test_a_refused_connection_is_retried_elsewhere_and_ejects_the_instance() -> None:
    g = gate()
    attempt = attempt_of(g.open(head(), 1.0))
    again = attempt_of(g.broke(attempt, "refused", 1.01))
    assert again.instance is not attempt.instance
    assert attempt.instance.state == lifecycle.EJECTED
    for n in range(5):
        assert attempt_of(g.open(head(), 1.1 + n)).instance is again.instance
    g.probed(attempt.instance, True, 9.0)
    assert attempt_of(g.open(head(), 9.1)).instance is attempt.instance


def test_after_the_first_token_a_break_ends_in_one_typed_error() -> None:
    g = gate()
    attempt = attempt_of(g.open(head(), 1.0))
    g.first_token(attempt, 1.1)
    commands = g.broke(attempt, "reset", 1.5)
    assert words(commands) == ["refuse 1 stream_broken", "settle 1 stream_broken"]
    assert g.finished(attempt, None, 1.6) == [], "late events of a closed attempt mean nothing"
    assert at_rest(g)


def test_retries_stop_at_the_pools_budget() -> None:
    g = gate(retry={"budget": 0.01})
    retried = 0
    for n in range(200):
        attempt = attempt_of(g.open(head(), float(n)))
        commands = g.broke(attempt, "reset", n + 0.1)
        if settled(commands):
            continue
        retried += 1
        g.finished(attempt_of(commands), None, n + 0.2)
    assert 10 <= retried <= 13
    assert at_rest(g)


@pytest.mark.parametrize(
    ("status", "outcome"), [(400, Outcome.ENGINE_REFUSED), (404, Outcome.ENGINE_REFUSED), (422, Outcome.ENGINE_REFUSED)]
)
def test_an_engines_4xx_is_passed_on_and_never_retried(status: int, outcome: Outcome) -> None:
    g = gate()
    commands = g.answered_badly(attempt_of(g.open(head(), 1.0)), status, None, 1.1)
    assert [t.outcome for t in settled(commands)] == [outcome]
    assert at_rest(g)


def test_an_engines_5xx_is_retried_once_and_then_passed_on() -> None:
    g = gate()
    first = attempt_of(g.open(head(), 1.0))
    second = attempt_of(g.answered_badly(first, 500, None, 1.1))
    assert second.instance is not first.instance
    assert [t.outcome for t in settled(g.answered_badly(second, 500, None, 1.2))] == [Outcome.ENGINE_ERROR]
    assert at_rest(g)


@pytest.mark.parametrize("stage", ["queued", "sent", "streaming"])
def test_a_client_that_leaves_frees_everything_at_every_stage(stage: str) -> None:
    g = gate(instances=1, admission={"max_in_flight": 1})
    running = attempt_of(g.open(head(), 1.0))
    if stage == "queued":
        ticket = g.open(head(), 1.0)[0].ticket
        assert words(g.client_gone(ticket, 1.1)) == ["settle 2 client_cancelled"]
        g.finished(running, None, 1.2)
    else:
        if stage == "streaming":
            g.first_token(running, 1.1)
        commands = g.client_gone(running.ticket, 1.2)
        assert isinstance(commands[0], Cancel)
        assert [t.outcome for t in settled(commands)] == [Outcome.CLIENT_CANCELLED]
        assert g.client_gone(running.ticket, 1.3) == []
    assert at_rest(g)


def _silent_until(g: Gate, streaming: bool) -> list[str]:
    attempt = attempt_of(g.open(head(), 0.0))
    if streaming:
        g.first_token(attempt, 1.0)
    said: list[str] = []
    for n in range(1, 60):
        said += [f"{n}: {w}" for w in words(g.tick(float(n)))]
    assert at_rest(g)
    return said


def test_first_token_and_gap_have_patience_of_their_own() -> None:
    limits = {"first_token_s": 20.0, "gap_s": 5.0, "total_s": 50.0}
    assert _silent_until(gate(timeouts=limits), streaming=False)[:2] == [
        "20: cancel 1 at i1",
        "20: refuse 1 engine_timeout",
    ]
    assert _silent_until(gate(timeouts=limits), streaming=True)[:2] == [
        "6: cancel 1 at i1",
        "6: refuse 1 stream_broken",
    ]


def test_a_whole_answer_may_take_as_long_as_a_stream_in_all() -> None:
    g = gate(timeouts={"first_token_s": 5.0, "gap_s": 5.0, "total_s": 50.0})
    asked = head()
    asked.stream = False
    g.open(asked, 0.0)
    assert [w for n in range(1, 50) for w in words(g.tick(float(n)))] == []
    assert words(g.tick(50.0))[1] == "refuse 1 engine_timeout"


def test_a_stream_that_makes_progress_is_not_timed_out() -> None:
    g = gate(timeouts={"first_token_s": 5.0, "gap_s": 5.0, "total_s": 500.0})
    attempt = attempt_of(g.open(head(), 0.0))
    g.first_token(attempt, 1.0)
    for n in range(2, 100):
        attempt.last_s = float(n)
        assert g.tick(float(n)) == []


def test_draining_refuses_new_and_queued_work_and_lets_streams_finish() -> None:
    g = gate(instances=1, admission={"max_in_flight": 1})
    running = attempt_of(g.open(head(), 1.0))
    g.open(head(), 1.0)
    assert words(g.drain(2.0)) == ["refuse 2 draining", "settle 2 draining"]
    assert refusal_of(g.open(head(), 2.1)).refusal.status == 503
    g.first_token(running, 2.2)
    assert words(g.end_drain(17.0)) == ["cancel 1 at i1", "refuse 1 stream_broken", "settle 1 stream_broken"]
    assert at_rest(g)


def test_when_the_last_instance_dies_nobody_is_left_waiting() -> None:
    g = gate(instances=1, admission={"max_in_flight": 1})
    running = attempt_of(g.open(head(), 1.0))
    g.open(head(), 1.0)
    assert words(g.probed(g.instances[0], False, 1.5)) == ["refuse 2 no_instance", "settle 2 no_instance"]
    g.broke(running, "reset", 1.6)
    assert at_rest(g)


def test_estimates_follow_the_usage_of_past_answers() -> None:
    g = gate()
    for n in range(400):
        attempt = attempt_of(g.open(head(prompt_tokens=-1, max_tokens=-1, body=3000), float(n)))
        g.finished(attempt, Usage(1000, 30), n + 0.5)
    ticket = g.open(head(prompt_tokens=-1, max_tokens=-1, body=3000), 500.0)[0].ticket
    assert ticket.prompt_tokens == pytest.approx(1000, rel=0.02)
    assert ticket.expected_output_tokens == pytest.approx(30, abs=4)


def test_each_tenant_learns_its_own_language_and_length() -> None:
    g = gate(admission={"enabled": False})
    for n in range(600):
        for tenant, tokens, answer in (("english", 750, 20), ("chinese", 2000, 400)):
            asked = head(prompt_tokens=-1, max_tokens=-1, body=3000)
            asked.tenant = tenant
            g.finished(attempt_of(g.open(asked, float(n))), Usage(tokens, answer + n % 11 - 5), n + 0.5)
    for tenant, tokens, answer in (("english", 750, 20), ("chinese", 2000, 400)):
        asked = head(prompt_tokens=-1, max_tokens=-1, body=3000)
        asked.tenant = tenant
        ticket = g.open(asked, 700.0)[0].ticket
        assert ticket.prompt_tokens == pytest.approx(tokens, rel=0.02)
        assert ticket.expected_output_tokens == pytest.approx(answer, rel=0.15, abs=6)


def test_most_answers_stay_below_the_expected_length() -> None:
    g, longer = gate(), 0
    for n in range(3000):
        ticket = g.open(head(prompt_tokens=-1, max_tokens=-1), float(n))[0].ticket
        answer = 50 + (n * 7919) % 400
        longer += n >= 1000 and answer > ticket.expected_output_tokens
        g.finished(attempt_of([ticket.attempt] if ticket.attempt else []), Usage(100, answer), n + 0.5)
    assert longer / 2000 == pytest.approx(0.3, abs=0.06)


def test_counted_usage_teaches_nothing() -> None:
    g = gate()
    before = g.open(head(prompt_tokens=-1, body=3000), 0.0)[0].ticket.prompt_tokens
    for n in range(50):
        g.finished(attempt_of(g.open(head(prompt_tokens=-1, body=3000), float(n))), Usage(1, 1, known=False), n + 0.5)
    assert g.open(head(prompt_tokens=-1, body=3000), 60.0)[0].ticket.prompt_tokens == before
