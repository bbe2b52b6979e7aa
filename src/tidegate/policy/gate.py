"""The gate: takes events, moves tickets, answers with commands. The whole orchestration of a request, without I/O.

One `Gate` holds the pools; each pool has its instances (ledger), router, waiting line, retry budget and estimator.
Every method takes `now` and returns the commands to execute, in order; whenever something gives room back, the
waiting line is served in the same call. Time-outs and queue ages are decided in `tick` only, which the shell calls
every `TICK_S`, so that gateway and twin see the same clock edges and take the same decisions.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.errors import Outcome
from tidegate.policy import lifecycle, refusals
from tidegate.policy.ledger import EngineSample, Instance
from tidegate.policy.limit import Limiter, Shortage, take
from tidegate.policy.pool import Pool
from tidegate.policy.ticket import (
    CLOSED,
    OPEN,
    QUEUED,
    SENT,
    STREAMING,
    Attempt,
    Cancel,
    Command,
    Head,
    Refusal,
    Refuse,
    Settle,
    Ticket,
    Usage,
    Wait,
)
from tidegate.spec import ClusterSpec, TenantSpec

TICK_S: Final = 0.1

Decision = tuple[float, str, int, str]
"""(now, event, ticket id, commands in words): one line of the decision log."""


class Gate:
    """See the module's docstring. `log`, when given, receives one `Decision` per event."""

    def __init__(self, spec: ClusterSpec, log: list[Decision] | None = None) -> None:
        self._timeouts = spec.gateway.timeouts
        self._max_attempts = spec.gateway.retry.max_attempts
        self._prefill_s = spec.slo.ttft_s
        self._log = log
        self.limits = Limiter(spec.tenants)
        self._draining = False
        self._next_id = 0
        self._attempts: dict[int, Attempt] = {}
        """Attempts in flight by ticket id, oldest start first."""
        self._unseen: deque[Attempt] = deque()
        """Attempts whose first token nobody will see, oldest start first."""
        self.pools: dict[str, Pool] = {pool.model: Pool(pool, spec) for pool in spec.pools}
        self.instances: list[Instance] = [i for pool in self.pools.values() for i in pool.instances]

    # --- a request's events ---------------------------------------------------------------------------------

    def open(self, head: Head, now: float, context: object = None) -> list[Command]:
        """A request's head is known: `Attempt`, `Wait`, or `Refuse` and `Settle`."""
        self._next_id += 1
        ticket = Ticket(self._next_id, head, now, context)
        pool = self.pools.get(head.model)
        if pool is None:
            return self._decided("open", now, self._refuse(ticket, refusals.unknown_model(head.model, self.models())))
        if self._draining:
            return self._decided("open", now, self._refuse(ticket, refusals.draining()))
        ticket.prompt_tokens = pool.estimator.prompt_tokens(head)
        ticket.expected_output_tokens = pool.estimator.expected_output_tokens(head)
        ticket.long = ticket.prompt_tokens > pool.long_prompt_tokens
        shortage = self._reserve(ticket, now)
        if shortage is not None:
            return self._decided("open", now, self._refuse(ticket, refusals.limited(head.tenant, shortage)))
        pool.retries.deposit()
        return self._decided("open", now, self._place(pool, ticket, now))

    def first_token(self, attempt: Attempt, now: float) -> list[Command]:
        """The first token-carrying bytes of an answer are about to go to the client.

        Until this call no byte may have gone out: the attempt may still be replaced by another. A shell holds role-only
        chunks and comments back until the first token, and counts whatever it does not recognise as a token.
        """
        if attempt.closed:
            return []
        attempt.ticket.move(STREAMING)
        attempt.first_token(now)
        attempt.instance.breaker.good(attempt.trial, now)
        attempt.trial = False
        return self._decided(
            "first_token", now, self._serve(self._pool(attempt), now, attempt.instance), attempt.ticket
        )

    def finished(self, attempt: Attempt, usage: Usage | None, now: float) -> list[Command]:
        """The answer was delivered whole."""
        if attempt.closed:
            return []
        ticket, pool = attempt.ticket, self._pool(attempt)
        if usage is not None:
            pool.estimator.learn(ticket.head, ticket.prompt_tokens, usage)
            self._correct(pool, ticket, usage)
            if ticket.reservation is not None:
                ticket.reservation.settle(usage.prompt_tokens, usage.output_tokens, served=True)
        pool.drain_rate.count(now)
        return self._decided("finished", now, self._end(attempt, Outcome.COMPLETED, now))

    def answered_badly(self, attempt: Attempt, status: int, retry_after_s: float | None, now: float) -> list[Command]:
        """The engine answered other than 2xx and nothing went to the client: retried elsewhere where that can help
        (5xx, 429), else settled, and the shell passes the engine's answer on as it came.

        `retry_after_s` is the engine's own `Retry-After`, None where it gave none.
        """
        if attempt.closed:
            return []
        if status >= 500 and status != 503:
            self._failed(attempt, now)
        if status < 500 and status != 429:
            return self._decided("bad_answer", now, self._end(attempt, Outcome.ENGINE_REFUSED, now))
        again = self._again(attempt, now)
        if again is not None:
            return self._decided("bad_answer", now, [again, *self._serve(self._pool(attempt), now, attempt.instance)])
        outcome = Outcome.OVERLOADED if status in (429, 503) else Outcome.ENGINE_ERROR
        return self._decided("bad_answer", now, self._end(attempt, outcome, now))

    def broke(self, attempt: Attempt, cause: str, now: float) -> list[Command]:
        """The attempt's connection failed: `refused`, `reset`, `garbage` or `timeout`."""
        if attempt.closed:
            return []
        if cause == "refused":
            self._move_instance(attempt.instance, False)
        else:
            self._failed(attempt, now)
        name = attempt.instance.name
        if attempt.ticket.state == STREAMING:
            return self._decided("broke", now, self._fail(attempt, refusals.stream_broken(name, cause), now))
        again = self._again(attempt, now)
        if again is not None:
            return self._decided("broke", now, [again, *self._serve(self._pool(attempt), now, attempt.instance)])
        return self._decided("broke", now, self._fail(attempt, refusals.unreachable(name, cause), now))

    def client_gone(self, ticket: Ticket, now: float) -> list[Command]:
        """The client closed its connection before the answer was whole."""
        if ticket.state == CLOSED:
            return []
        attempt = ticket.attempt
        if attempt is not None:
            cancelled: list[Command] = [Cancel(attempt)]
            return self._decided("client_gone", now, cancelled + self._end(attempt, Outcome.CLIENT_CANCELLED, now))
        pool = self.pools[ticket.head.model]
        pool.line.left(ticket)
        ticket.close(Outcome.CLIENT_CANCELLED)
        settled: list[Command] = [Settle(ticket)]
        return self._decided("client_gone", now, settled + self._serve(pool, now))

    # --- the cluster's events -------------------------------------------------------------------------------

    def probed(self, instance: Instance, alive: bool, now: float) -> list[Command]:
        """A health probe was answered (`alive`) or its connection refused. Report no time-outs: they mean busy."""
        if not self._move_instance(instance, alive):
            return []
        pool = self.pools[instance.model]
        if alive:
            return self._decided("probed", now, self._serve(pool, now))
        if pool.router.any_ready():
            return []
        gone: list[Command] = []
        for ticket in pool.line.everyone():
            gone += self._refuse_queued(pool, ticket, refusals.no_instance(pool.model))
        return self._decided("probed", now, gone)

    def sampled(self, instance: Instance, sample: EngineSample, now: float) -> list[Command]:
        """A scrape of the engine's metrics came in."""
        pool, capacity = self.pools[instance.model], instance.capacity_blocks
        instance.sampled(sample, now)
        if instance.capacity_blocks != capacity:
            pool.router.capacity_learned()
        return self._decided("sampled", now, self._serve(pool, now, instance))

    def tick(self, now: float) -> list[Command]:
        """Ends what waited too long: in the queue, for a first token, between tokens, or in all."""
        commands: list[Command] = self._assume_prefilled(now)
        for pool in self.pools.values():
            if pool.line.count:
                commands += self._expire(pool, now)
                if pool.router.any_resting():
                    # A cool-off may have ended, which no other event tells.
                    commands += self._serve(pool, now)
        commands += self._overdue(now)
        return self._decided("tick", now, commands)

    def drain(self, now: float) -> list[Command]:
        """Stops taking work: later requests and those queued are refused; what is in flight goes on."""
        self._draining = True
        commands: list[Command] = []
        for pool in self.pools.values():
            for ticket in pool.line.everyone():
                commands += self._refuse_queued(pool, ticket, refusals.draining())
        return self._decided("drain", now, commands)

    def end_drain(self, now: float) -> list[Command]:
        """Ends what is still in flight: patience is over."""
        commands: list[Command] = []
        for attempt in list(self._attempts.values()):
            refusal = refusals.draining()
            if attempt.ticket.state == STREAMING:
                refusal = refusals.stream_broken(attempt.instance.name, "this gateway is stopping")
            commands.append(Cancel(attempt))
            commands += self._fail(attempt, refusal, now)
        return self._decided("end_drain", now, commands)

    def renew_tenants(self, tenants: list[TenantSpec], now: float) -> None:
        """Takes new limits and weights over; what was spent and served stays counted."""
        self.limits.renew(tenants, now)
        weights = {tenant.name: tenant.weight for tenant in tenants}
        for pool in self.pools.values():
            pool.line.shares.weights = weights

    # --- what is known --------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Model names served here, in the spec's order."""
        return list(self.pools)

    @property
    def in_flight(self) -> int:
        """Attempts in flight."""
        return len(self._attempts)

    @property
    def queued(self) -> int:
        """Requests waiting, over all pools."""
        return sum(pool.line.count for pool in self.pools.values())

    # --- moves ----------------------------------------------------------------------------------------------

    def _pool(self, attempt: Attempt) -> Pool:
        return self.pools[attempt.instance.model]

    def _reserve(self, ticket: Ticket, now: float) -> Shortage | None:
        """Takes the estimate out of the tenant's budgets; the limit that forbids it, or None."""
        accounts = self.limits.accounts(ticket.head.tenant, ticket.head.model)
        if not accounts:
            return None
        taken = take(accounts, ticket.prompt_tokens, ticket.expected_output_tokens, now)
        if isinstance(taken, Shortage):
            return taken
        ticket.reservation = taken
        return None

    def _place(self, pool: Pool, ticket: Ticket, now: float) -> list[Command]:
        """A new ticket: straight to an instance if nobody of its kind waits and there is room, else to the queue."""
        if pool.line.nobody_before(ticket) or not pool.admission.enabled:
            instance = pool.router.pick(ticket, pool.admission, now)
            if instance is not None:
                return [self._send(ticket, instance, now)]
        if not pool.router.any_ready():
            return self._refuse(ticket, refusals.no_instance(pool.model))
        wait_s = pool.drain_rate.retry_after_s(pool.line.count, now)
        bound = pool.line.bound_hit(ticket)
        if bound:
            return self._refuse(ticket, refusals.queue_full(bound, wait_s))
        rate = pool.router.prefill_rate()
        if pool.admission.hopeless(ticket, pool.line, rate):
            return self._refuse(ticket, refusals.overloaded(wait_s))
        ticket.deadline_s = pool.admission.deadline_s(ticket, rate / pool.router.ready_count())
        ticket.move(QUEUED)
        pool.line.push(ticket)
        return [Wait(ticket)]

    def _serve(self, pool: Pool, now: float, freed: Instance | None = None) -> list[Command]:
        """Admits from the waiting line: in each lane while its head finds room, or is past its deadline and refused.

        `freed` names the one instance that gained room: whoever waits found none on the others before.
        """
        commands: list[Command] = []
        moved = pool.line.count > 0
        while moved:
            moved = False
            for ticket in pool.line.heads():
                if ticket.deadline_s < now:
                    commands += self._too_late(pool, ticket, now)
                    moved = True
                    continue
                instance = pool.router.pick(ticket, pool.admission, now, freed)
                if instance is not None:
                    pool.line.left(ticket)
                    commands.append(self._send(ticket, instance, now))
                    moved = True
                    break
        return commands

    def _send(self, ticket: Ticket, instance: Instance, now: float) -> Attempt:
        ticket.move(SENT)
        if ticket.sent_s < 0.0:
            ticket.sent_s = now
            ticket.charged_tokens = ticket.expected_output_tokens
            self.pools[instance.model].line.admitted(ticket)
        ticket.attempts += 1
        blocks = instance.blocks_for(ticket.prompt_tokens + ticket.expected_output_tokens)
        attempt = Attempt(ticket, instance, ticket.attempts, blocks, now)
        ticket.attempt = attempt
        self._attempts[ticket.id] = attempt
        if not ticket.head.stream:
            self._unseen.append(attempt)
        return attempt

    def _again(self, attempt: Attempt, now: float) -> Attempt | None:
        """A second attempt elsewhere, or None; the failed one keeps its claim only in the latter case."""
        ticket, pool = attempt.ticket, self._pool(attempt)
        if ticket.attempts >= self._max_attempts or self._draining:
            return None
        ticket.tried.append(attempt.instance)
        instance = pool.router.pick(ticket, pool.admission, now)
        if instance is None or not pool.retries.withdraw():
            return None
        self._drop(attempt, now)
        ticket.move(OPEN)
        return self._send(ticket, instance, now)

    def _failed(self, attempt: Attempt, now: float) -> None:
        """The instance failed the attempt: counted, and the instance taken out when its rate says so."""
        breaker = attempt.instance.breaker
        breaker.bad(attempt.trial, now)
        attempt.trial = False
        pool = self._pool(attempt)
        if breaker.failing(now) and pool.router.may_open(attempt.instance, pool.max_ejected):
            breaker.open(now)

    def _drop(self, attempt: Attempt, now: float) -> None:
        attempt.release(now)
        if attempt.trial:
            attempt.instance.breaker.undecided(True, now)
        attempt.ticket.attempt = None
        self._attempts.pop(attempt.ticket.id, None)

    def _end(self, attempt: Attempt, outcome: Outcome, now: float) -> list[Command]:
        """Closes the attempt's ticket and serves the line with what it held."""
        self._drop(attempt, now)
        self._settle_partly(attempt)
        attempt.ticket.close(outcome)
        settled: list[Command] = [Settle(attempt.ticket)]
        pool = self._pool(attempt)
        return settled + self._serve(pool, now, attempt.instance) if pool.line.count else settled

    def _settle_partly(self, attempt: Attempt) -> None:
        """An answer that ended early, or without usage: its prompt was worked on, and these tokens went out."""
        reservation = attempt.ticket.reservation
        if reservation is not None and attempt.first_s >= 0.0:
            reservation.settle(attempt.ticket.prompt_tokens, attempt.tokens, served=True)

    def _fail(self, attempt: Attempt, refusal: Refusal, now: float) -> list[Command]:
        attempt.ticket.refusal = refusal
        told: list[Command] = [Refuse(attempt.ticket, refusal)]
        return told + self._end(attempt, refusal.outcome, now)

    def _refuse(self, ticket: Ticket, refusal: Refusal) -> list[Command]:
        ticket.refusal = refusal
        ticket.close(refusal.outcome)
        return [Refuse(ticket, refusal), Settle(ticket)]

    def _refuse_queued(self, pool: Pool, ticket: Ticket, refusal: Refusal) -> list[Command]:
        pool.line.left(ticket)
        return self._refuse(ticket, refusal)

    def _expire(self, pool: Pool, now: float) -> list[Command]:
        commands: list[Command] = []
        for ticket in pool.line.expired(now):
            commands += self._too_late(pool, ticket, now)
        return commands

    def _too_late(self, pool: Pool, ticket: Ticket, now: float) -> list[Command]:
        wait_s = pool.drain_rate.retry_after_s(pool.line.count, now)
        return self._refuse_queued(pool, ticket, refusals.queue_timeout(now - ticket.opened_s, wait_s))

    def _correct(self, pool: Pool, ticket: Ticket, usage: Usage) -> None:
        """The tenant was charged the estimate; now the truth is known."""
        prompt = usage.prompt_tokens - ticket.prompt_tokens if usage.known else 0
        output = usage.output_tokens - ticket.charged_tokens
        pool.line.charge(ticket.head.tenant, prompt, output)

    def _overdue(self, now: float) -> list[Command]:
        """Attempts out of patience. Oldest start first, so the scan ends at the first one too young for any limit."""
        limits = self._timeouts
        shortest_s = min(limits.first_token_s, limits.gap_s, limits.total_s)
        late: list[tuple[Attempt, Refusal]] = []
        for attempt in self._attempts.values():
            if now - attempt.started_s < shortest_s:
                break
            refusal = self._patience(attempt, now)
            if refusal is not None:
                late.append((attempt, refusal))
        commands: list[Command] = []
        for attempt, refusal in late:
            if attempt.ticket.state != STREAMING or now - attempt.last_s >= limits.gap_s:
                self._failed(attempt, now)
            commands.append(Cancel(attempt))
            commands += self._fail(attempt, refusal, now)
        return commands

    def _assume_prefilled(self, now: float) -> list[Command]:
        """A whole answer shows no first token. Its prompt counts as prefill for the SLO's TTFT, which is how long the
        bound on prefill means a prefill to take; else such requests would hold their claim until their last token."""
        commands: list[Command] = []
        while self._unseen and now - self._unseen[0].started_s >= self._prefill_s:
            attempt = self._unseen.popleft()
            if not attempt.closed:
                attempt.prefilled()
                commands += self._serve(self._pool(attempt), now, attempt.instance)
        return commands

    def _patience(self, attempt: Attempt, now: float) -> Refusal | None:
        limits, name = self._timeouts, attempt.instance.name
        if attempt.ticket.state == STREAMING:
            if now - attempt.last_s >= limits.gap_s:
                return refusals.stream_broken(name, f"no token for {now - attempt.last_s:.0f} s")
            if now - attempt.started_s >= limits.total_s:
                return refusals.stream_broken(name, f"longer than {limits.total_s:.0f} s in all")
            return None
        # A whole answer comes as late as its last token.
        patience_s = limits.first_token_s if attempt.ticket.head.stream else limits.total_s
        if now - attempt.started_s >= min(patience_s, limits.total_s):
            return refusals.engine_timeout(name, now - attempt.started_s)
        return None

    def _move_instance(self, instance: Instance, alive: bool) -> bool:
        """Applies a probe's finding; true when the state changed."""
        state = lifecycle.after_probe(instance.state, alive)
        if state == instance.state:
            return False
        if not lifecycle.may_move(instance.state, state):
            raise RuntimeError(f"{instance.name}: {lifecycle.STATE_NAMES[state]} is not a move from where it is")
        instance.state = state
        return True

    def _decided(self, event: str, now: float, commands: list[Command], subject: Ticket | None = None) -> list[Command]:
        if self._log is not None and (commands or subject is not None):
            ticket = subject if subject is not None else commands[0].ticket
            self._log.append((now, event, ticket.id, ", ".join(describe(c) for c in commands)))
        return commands


def describe(command: Command) -> str:
    """A command in words, the same for gateway and twin: `attempt 7 → engine-1`."""
    number = command.ticket.id
    if isinstance(command, Attempt):
        return f"attempt {number} → {command.instance.name}"
    if isinstance(command, Refuse):
        return f"refuse {number} {command.refusal.code}"
    if isinstance(command, Cancel):
        return f"cancel {number} at {command.attempt.instance.name}"
    if isinstance(command, Settle):
        outcome = command.ticket.outcome
        return f"settle {number} {'?' if outcome is None else outcome.value}"
    return f"wait {number}"
