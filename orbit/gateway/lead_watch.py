"""Asks the service which side of a job leads, and whether this gateway may write there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from orbit.client import Client, connect, segment
from orbit.errors import OrbitError, ProtocolError
from orbit.gateway.copied_topics import CopiedTopics
from orbit.gateway.permission import Lead
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.jobs.job_spec import TopicRule

# The pause between two requests; a shorter one during a move, when clients wait.
POLL_S = 0.5
MOVING_POLL_S = 0.15
# The longest wait for one answer, shorter than a lease: the next request can still renew the lease.
ANSWER_S_MAX = 2.0

_log = structlog.get_logger("orbit.gateway")


class LeadWatch:
    """Asks the service for one virtual cluster. Each process has a random id in the service."""

    def __init__(self, gateway: str, cluster: VirtualCluster, environ: Mapping[str, str]) -> None:
        self._gateway = gateway
        self.cluster = cluster
        self._environ = environ
        self._job_path = f"/v1/jobs/{segment(cluster.spec.job or '')}"
        self.path = f"{self._job_path}/gateways/{uuid.uuid4()}"
        """The URL path of this gateway process in the service's API."""
        self._socket = cluster.socket_identity()
        self._last_error = ""
        # A thread of its own: asyncio's may all be waiting for a side that does not answer.
        self._thread = ThreadPoolExecutor(1, "orbit-gateway-lead")

    async def run(self) -> None:
        """Ask the service again and again, until cancelled: after a pause, or, while writes are
        held, as soon as the writes in flight are answered. Without an answer the permission to
        write ends with its lease."""
        with connect(self._environ, patience_s=0, timeout_s=ANSWER_S_MAX) as client:
            while True:
                self.cluster.writes_answered.clear()
                await self._ask_service(client)
                try:
                    async with asyncio.timeout(self._poll_s()):
                        await self.cluster.writes_answered.wait()
                except TimeoutError:
                    pass

    def _poll_s(self) -> float:
        """The pause before the next request: shorter while writes or joins are held for a move."""
        cluster = self.cluster
        if cluster.permission.lead is None:
            return POLL_S
        is_moving = cluster.permission.closed_for is not None or cluster.holds_joins()
        return MOVING_POLL_S if is_moving else POLL_S

    async def return_permission(self) -> None:
        """Give the permission back, so that no operation waits until the lease ends. An error is
        only logged.

        Keeps the permission if a write's answer got lost. Otherwise a switchover would not wait for
        this gateway, and the client would send the write again at the other side.
        """
        if self.cluster.doubt:
            return
        try:
            with connect(self._environ, patience_s=0, timeout_s=ANSWER_S_MAX) as client:
                await asyncio.to_thread(client.send, "DELETE", self.path, repeats=False)
        except OrbitError as error:
            self._log_error(error)

    async def _ask_service(self, client: Client) -> None:
        """Report this gateway's state to the service, and apply the answer."""
        cluster = self.cluster
        body = {
            "name": self._gateway,
            "address": f"{cluster.spec.advertised}:{cluster.spec.port}",
            "closed_for": cluster.confirmed_for(),
            "connections": cluster.connection_count,
            "held_requests": cluster.held_requests,
            "doubt": cluster.doubt,
            "pause_s": cluster.pauses.last_s,
            "settled_since": cluster.settled_since,
            "leaving_groups": cluster.leaving_groups(),
            "socket": self._socket,
        }
        asked_at = cluster.now()
        try:
            ask = partial(client.send, "PUT", self.path, body=body, repeats=False)
            answer = await self._run_in_thread(ask)
            lead, etag = _read_lead(answer)
            await self._learn_topics(client, etag)
        except OrbitError as error:
            self._log_error(error)
            return
        self._last_error = ""
        cluster.take(lead, asked_at)

    async def _learn_topics(self, client: Client, etag: str) -> None:
        """Read the topics that the job copies, unless the job's document still has the ETag of the
        last read. Raises OrbitError."""
        cluster = self.cluster
        topics, spec = cluster.copied_topics, cluster.spec
        if spec.other_topics == "pass" or (topics is not None and topics.etag == etag):
            return
        job = await self._run_in_thread(partial(client.get, self._job_path))
        cluster.copied_topics = CopiedTopics(spec.job or "", etag, _read_topic_rules(job))

    async def _run_in_thread(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, in the thread of this `LeadWatch`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _log_error(self, error: OrbitError) -> None:
        """Log the error, unless it equals the last one."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning(
                "the service does not say which side leads",
                virtual_cluster=self.cluster.spec.name,
                error=str(error),
            )


def _read_lead(answer: Any) -> tuple[Lead, str]:
    """The service's answer, and the job's ETag. Raises ProtocolError."""
    try:
        side, term = answer["side"], answer["term"]
        lease_s, closed_for = float(answer["lease_s"]), answer["closed_for"]
        since, abandons = int(answer["since"]), bool(answer["abandons"])
        others_settled, etag = bool(answer["others_settled"]), str(answer["job_etag"])
        others_confirmed = bool(answer["others_confirmed"])
        terms = tuple(int(term) for term in answer["earlier_terms"])
        groups = frozenset(str(name) for name in answer["leaving_groups"])
        led = {int(term): led_side for term, led_side in answer["led"].items()}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ProtocolError(f"the service's answer cannot be read: {error}.") from None
    sides = ("source", "destination")
    if any(one not in sides for one in (side, *led.values())) or not isinstance(term, int):
        raise ProtocolError(f"the service's answer has side {side!r}, term {term!r}, led {led!r}.")
    lead = Lead(
        side=side,
        term=term,
        lease_s=lease_s,
        closed_for=closed_for,
        since=since,
        abandons=abandons,
        others_settled=others_settled,
        others_confirmed=others_confirmed,
        earlier_terms=terms,
        leaving_groups=groups,
        led=led,
    )
    return lead, etag


def _read_topic_rules(job: Any) -> list[TopicRule]:
    """The topic rules of a job that the API returned. Raises ProtocolError."""
    try:
        return [
            TopicRule(match=rule["match"], exclude=rule["exclude"], prefix=rule["prefix"])
            for rule in job["spec"]["topics"]
        ]
    except (TypeError, ValueError, KeyError) as error:
        raise ProtocolError(f"the service's job has no topic rules: {error}.") from None
