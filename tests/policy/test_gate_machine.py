"""Hypothesis drives the gate through any order of events and holds the invariants of design.md §9."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.policy.ledger import EngineSample
from tidegate.policy.ticket import CLOSED, Attempt, Command, Refuse, Settle, Ticket, Usage
from tidegate.testing.playbook import at_rest, gate, head


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = gate(
            instances=3,
            admission={"max_in_flight": 3, "max_prefill_tokens": 500},
            queue={"max_requests": 4, "max_wait_s": 1.0},
            timeouts={"first_token_s": 5.0, "gap_s": 3.0, "total_s": 20.0},
        )
        self.attempts: list[Attempt] = []
        self.tickets: list[Ticket] = []
        self.settled: dict[int, int] = {}
        self.refused: dict[int, int] = {}

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Attempt):
                assert command.instance.ready, "invariant 6: only a ready instance receives work"
                self.attempts.append(command)
            elif isinstance(command, Settle):
                self.settled[command.ticket.id] = self.settled.get(command.ticket.id, 0) + 1
            elif isinstance(command, Refuse):
                self.refused[command.ticket.id] = self.refused.get(command.ticket.id, 0) + 1

    def live(self) -> list[Attempt]:
        return [a for a in self.attempts if not a.closed]

    @rule(prompt=st.integers(1, 900), answer=st.integers(1, 400), priority=st.integers(0, 3), stream=st.booleans())
    def open(self, prompt: int, answer: int, priority: int, stream: bool) -> None:
        asked = head(prompt, answer, priority=priority)
        asked.stream = stream
        commands = self.gate.open(asked, self.now)
        self.tickets.append(commands[0].ticket)
        self.take(commands)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), event=st.sampled_from(["first", "finish", "reset", "refused", "500", "400", "gone", "token"]))
    def attempt_event(self, data: st.DataObject, event: str) -> None:
        attempt = data.draw(st.sampled_from(self.live()))
        streaming = attempt.first_s >= 0
        g, now = self.gate, self.now
        if event == "first" and not streaming:
            self.take(g.first_token(attempt, now))
        elif event == "finish" and streaming:
            self.take(g.finished(attempt, Usage(100, 10), now))
        elif event in ("reset", "refused"):
            self.take(g.broke(attempt, event, now))
        elif event in ("500", "400") and not streaming:
            self.take(g.answered_badly(attempt, int(event), None, now))
        elif event == "gone":
            self.take(g.client_gone(attempt.ticket, now))
        elif event == "token" and streaming:
            attempt.last_s = now

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def any_client_leaves(self, data: st.DataObject) -> None:
        self.take(self.gate.client_gone(data.draw(st.sampled_from(self.tickets)), self.now))

    @rule(which=st.integers(0, 2), alive=st.booleans())
    def probe(self, which: int, alive: bool) -> None:
        self.take(self.gate.probed(self.gate.instances[which], alive, self.now))

    @rule(which=st.integers(0, 2), used=st.none() | st.floats(0, 1), capacity=st.none() | st.integers(1, 200))
    def scrape(self, which: int, used: float | None, capacity: int | None) -> None:
        sample = EngineSample(kv_used_fraction=used, capacity_blocks=capacity, block_tokens=16)
        self.take(self.gate.sampled(self.gate.instances[which], sample, self.now))

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.gate.tick(self.now))

    @invariant()
    def every_ticket_settles_at_most_once_and_only_when_closed(self) -> None:
        for ticket in self.tickets:
            assert self.settled.get(ticket.id, 0) == (1 if ticket.state == CLOSED else 0)
            assert (ticket.outcome is None) == (ticket.state != CLOSED)
            assert self.refused.get(ticket.id, 0) <= 1

    @invariant()
    def claims_equal_what_is_in_flight(self) -> None:
        live = self.live()
        for instance in self.gate.instances:
            mine = [a for a in live if a.instance is instance]
            assert instance.in_flight == len(mine) <= 3
            assert instance.own_blocks == sum(a.blocks for a in mine)
            assert instance.prefill_tokens == sum(a.prefill_tokens for a in mine)

    @invariant()
    def the_queue_keeps_its_bounds(self) -> None:
        assert 0 <= self.gate.queued <= 4

    @invariant()
    def accounts_balance(self) -> None:
        in_flight = sum(t.state != CLOSED for t in self.tickets)
        assert len(self.tickets) == len(self.settled) + in_flight

    def teardown(self) -> None:
        self.take(self.gate.drain(self.now))
        for attempt in self.live():
            self.take(self.gate.client_gone(attempt.ticket, self.now))
        assert at_rest(self.gate)


GateMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestGateMachine = GateMachine.TestCase
