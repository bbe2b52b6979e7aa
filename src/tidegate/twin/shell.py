"""A whole cluster on the virtual clock: planned requests → the gateway's own `Gate` → engine instances → a record.

This is the second shell around `policy.Gate` (the gateway is the first): it executes the gate's commands and reports
back what happened, and decides nothing. Requests reach the gate at their intended time and answers reach clients at
once: no network and no client lag. Engines are scraped every `scrape_interval_s`; a sample shows the engine as of its
last step, so it is as stale as a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.errors import BadInputError
from tidegate.policy.gate import TICK_S, Decision, Gate
from tidegate.policy.ledger import EngineSample
from tidegate.policy.ledger import Instance as LedgerInstance
from tidegate.policy.ticket import Attempt, Cancel, Command, Head, Refuse, Settle, Usage
from tidegate.spec import ClusterSpec, PoolSpec
from tidegate.traffic.gappool import LONG_ABOVE_TOKENS, SHORT_BELOW_TOKENS, GapPool
from tidegate.traffic.plan import PlannedRequest
from tidegate.traffic.record import RequestRecord
from tidegate.twin.calibration import Calibration, slowed
from tidegate.twin.cost import StepCost
from tidegate.twin.engine import engine_of
from tidegate.twin.faults import DIE, RESTART, SLOW, Fault, check_faults
from tidegate.twin.flight import Flight
from tidegate.twin.instance import Instance
from tidegate.twin.invariants import check_blocks, check_requests
from tidegate.twin.kernel import BEGIN, CANCEL, DELIVER, FAULT, SCRAPE, STEP_END, SUBMIT, TICK, Kernel
from tidegate.twin.recorder import Recorder, RecordList
from tidegate.twin.sequence import DECODE, Sequence, StepResult
from tidegate.twin.source import ListSource, Source
from tidegate.twin.steplog import StepLog

Progress = Callable[[float, int, int], None]
"""(simulated seconds, requests ended, requests planned)."""

ENGINE_ANSWERED_OK: Final = 200
ENGINE_REFUSED_STATUS: Final = 400
TICKS_PER_PROGRESS: Final = 10
PRIORITIES: Final = ("critical", "high", "normal", "best_effort")
NORMAL: Final = 2


class Server:
    """One engine: the twin's instance, and each gateway's view of it."""

    __slots__ = ("alive", "beginning", "cost", "due_s", "exits", "instance", "ledgers", "past")

    def __init__(self, instance: Instance, ledgers: list[LedgerInstance]) -> None:
        self.instance = instance
        self.ledgers = ledgers
        self.cost = instance.cost
        """What its steps cost while nothing slows it."""
        self.due_s = -1.0
        """Time of the step end that the kernel knows of; events at other times are stale."""
        self.beginning = False
        self.alive = True
        self.exits = 0
        self.past: list[Instance] = []
        """Processes that died here."""

    @property
    def ledger(self) -> LedgerInstance:
        """The first gateway's view."""
        return self.ledgers[0]


class Gateway:
    """One gateway; `index` is its place among the views of each engine."""

    __slots__ = ("gate", "index")

    def __init__(self, gate: Gate, index: int) -> None:
        self.gate = gate
        self.index = index


class Change:
    """A fault that strikes, or one that ends (`ends`)."""

    __slots__ = ("ends", "fault")

    def __init__(self, fault: Fault, ends: bool) -> None:
        self.fault = fault
        self.ends = ends


