"""The gateway as an application: heads and bodies in, `policy.Gate`'s commands out and executed in order.

Everything happens in callbacks of the transports, of probes, and of `tick`, which whoever runs the gateway calls
every `TICK_S`. Commands go through one queue, so that an event raised while executing a command waits for its turn:
the order is the gate's, which is what lets a replay of the twin's run take the same decisions. No event loop is
needed here; time and network are handed in.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.clock import Clock, SystemClock
from tidegate.errors import Outcome
from tidegate.gateway import answers, endpoints
from tidegate.gateway.flight import KEYS, NOT_UPSTREAM, Flight
from tidegate.gateway.tenants import Tenants
from tidegate.gateway.upstream import Upstream
from tidegate.observe.accesslog import AccessLog
from tidegate.observe.meters import COMPLETED, Meters
from tidegate.policy import lifecycle
from tidegate.policy.gate import TICK_S, Decision, Gate
from tidegate.policy.ledger import EngineSample, Instance
from tidegate.policy.ticket import Attempt, Cancel, Command, Head, Refusal, Refuse, Settle, Ticket, Usage
from tidegate.spec import ClusterSpec, TenantSpec
from tidegate.transport.exchange import Exchange
from tidegate.transport.network import Network, SystemNetwork
from tidegate.transport.server import HttpServer, Limits
from tidegate.wire.http import JSON, Headers
from tidegate.wire.openai import BadBody, decode_request

__all__ = ["TICK_S", "Gateway"]

logger = logging.getLogger("tidegate.gateway")

MAX_REQUEST_ID: Final = 128
TICKS_PER_EXPIRY: Final = 10


class Gateway:
    """One gateway. Nothing of it is global: several may run in one process."""

    def __init__(
        self,
        spec: ClusterSpec,
        clock: Clock,
        *,
        network: Network | None = None,
        access_log: AccessLog | None = None,
        decisions: list[Decision] | None = None,
        request_id_prefix: str = "req-",
    ) -> None:
        """`decisions`, when given, receives the gate's decision log."""
        self.spec = spec
        self.now: Callable[[], float] = time.monotonic if isinstance(clock, SystemClock) else clock.now
        self.gate = Gate(spec, decisions)
        self.tenants = Tenants(spec.tenants)
        self.meters = Meters(self.gate.models(), self.tenants.names)
        self.access_log = access_log or AccessLog(None, False)
        limits = spec.gateway.limits
        self.server = HttpServer(self, Limits(limits.head_bytes, limits.body_bytes, limits.idle_s, limits.connections))
        network = network or SystemNetwork()
        connect_s = spec.gateway.timeouts.connect_s
        self.upstreams = {i: Upstream(i, self.now, network, connect_s) for i in self.gate.instances}
        self.flights: set[Flight] = set()
        self.journal_bytes = 0
        """Delivered bytes kept of every stream, an experiment: 0 keeps none."""
        self._prefix = request_id_prefix.encode("ascii")
        self._requests = 0
        self._dropped = NOT_UPSTREAM if self.tenants.open_to_all else NOT_UPSTREAM | KEYS
        self._todo: deque[Command] = deque()
        self._executing = False
        self._slow: set[Flight] = set()
        self._ticks = 0

    # --- the client's side: transport.Application ---

    def on_head(self, exchange: Exchange) -> None:
        path = exchange.target
        if exchange.method != "POST" or path not in endpoints.INFERENCE_PATHS:
            path = self._inference_path(exchange)
            if not path:
                return
        tenant = self.tenants.of(exchange.named)
        if tenant is None:
            self._turn_away(exchange, answers.UNAUTHORIZED)
            return
        flight = Flight(self, exchange, tenant, path, self._request_id(exchange))
        exchange.context = flight
        self.flights.add(flight)

    def _inference_path(self, exchange: Exchange) -> str:
        """The path of an unusual request if it is for an engine; answers every other and returns nothing."""
        path = endpoints.path_of(exchange.target)
        kind = endpoints.kind_of(exchange.method, path)
        if kind == endpoints.INFERENCE:
            return path
        if kind == endpoints.UNKNOWN:
            self._turn_away(exchange, answers.unknown_path(path))
        elif kind == endpoints.WRONG_METHOD:
            allowed = "GET" if path.startswith(endpoints.MODELS_PATH) else "POST"
            self._turn_away(exchange, answers.wrong_method(exchange.method, path, allowed), allowed)
        elif self.tenants.of(exchange.named) is None:
            self._turn_away(exchange, answers.UNAUTHORIZED)
        else:
            self._list_models(exchange, path)
        return ""

    def on_body(self, exchange: Exchange, data: bytes) -> None:
        flight = exchange.context
        if isinstance(flight, Flight):
            flight.take(data)

    def on_request_complete(self, exchange: Exchange) -> None:
        flight = exchange.context
        if isinstance(flight, Flight):
            self._open(flight)

    def on_gone(self, exchange: Exchange) -> None:
        flight = exchange.context
        if not isinstance(flight, Flight):
            return
        if flight.ticket is None:
            self._forget(flight)
            return
        flight.defect = exchange.failed
        flight.cancel()
        self._execute(self.gate.client_gone(flight.ticket, self.now()))

    def on_writable(self, exchange: Exchange, writable: bool) -> None:
        flight = exchange.context
        if not isinstance(flight, Flight):
            return
        flight.client_writable(writable)
        if writable:
            self._slow.discard(flight)
        else:
            self._slow.add(flight)

    def _request_id(self, exchange: Exchange) -> bytes:
        """The client's own id where it has a sane one, else a new one."""
        told = exchange.named.get(b"x-request-id")
        if told and len(told) <= MAX_REQUEST_ID and told.isascii():
            return told
        self._requests += 1
        return b"%b%x" % (self._prefix, self._requests)

    def _turn_away(self, exchange: Exchange, refusal: Refusal, allowed: str = "") -> None:
        """Refuses on the head alone; no ticket, no body."""
        self.meters.unopened[refusal.outcome] += 1
        headers = answers.refusal_headers(refusal, self._request_id(exchange))
        if allowed:
            headers.append((b"allow", allowed.encode("ascii")))
        exchange.respond(refusal.status, headers, answers.refusal_body(refusal))

    def _list_models(self, exchange: Exchange, path: str) -> None:
        models = self.gate.models()
        wanted = path.removeprefix(endpoints.MODELS_PATH).removeprefix("/")
        if not wanted:
            exchange.respond(200, [JSON], answers.model_list(models))
        elif wanted in models:
            exchange.respond(200, [JSON], answers.model_body(wanted))
        else:
            self._turn_away(exchange, answers.unknown_model(wanted, models))

    def _open(self, flight: Flight) -> None:
        """The request is whole: decodes what decisions need and asks the gate."""
        body = flight.body if flight.more is None else flight.whole_body()
        try:
            request = decode_request(body, flight.path)
        except BadBody as exc:
            self._refuse_body(flight, exc)
            return
        flight.model = request.model
        flight.meters = self.meters.of(request.model)
        flight.hides_usage = request.stream and request.stream_options is None and flight.path in endpoints.TOKEN_PATHS
        head = Head(
            request.model,
            flight.tenant.name,
            request.prompt_bytes,
            len(body),
            request.output_limit,
            -1,
            flight.tenant.priority,
            request.stream,
        )
        self._execute(self.gate.open(head, self.now(), flight))

    def _refuse_body(self, flight: Flight, problem: BadBody) -> None:
        refusal = Refusal(Outcome.BAD_REQUEST, problem.status, problem.code, problem.message, False)
        self.meters.unopened[Outcome.BAD_REQUEST] += 1
        headers = answers.refusal_headers(refusal, flight.request_id)
        self._forget(flight)
        flight.exchange.respond(problem.status, headers, problem.body())

    def limit_headers(self, flight: Flight) -> Headers:
        """How the limits of the flight's tenant stand; empty where it has none."""
        limits = self.gate.limits
        if not limits.any_set or not flight.model:
            return []
        return answers.limit_headers(limits.standings(flight.tenant.name, flight.model, self.now()))

    def renew_tenants(self, tenants: list[TenantSpec]) -> None:
        """Takes new keys, limits, weights and classes over; counters stay, and requests under way stay as they are."""
        self.tenants = Tenants(tenants)
        self._dropped = NOT_UPSTREAM if self.tenants.open_to_all else NOT_UPSTREAM | KEYS
        self.meters.know_tenants(self.tenants.names)
        self.gate.renew_tenants(tenants, self.now())

    # --- the engine's side: what flights report ---

    def first_token(self, flight: Flight, tokens: int) -> None:
        """The first `tokens` of a stream are about to go out."""
        attempt = flight.attempt
        if attempt is None:
            return
        now = self.now()
        attempt.tokens = tokens
        if flight.meters is not None:
            flight.meters.ttft.add(now - attempt.ticket.opened_s)
        self._execute(self.gate.first_token(attempt, now))

    def whole_answer(self, flight: Flight) -> None:
        """An answer that is no stream is about to go out. It has no TTFT that anybody could see."""
        if flight.attempt is not None:
            commands = self.gate.first_token(flight.attempt, self.now())
            if commands:
                self._execute(commands)

    def progress(self, flight: Flight, tokens: int) -> None:
        """More of an answer came. The hot path: metering only."""
        attempt = flight.attempt
        if attempt is None:
            return
        now = self.now()
        if tokens and flight.meters is not None:
            flight.meters.gap.add(now - attempt.last_s)
            if tokens > 1:
                flight.meters.gap.add_zeros(tokens - 1)
            attempt.tokens += tokens
        attempt.last_s = now

    def finished(self, flight: Flight, usage: Usage | None) -> None:
        """The answer was delivered whole."""
        if flight.attempt is not None:
            flight.usage = usage
            self._execute(self.gate.finished(flight.attempt, usage, self.now()))

    def answered_badly(self, flight: Flight, status: int, retry_after_s: float | None) -> None:
        if flight.attempt is not None:
            self._execute(self.gate.answered_badly(flight.attempt, status, retry_after_s, self.now()))

    def broke(self, flight: Flight, cause: str) -> None:
        if flight.attempt is not None:
            instance = flight.attempt.instance
            before = instance.state
            self._execute(self.gate.broke(flight.attempt, cause, self.now()))
            self._tell_move(instance, before)

    # --- the cluster's side ---

    def _tell_move(self, instance: Instance, before: int) -> None:
        """One line when an instance changed its state."""
        if instance.state == before:
            return
        names = lifecycle.STATE_NAMES
        level, why = (logging.INFO, "it answers") if instance.ready else (logging.WARNING, "nothing listens there")
        logger.log(
            level,
            "instance %s (%s): %s, was %s; %s",
            instance.name,
            instance.url,
            names[instance.state],
            names[before],
            why,
        )

    def probed(self, instance: Instance, alive: bool) -> None:
        before = instance.state
        self._execute(self.gate.probed(instance, alive, self.now()))
        self._tell_move(instance, before)

    def sampled(self, instance: Instance, sample: EngineSample) -> None:
        self._execute(self.gate.sampled(instance, sample, self.now()))

    def tick(self) -> None:
        """Time-outs and queue ages. Called every `TICK_S`, on a grid."""
        now = self.now()
        for flight in self._slow:
            if flight.attempt is not None:
                flight.attempt.last_s = now  # it is the client that is slow
        self._execute(self.gate.tick(now))
        self._ticks += 1
        if self._ticks % TICKS_PER_EXPIRY == 0:
            for upstream in self.upstreams.values():
                upstream.expire()

    def drain(self) -> None:
        """Takes no more work; what waits is refused, what runs goes on."""
        self.server.stop_accepting()
        self._execute(self.gate.drain(self.now()))

    def end_drain(self) -> None:
        """Ends what still runs, with an error event."""
        self._execute(self.gate.end_drain(self.now()))

    def close(self) -> None:
        for upstream in self.upstreams.values():
            upstream.close()

    # --- commands ---

    def _execute(self, commands: list[Command]) -> None:
        if self._executing:
            self._todo.extend(commands)
            return
        self._executing = True
        try:
            for command in commands:
                self._do(command)
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._executing = False

    def _do(self, command: Command) -> None:
        ticket = command.ticket
        flight = ticket.context
        assert isinstance(flight, Flight)
        if isinstance(command, Attempt):
            flight.ticket = ticket
            flight.attempt_at(command, self.upstreams[command.instance], self._dropped)
        elif isinstance(command, Settle):
            self._settle(flight, ticket)
        elif isinstance(command, Refuse):
            flight.refuse(command.refusal)
        elif isinstance(command, Cancel):
            flight.cancel()
        else:
            flight.ticket = ticket

    def _settle(self, flight: Flight, ticket: Ticket) -> None:
        if flight.bad:
            flight.pass_bad_answer_on()
        outcome = Outcome.INTERNAL_ERROR if flight.defect else ticket.outcome
        meters = flight.meters
        assert outcome is not None
        assert meters is not None
        now = self.now()
        meters.ended(outcome)
        meters.duration.add(now - ticket.opened_s)
        meters.queued.add((ticket.sent_s if ticket.sent_s >= 0.0 else now) - ticket.opened_s)
        if ticket.attempts > 1:
            meters.retries += ticket.attempts - 1
        usage = flight.usage
        if usage is not None:
            meters.prompt_tokens += usage.prompt_tokens
            meters.output_tokens += usage.output_tokens
            totals = self.meters.tenant_tokens[flight.tenant.name]
            totals[0] += 1
            totals[1] += usage.prompt_tokens
            totals[2] += usage.output_tokens
        if self.access_log.enabled:
            self._log(flight, ticket, outcome, now)
        self._forget(flight)

    def _log(self, flight: Flight, ticket: Ticket, outcome: Outcome, now: float) -> None:
        attempt, usage, opened_s = flight.attempt, flight.usage, ticket.opened_s
        ttft_s = queued_s = -1.0
        prompt_tokens = output_tokens = -1
        instance = ""
        if ticket.sent_s >= 0.0:
            queued_s = ticket.sent_s - opened_s
        if attempt is not None:
            instance = attempt.instance.name
            output_tokens = attempt.tokens
            if attempt.first_s >= 0.0:
                ttft_s = attempt.first_s - opened_s
        if usage is not None:
            prompt_tokens, output_tokens = usage.prompt_tokens, usage.output_tokens
        self.access_log.add(
            flight.request_id.decode("ascii"),
            flight.tenant.name,
            ticket.head.model,
            flight.path,
            flight.told_status,
            "completed" if outcome is COMPLETED else outcome.value,
            now - opened_s,
            ttft_s,
            queued_s,
            instance,
            ticket.attempts,
            prompt_tokens,
            output_tokens,
            flight.reason,
        )

    def _forget(self, flight: Flight) -> None:
        flight.release()
        self.flights.discard(flight)
        if self._slow:
            self._slow.discard(flight)