class Shell:
    """Drives one run; `run` may be called once."""

    __slots__ = (
        "_arrived", "_by_name", "_bytes_per_token", "_cancels", "_checking", "_discarded", "_ended", "_faults",
        "_flights", "_gap_groups", "_gap_index", "_kernel", "_leap", "_model", "_next", "_priorities", "_progress",
        "_recorder", "_source", "_ticks", "gaps", "gate", "gateways", "records", "servers", "spec",
    )  # fmt: skip

    def __init__(
        self,
        spec: ClusterSpec,
        plans: list[PlannedRequest],
        log: list[Decision] | None = None,
        calibration: Calibration | None = None,
        leap: bool = True,
        progress: Progress | None = None,
        kv_capacity_tokens: int = -1,
        source: Source | None = None,
        recorder: Recorder | None = None,
        faults: list[Fault] | None = None,
        gateways: int = 1,
        checking: bool = False,
    ) -> None:
        """`plans` in order of time, all for the first pool's model; or none, and `source` yields them. `recorder` is
        told of each request that ended; without one they are all kept in `records`. `kv_capacity_tokens` is what the
        engines told of their KV cache, where it is known; else it is estimated. Requests reach the
        `gateways` in turn; each has its own queue and limits and knows of the others' work what it scrapes. `checking`
        holds the invariants after every event, for tests. Raises `BadInputError` for what cannot be run."""
        check_plans(spec.pools[0], plans)
        self.spec = spec
        self.gateways = [Gateway(Gate(spec, log if i == 0 else None), i) for i in range(gateways)]
        self.gate = self.gateways[0].gate
        self._checking = checking
        self._faults: list[Fault] = faults if faults is not None else []
        self.gaps = GapPool()
        kept = RecordList()
        self.records: list[RequestRecord] = kept.records
        self._recorder: Recorder = kept if recorder is None else recorder
        self._model = spec.pools[0].model
        self._source: Source = ListSource(plans) if source is None else source
        self._next: Flight | None = None
        """Who arrives next."""
        self._arrived = 0
        self._ended = 0
        self._bytes_per_token = spec.gateway.bytes_per_token
        self._leap = leap
        self._progress = progress
        self._ticks = 0
        self._cancels: dict[int, float] = {}
        self._priorities = {tenant.name: PRIORITIES.index(tenant.priority) for tenant in spec.tenants}
        self._kernel = Kernel()
        self._flights: dict[int, Flight] = {}
        """Requests at an engine, by ticket id, oldest attempt first."""
        self._discarded: dict[int, int] = {}
        """Gaps of whole (not streamed) answers: nobody sees them."""
        self._gap_groups: list[dict[int, int]] = [self._discarded]
        self._gap_index: dict[str, list[int]] = {}
        """For each phase the groups of its short, mixed and long prompts; -1 for those not seen yet."""
        self.servers: list[Server] = []
        self._by_name: dict[str, Server] = {}
        self._build(calibration, kv_capacity_tokens)
        check_faults(self._faults, len(self.servers))

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self._kernel.now

    @property
    def in_flight(self) -> int:
        """Requests that arrived and have not ended."""
        return self._arrived - self._ended

    @property
    def events(self) -> int:
        """Events so far, those to come included."""
        return self._kernel.pushed + self._arrived

    @property
    def arrived(self) -> int:
        """Requests that arrived so far."""
        return self._arrived

    def run(self, until_s: float = -1.0, cancels: dict[int, float] | None = None, start_s: float = 0.0) -> None:
        """Runs from `start_s`, with idle engines, until every request ended, or to `until_s` if given. `cancels` maps
        `PlannedRequest.index` to the time its client leaves."""
        kernel = self._kernel
        self._ticks = int(start_s / TICK_S)
        kernel.now = self._ticks * TICK_S
        if cancels is not None:
            self._cancels = cancels
        self._start()
        while self._next is not None or self._ended < self._arrived:
            arriving = self._next
            if arriving is not None and kernel.before_next(arriving.at_s):
                at_s = arriving.at_s
                if 0.0 <= until_s < at_s:
                    return
                kernel.now = at_s
                self._arrive(arriving, at_s)
            else:
                at_s, kind, _, subject = kernel.pop()
                if 0.0 <= until_s < at_s:
                    return
                self._take(at_s, kind, subject)
            if self._checking:
                self._check(at_s)

    def _check(self, now: float) -> None:
        gates = [gateway.gate for gateway in self.gateways]
        check_requests(self._arrived, self._ended, gates, now)
        for server in self.servers:
            check_blocks(server.instance, now)

    def _take(self, at_s: float, kind: int, subject: object) -> None:
        if kind == STEP_END:
            assert isinstance(subject, Server)
            self._step_ended(subject, at_s)
        elif kind == BEGIN:
            assert isinstance(subject, Server)
            subject.beginning = False
            self._begin(subject, at_s)
        elif kind == DELIVER:
            assert isinstance(subject, StepResult)
            self._deliver(subject, at_s)
        elif kind == SUBMIT:
            assert isinstance(subject, Attempt)
            self._submit(subject, at_s)
        elif kind == TICK:
            self._tick(at_s)
        elif kind == SCRAPE:
            assert isinstance(subject, Gateway)
            self._scrape(subject, at_s)
        elif kind == FAULT:
            assert isinstance(subject, Change)
            self._change(subject, at_s)
        elif kind == CANCEL:
            assert isinstance(subject, Flight)
            self._cancel(subject, at_s)

    # --- setting up -------------------------------------------------------------------------------------------

    def _build(self, calibration: Calibration | None, capacity_tokens: int) -> None:
        slo_s = self.spec.slo.itl_s
        for pool in self.spec.pools:
            cost = StepCost.for_profile(pool.engine, calibration)
            views = [gateway.gate.pools[pool.model].instances for gateway in self.gateways]
            for place, ledger in enumerate(views[0]):
                log = StepLog(self._gap_groups, slo_s)
                instance = engine_of(ledger.name, pool.engine, cost, log, False, capacity_tokens)
                server = Server(instance, [view[place] for view in views])
                self.servers.append(server)
                self._by_name[ledger.name] = server

    def _start(self) -> None:
        """Engines are up, healthy and scraped before the first request, as `tidegate load` finds them."""
        now = self._kernel.now
        interval_s = self.spec.gateway.scrape_interval_s
        for gateway in self.gateways:
            for server in self.servers:
                ledger = server.ledgers[gateway.index]
                gateway.gate.probed(ledger, True, now)
                gateway.gate.sampled(ledger, sample_of(server.instance, now), now)
            # Gateways do not scrape in step with one another.
            first_s = now + interval_s * (1.0 - gateway.index / len(self.gateways))
            self._kernel.push(first_s, SCRAPE, gateway)
        for fault in self._faults:
            if fault.at_s >= now:
                self._kernel.push(fault.at_s, FAULT, Change(fault, False))
        self._kernel.push((self._ticks + 1) * TICK_S, TICK, None)
        self._next = self._source.next_flight()

    # --- events -----------------------------------------------------------------------------------------------

    def _arrive(self, flight: Flight, now: float) -> None:
        self._next = self._source.next_flight()
        self._arrived += 1
        flight.group = self._group_of(flight)
        if self._cancels:
            leaves_s = self._cancels.get(flight.index)
            if leaves_s is not None:
                self._kernel.push(max(now, leaves_s), CANCEL, flight)
        prompt_bytes = int(flight.planned_prompt_tokens * self._bytes_per_token)
        tenant = flight.tenant or "default"
        priority = self._priorities.get(tenant, NORMAL)
        head = Head(
            self._model, tenant, prompt_bytes, prompt_bytes, flight.planned_output_tokens, -1, priority, flight.stream
        )
        gate = self.gate
        if len(self.gateways) > 1:
            gate = self.gateways[(self._arrived - 1) % len(self.gateways)].gate
        flight.gate = gate
        self._execute(gate.open(head, now, flight), now)

    def _step_ended(self, server: Server, now: float) -> None:
        instance = server.instance
        if not instance.in_step or instance.step_end_s != now:
            return  # brought forward by an arrival or an abort, and taken then
        result = instance.finish_step()
        if instance.front.lag_s > 0.0 and (result.first or result.finished):
            self._kernel.push(now + instance.front.lag_s, DELIVER, result)
        else:
            self._deliver(result, now)
        arriving = self._next
        if self._kernel.alone() and (arriving is None or arriving.at_s > now):
            self._begin(server, now)
        elif not server.beginning:
            server.beginning = True
            self._kernel.push(now, BEGIN, server)

    def _begin(self, server: Server, now: float) -> None:
        instance = server.instance
        if instance.in_step:
            return
        end_s = instance.begin_leap(now) if self._leap else instance.begin_step(now)
        server.due_s = end_s
        if end_s >= 0.0:
            self._kernel.push(end_s, STEP_END, server)

    def _deliver(self, result: StepResult, now: float) -> None:
        for seq in result.first:
            flight = seq.context
            if not isinstance(flight, Flight) or flight.seq is not seq:
                continue  # its request ended or moved on while the front end was behind
            flight.first_s = now
            flight.status = ENGINE_ANSWERED_OK
            if flight.stream and flight.attempt is not None:
                self._execute(gate_of(flight).first_token(flight.attempt, now), now)
        for seq in result.finished:
            flight = seq.context
            if not isinstance(flight, Flight) or flight.seq is not seq:
                continue
            self._finish(flight, seq, now)

    def _finish(self, flight: Flight, seq: Sequence, now: float) -> None:
        attempt = flight.attempt
        assert attempt is not None
        flight.prompt_tokens = seq.prompt_tokens
        flight.output_tokens = seq.generated_tokens
        if not flight.stream:
            self._execute(gate_of(flight).first_token(attempt, now), now)
        attempt.last_s = now
        attempt.tokens = seq.generated_tokens
        usage = Usage(seq.prompt_tokens, seq.generated_tokens)
        self._execute(gate_of(flight).finished(attempt, usage, now), now)

    def _tick(self, now: float) -> None:
        """The gate's time-outs. They look at `last_s` of old attempts only, so only those are metered."""
        limits = self.spec.gateway.timeouts
        shortest_s = min(limits.first_token_s, limits.gap_s, limits.total_s)
        for flight in self._flights.values():
            attempt, seq, instance = flight.attempt, flight.seq, flight.instance
            if attempt is None or now - attempt.started_s < shortest_s:
                break
            if seq is not None and instance is not None and seq.state == DECODE:
                attempt.last_s = max(attempt.last_s, instance.progress_s(now))
        self._ticks += 1
        for gateway in self.gateways:
            self._execute(gateway.gate.tick(now), now)
        self._kernel.push((self._ticks + 1) * TICK_S, TICK, None)
        if self._progress is not None and self._ticks % TICKS_PER_PROGRESS == 0:
            self._progress(now, self._ended, self._source.total)

    def _scrape(self, gateway: Gateway, now: float) -> None:
        """Metrics, and whether anybody listens: a dead engine is found out here at the latest."""
        gate = gateway.gate
        for server in self.servers:
            ledger = server.ledgers[gateway.index]
            if ledger.ready != server.alive:
                self._execute(gate.probed(ledger, server.alive, now), now)
            if server.alive:
                self._execute(gate.sampled(ledger, sample_of(server.instance, now), now), now)
        self._kernel.push(now + self.spec.gateway.scrape_interval_s, SCRAPE, gateway)

    def _change(self, change: Change, now: float) -> None:
        fault = change.fault
        server = self.servers[fault.instance]
        if fault.kind == SLOW and server.alive:
            fitted = server.cost.calibration
            slow = StepCost.for_profile(server.instance.profile, slowed(fitted, fault.factor))
            server.instance.change_cost(server.cost if change.ends else slow, now)
            self._reschedule(server, now)
        elif fault.kind in (DIE, RESTART) and not change.ends and server.alive:
            self._die(server, now)
        elif fault.kind == RESTART and change.ends:
            server.alive = True
        if not change.ends and fault.kind != DIE:
            self._kernel.push(now + fault.lasts_s, FAULT, Change(fault, True))

    def _die(self, server: Server, now: float) -> None:
        """Its connections are reset; its successor, should there be one, begins with nothing."""
        gone = server.instance
        server.alive = False
        server.exits += 1
        server.past.append(gone)
        server.instance = engine_of(
            gone.name, gone.profile, server.cost, gone.log, False, gone.pool.total * gone.profile.block_tokens
        )
        gone.crash(now)
        hit = [flight for flight in self._flights.values() if flight.instance is gone]
        for flight in hit:
            if flight.attempt is not None:
                if flight.seq is not None:
                    flight.output_tokens = flight.seq.generated_tokens
                self._execute(gate_of(flight).broke(flight.attempt, "reset", now), now)

    def _cancel(self, flight: Flight, now: float) -> None:
        if flight.ticket is not None and flight.ticket.outcome is None:
            self._execute(gate_of(flight).client_gone(flight.ticket, now), now)

    # --- the gate's commands ----------------------------------------------------------------------------------

    def _execute(self, commands: list[Command], now: float) -> None:
        for command in commands:
            flight = command.ticket.context
            assert isinstance(flight, Flight)
            flight.ticket = command.ticket
            if isinstance(command, Attempt):
                self._send(flight, command, now)
            elif isinstance(command, Settle):
                self._settle(flight, now)
            elif isinstance(command, Refuse):
                flight.refusal = command.refusal
                if flight.status == 0:
                    flight.status = command.refusal.status
            elif isinstance(command, Cancel):
                self._stop(flight, now)

    def _send(self, flight: Flight, attempt: Attempt, now: float) -> None:
        server = self._by_name[attempt.instance.name]
        instance = server.instance
        flight.attempt = attempt
        flight.instance = instance
        if not server.alive:
            self._execute(gate_of(flight).broke(attempt, "refused", now), now)
            return
        if instance.refusal(flight.planned_prompt_tokens, flight.planned_output_tokens):
            flight.status = ENGINE_REFUSED_STATUS
            self._execute(gate_of(flight).answered_badly(attempt, ENGINE_REFUSED_STATUS, None, now), now)
            return
        self._flights[self._key(flight, attempt.ticket.id)] = flight
        fitted = instance.cost.calibration
        ingest_s = fitted.ingest_s + fitted.ingest_token_s * flight.planned_prompt_tokens
        if ingest_s > 0.0:
            self._kernel.push(now + ingest_s, SUBMIT, attempt)
        else:
            self._submit(attempt, now)

    def _submit(self, attempt: Attempt, now: float) -> None:
        flight = attempt.ticket.context
        assert isinstance(flight, Flight)
        server = self._by_name[attempt.instance.name]
        if flight.attempt is not attempt or not server.alive:
            return  # it left, or the engine did, before the scheduler saw it
        seq = Sequence(
            attempt.ticket.id,
            flight.planned_prompt_tokens,
            flight.planned_output_tokens,
            flight.prefix_hashes,
            flight.prefix_block_tokens,
            flight,
            flight.group,
        )
        flight.seq = seq
        server.instance.submit(seq, now)
        self._reschedule(server, now)

    def _stop(self, flight: Flight, now: float) -> None:
        seq, instance = flight.seq, flight.instance
        if seq is None or instance is None:
            return
        flight.output_tokens = instance.generated(seq)
        instance.abort(seq, now)
        self._reschedule(self._by_name[instance.name], now)

    def _settle(self, flight: Flight, now: float) -> None:
        ticket = flight.ticket
        assert ticket is not None
        assert ticket.outcome is not None
        self._flights.pop(self._key(flight, ticket.id), None)
        self._ended += 1
        self._recorder.ended(flight, ticket.outcome, now)
        # Request, ticket and sequence name one another; cut, they go at once instead of when a collector finds them.
        flight.ticket = None
        flight.attempt = None
        if flight.seq is not None:
            flight.seq.context = None
            flight.seq = None

    def _key(self, flight: Flight, ticket_id: int) -> int:
        """Ticket numbers are each gateway's own."""
        if len(self.gateways) == 1:
            return ticket_id
        return ticket_id * len(self.gateways) + flight.index % len(self.gateways)

    def _reschedule(self, server: Server, now: float) -> None:
        """After an arrival or abort: the step under way may end earlier, or an idle engine may begin."""
        instance = server.instance
        if instance.in_step:
            if instance.step_end_s != server.due_s:
                server.due_s = instance.step_end_s
                self._kernel.push(server.due_s, STEP_END, server)
        elif not server.beginning:
            server.beginning = True
            self._kernel.push(now, BEGIN, server)

    def _group_of(self, flight: Flight) -> int:
        if not flight.stream:
            return 0
        groups = self._gap_index.get(flight.phase)
        if groups is None:
            groups = self._gap_index[flight.phase] = [-1, -1, -1]
        prompt_tokens = flight.planned_prompt_tokens
        length = 0 if prompt_tokens < SHORT_BELOW_TOKENS else 2 if prompt_tokens > LONG_ABOVE_TOKENS else 1
        index = groups[length]
        if index < 0:
            index = groups[length] = len(self._gap_groups)
            self._gap_groups.append(self.gaps.of(flight.phase, prompt_tokens).counts)
        return index


def gate_of(flight: Flight) -> Gate:
    """The gateway that a request came to."""
    gate = flight.gate
    assert gate is not None
    return gate


def sample_of(instance: Instance, now: float) -> EngineSample:
    """What a scrape of the engine's metrics at `now` would say."""
    seen = instance.statistics(now)
    return EngineSample(
        running=float(seen.running),
        waiting=float(seen.waiting),
        kv_used_fraction=seen.kv_used_blocks / seen.capacity_blocks,
        capacity_blocks=float(seen.capacity_blocks),
        block_tokens=float(instance.profile.block_tokens),
        preemptions=float(seen.preemptions),
    )


def check_plans(pool: PoolSpec, plans: list[PlannedRequest]) -> None:
    """Raises `BadInputError` for plans the twin cannot run: out of order, before 0, or with foreign prefix blocks."""
    before_s = 0.0
    for plan in plans:
        if plan.at_s < before_s:
            raise BadInputError(f"request {plan.index} is planned at {plan.at_s:g} s, before {before_s:g} s")
        before_s = plan.at_s
        if plan.prefix_hashes and plan.prefix_block_tokens % pool.engine.block_tokens:
            raise BadInputError(
                f"request {plan.index} names prefixes of {plan.prefix_block_tokens} tokens, which KV blocks of"
                f" {pool.engine.block_tokens} tokens do not divide",
                hint="choose a block_tokens that divides it",
            )
