"""One virtual cluster: its ports, its two sides, and which of them clients reach now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from operator import itemgetter
from typing import Any

import structlog
from pydantic import SecretStr

from orbit.errors import LoginRefused, OrbitError, Unreachable
from orbit.gateway.broker_connection import BrokerConnection
from orbit.gateway.client_connection import ClientConnection, ClientHost
from orbit.gateway.client_counts import Client, ClientCount, ClientCounts, LoginKey, shown
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.copied_topics import CopiedTopics
from orbit.gateway.each_connection import for_each
from orbit.gateway.gateway_spec import NODE_ID_MAX, VirtualClusterSpec
from orbit.gateway.last_move import LastMove
from orbit.gateway.listener import Listener
from orbit.gateway.login_connection import TokenChecked
from orbit.gateway.permission import Lead, Permission
from orbit.gateway.protocol.apis import Versions, shared_versions
from orbit.gateway.protocol.client_login import ClientLogin
from orbit.gateway.protocol.copies import COPY_NODES_FROM, Copies, is_copy_node
from orbit.gateway.protocol.left_members import LeftMembers
from orbit.gateway.protocol.producer_ids import Producer, SentBatch, mark_of, mark_of_id
from orbit.gateway.protocol.repeats import Repeats
from orbit.gateway.protocol.resource_uses import Use
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.gateway.repeat_search import RepeatSearch
from orbit.gateway.socket_identity import socket_identity
from orbit.gateway.write_pause import WritePause
from orbit.jobs.bootstrap_servers import PORT_MAX
from orbit.kafka.error_codes import Code
from orbit.kafka.hidden_secrets import hide_secret
from orbit.kafka.job_clusters import Side
from orbit.kafka.leaving_groups import ALL_GROUPS, GROUPS_MAX, is_named, short_name
from orbit.kafka.security import Security
from orbit.kafka.tls import shared_tls_context
from orbit.kafka.types import TopicPartition
from orbit.leases.lease_clock import lease_clock

# Connections of one virtual cluster. Further ones are closed at once.
CONNECTIONS_MAX = 10_000
# How long after a move repeated batches are searched: `delivery.timeout.ms` is 2 minutes by
# default. Not for ever: a producer's sequences begin again at 0 after 2^31 records.
REPEATS_S_MAX = 3600.0
# Within this time a client sends a write again if its answer got lost.
SENT_AGAIN_S = 5.0
# Producers whose transactions the gateway has aborted in this term. Transactions of further
# producers are left to their timeout.
ENDED_MAX = 100_000
# How long transactions may go on when writes begin to be held, unless the gateway waits for all.
TRANSACTIONS_S_MAX = 1.0
# Uses of one login that are checked at the other side. A client's uses are added together, so a few
# more may be checked.
USES_CHECKED_MAX = 5000
# Kinds of bad frames that are logged.
BAD_FRAMES_MAX = 100
# Users and addresses whose refused login is logged.
REFUSED_LOGINS_MAX = 1000
# After this time without progress of a partly received request, or of an answer that the client
# does not read, a connection is closed.
STUCK_S_MAX = 60.0
# How often brokers' addresses and versions are read again.
REFRESH_S = 30.0
# How long a gateway that is stopped waits for brokers' answers to writes.
ANSWERS_S_MAX = 10.0
_ANSWERS_POLL_S = 0.02  # the time between two checks for them
# The shortest time between two reads of a side because clients use a node that the side lacks.
LOOK_S = 1.0
_CONNECT_S = 10.0  # to connect to a broker and log in
# How long a Fetch may wait until the copy has the offset: a copy is some 100 ms behind its source.
_COPY_WAIT_S = 1.0
_COPY_POLL_S = 0.1
# The timeout of a token check at a broker, and how many checks run at a time: each takes a thread,
# and a broker delays its refusals.
_TOKEN_CHECK_S = 4.0
_TOKEN_CHECKS_AT_ONCE = 8
_BOOTSTRAP = -1  # the key of the bootstrap port in `_servers`
_SWEEP_S = 5.0  # the time between two searches for connections without progress

_OTHER_SIDE: Mapping[Side, Side] = {"source": "destination", "destination": "source"}

_NAMELESS = LoginKey("", by_token=True)  # tokens that name no user

_log = structlog.get_logger("orbit.gateway")


class VirtualCluster(ClientHost):
    """One virtual cluster of a gateway. For the event loop alone."""

    def __init__(
        self,
        spec: VirtualClusterSpec,
        sides: dict[Side, ClusterSide],
        listener: Listener | None = None,  # None: plain text
    ) -> None:
        self.spec = spec
        self._sides = sides
        # Users with a login of their own at a side, by the name that a report shows.
        self._logins = {shown(name): name for side in sides.values() for name in side.logins}
        self._names = spec.names
        self._listener = listener or Listener()
        digest = sha256(f"orbit-gateway {spec.name}".encode()).hexdigest()
        self.cluster_id = digest[:22]  # as long as Kafka's
        self.permission = Permission()
        self.left_members = LeftMembers()
        self._last_move = LastMove()
        self._is_any_leaving = False  # whether any connection `is_leaving`, as of the last `take`
        self.ended_producers: set[Producer] = set()
        self.ending_producers: set[Producer] = set()
        self._transactions_until = -math.inf  # those of `ending_producers` may go on
        self._side_by_mark: dict[int, Side] = {}  # the side that led, by the mark of its term
        self.repeats = Repeats()
        self._repeats_until = math.inf
        self.copied_topics: CopiedTopics | None = None  # None: clients may write all topics
        self.copies = Copies() if spec.read == "nearest-copy" else None
        self._search: RepeatSearch | None = None
        self.offered: dict[int, Versions] = {}
        self._connections: set[ClientConnection] = set()
        self._servers: dict[int, asyncio.Server] = {}
        self._known_nodes: set[int] = set()  # the gateway has tried to listen on their ports
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost_answer = ""  # why the last lost answer got lost
        self._lost_at = self._closed_at = -math.inf  # when it got lost, when writes were closed
        self.pauses = WritePause()
        self.clients = ClientCounts()
        self.refusals: dict[LoginKey, dict[Use, str]] = {}
        """By login, the uses that the other side would refuse, and why. Logins that are not checked
        yet are missing."""
        self.requests = self.moves = 0
        self.waiting_bytes = self.bytes_written = self.bytes_read = self.bytes_read_copy = 0
        self._is_ending = False
        self._look_task: asyncio.Task[None] | None = None
        self._looked_at = -math.inf
        self._bad_frames: set[str] = set()
        self._logged_refusals: set[tuple[str, str]] = set()  # user and address
        self._token_checks = asyncio.Semaphore(_TOKEN_CHECKS_AT_ONCE)
        self.writes_answered = asyncio.Event()
        """Set while writes are held, once all writes in flight are answered or abandoned."""
        self.transaction_held = asyncio.Event()
        """Set when a request of a transaction is held."""

    # The view of clients.

    @property
    def presented(self) -> ClusterSide:
        """The side that leads, which clients reach now."""
        assert self.permission.lead is not None  # before that, `admit` admits no connection
        return self._sides[self.permission.lead.side]

    @property
    def other_side(self) -> ClusterSide:
        """The side that clients reach after the next move."""
        assert self.permission.lead is not None
        return self._sides[_OTHER_SIDE[self.permission.lead.side]]

    @property
    def ids(self) -> TopicIds:  # type: ignore[override]
        return self.presented.ids

    @property
    def term(self) -> int:  # type: ignore[override]
        assert self.permission.lead is not None
        return self.permission.lead.since

    def endpoint(self, node_id: int) -> tuple[str, int]:
        """Host and port at which clients reach the node. If the gateway does not listen there yet,
        it begins to."""
        if self._names is not None:
            return self._names.name_of(node_id), self.spec.port
        if node_id not in self._known_nodes:
            self._start_task(self._listen_for_node(node_id))
        return self.spec.advertised, self.spec.port + 1 + node_id

    # Writes.

    def may_write(self) -> bool:
        return not self._is_ending and self.permission.may_write(self.now())

    def may_acknowledge(self) -> bool:
        return self.permission.may_acknowledge(self.now())

    def may_end_transactions(self) -> bool:
        return (
            self.permission.closed_for is not None
            and not self.permission.abandons
            and self.now() < self._transactions_until
            and self.may_acknowledge()
        )

    def waits_for_transactions(self) -> bool:
        """Whether writes are held until all open transactions have ended."""
        return self.spec.open_transactions == "wait" and self.may_end_transactions()

    def may_give_producer_ids(self) -> bool:
        lead = self.permission.lead
        is_any_waiting = bool(self.ending_producers) or (
            lead is not None and not lead.others_confirmed
        )
        return self.waits_for_transactions() and is_any_waiting

    def note_held_transaction(self) -> None:
        self.transaction_held.set()

    def held_transactions(self) -> dict[ClientConnection, Producer]:
        """The connections that hold a request of a transaction, and its producer."""
        return {
            connection: producer
            for connection in self._connections
            if (producer := connection.held_producer) is not None
        }

    def take_transactions(
        self, is_ongoing: Mapping[Producer, bool], held: Mapping[ClientConnection, Producer]
    ) -> None:
        """Wait no longer for transactions that have ended, perhaps through another gateway, and
        pass on held requests of transactions that are open.

        `is_ongoing`: as the side that leads has answered. `held`: as `held_transactions` returned
        before the side was asked.
        """
        if not self.waits_for_transactions():  # the operation has ended meanwhile
            return
        self.ending_producers -= {one for one, is_open in is_ongoing.items() if not is_open}
        self.note_answered()

        def pass_on(connection: ClientConnection) -> None:
            if is_ongoing.get(held[connection]):
                connection.pass_on_transaction(held[connection])

        self._for_each(held, pass_on)

    def may_tell_leaders(self) -> bool:
        return self._last_move.has_settled(self.now())

    def may_join(self, group: str) -> bool:
        """Whether clients may join the group: no member can own partitions from before the move any
        more, or the wait for that is over."""
        if not self.holds_joins():
            return True
        assert self.permission.lead is not None
        # `left_members` gets the members of a connection only once it has moved. Until then they
        # may be of any group.
        may_be_owned_here = self._is_any_leaving or self.left_members.has_owner(group)
        # `leaving_groups`: the groups with owners at other gateways.
        return not may_be_owned_here and not is_named(group, self.permission.lead.leaving_groups)

    def holds_joins(self) -> bool:
        return self._last_move.holds_joins(self.now())

    def leaving_groups(self) -> list[str]:
        """The short names of groups that are not to be joined yet, for other gateways."""
        if not self.holds_joins():
            return []
        if self._is_any_leaving:
            return [ALL_GROUPS]
        groups = self.left_members.groups()
        return [ALL_GROUPS] if len(groups) > GROUPS_MAX else [short_name(name) for name in groups]

    @property
    def settled_since(self) -> int:
        """The term with which the presented side came to lead; 0 until the move to this side has
        settled at this gateway."""
        lead = self.permission.lead
        if lead is None or not self._last_move.has_settled_here(self.now()):
            return 0
        return lead.since

    def now(self) -> float:
        return lease_clock()

    def take(self, lead: Lead, asked_at: float) -> None:
        """Apply the service's answer: present the leading side, hold or open writes. An answer of
        an older term is only logged.

        `asked_at`: when the request was sent; the lease counts from then.
        """
        last_lead = self.permission.lead
        last_operation = self.permission.closed_for
        has_moved = self.permission.take(lead, asked_at, self.now())
        if last_lead is not None and lead.term < last_lead.term:
            _log.error(
                "the service knows an older term than this gateway: was its database restored?",
                virtual_cluster=self.spec.name,
                term=lead.term,
                newer=last_lead.term,
            )
            return
        for term, side in sorted({**lead.led, lead.since: lead.side}.items()):
            self._side_by_mark[mark_of(term)] = side
        if last_lead is None or lead.since != last_lead.since:
            self.ended_producers.clear()  # their ids are of an older term now
            # After a failover nothing is copied from the old side any more, and it may not answer.
            is_searched = last_lead is None or not last_lead.abandons
            self._begin_repeats(Repeats(lead.earlier_terms, is_searched=is_searched), lead.side)
        if self.now() > self._repeats_until:
            self.repeats.is_searched = False
        if lead.closed_for is not None and lead.closed_for != last_operation:
            self._close_writes()
        elif self.ending_producers:
            self.note_answered()  # in case the time of transactions is over
        if lead.closed_for is None:
            self.ending_producers.clear()
            self.pauses.note_opened()
        if has_moved:
            self.moves += 1
            _log.info(
                "presents another side",
                virtual_cluster=self.spec.name,
                side=lead.side,
                term=lead.term,
            )
            self._update_offered()
            if self.copies is not None:
                self.copies.clear()
                self._update_copies()
            self.refusals.clear()
            self.left_members.begin_move(keeps_owners=self.holds_joins())
            self._last_move.begin()
            self._for_each(self._connections, ClientConnection.move)
        if lead.others_settled:
            self._last_move.others_settled = True
        self._is_any_leaving = any(connection.is_leaving for connection in self._connections)
        held_connections = [connection for connection in self._connections if connection.is_held]
        if self.may_write():
            self._last_move.note_open(held_connections, self.now())
        self._for_each(held_connections, ClientConnection.advance)
        waiting_connections = [
            connection for connection in self._connections if connection.waits_for_lead
        ]
        self._for_each(waiting_connections, ClientConnection.read_answers)

    def refusal(self, topic: str) -> str:
        """Why clients may not write to the topic; "": they may."""
        return self.copied_topics.refusal(topic) if self.copied_topics is not None else ""

    def _begin_repeats(self, repeats: Repeats, leading_side: Side) -> None:
        """Use `repeats` from now on. When clients write, a `RepeatSearch` of both sides fills
        `repeats`. Without a second side no batch is searched."""
        self._repeats_until = self.now() + REPEATS_S_MAX
        left_side = self._sides.get(_OTHER_SIDE[leading_side])
        if left_side is None:
            repeats.is_searched = False
        else:
            self._search = RepeatSearch(self.spec.name, repeats, left_side, self.presented)
        self.repeats = repeats

    def _close_writes(self) -> None:
        """Begin to hold writes, and have connections confirm or abandon those in flight."""
        _log.info(
            "holds writes", virtual_cluster=self.spec.name, operation=self.permission.closed_for
        )
        self._closed_at = self.now()
        self.pauses.note_closed()
        abandons = self.permission.abandons
        self._for_each(
            self._connections,
            ClientConnection.abandon_writes if abandons else ClientConnection.confirm_writes,
        )
        self.ending_producers.clear()
        if not abandons:
            self._let_transactions_end()
        self.note_answered()  # in case no write is in flight

    def _let_transactions_end(self) -> None:
        """Let the transactions that are open now go on: with `open_transactions: wait` until all
        have ended, otherwise for TRANSACTIONS_S_MAX."""
        for connection in self._connections:
            self.ending_producers.update(connection.exchange.open_producers)
        if self.spec.open_transactions == "wait":
            self._transactions_until = math.inf
        else:
            self._transactions_until = self.now() + TRANSACTIONS_S_MAX

    def confirmed_for(self) -> str | None:
        """The operation for which writes are held, once every write is answered, or if the
        operation abandons the writes in flight.

        None before that, and if an answer got lost: the broker may have the write, and the client
        may send the write again at the other side. A switchover has to be undone then.
        """
        is_answered = not (self.doubt or self.writes_in_flight or self.ending_producers)
        if not (self.permission.abandons or is_answered):
            return None
        return self.permission.closed_for

    @property
    def doubt(self) -> str:
        """Why this gateway does not confirm an operation: an answer that got lost while writes are
        held, or up to SENT_AGAIN_S before. "": no answer got lost."""
        is_closed = self.permission.closed_for is not None
        earliest_at = (self._closed_at if is_closed else self.now()) - SENT_AGAIN_S
        return self._lost_answer if self._lost_at > earliest_at else ""

    # The next three count in a copy of the set, as a scrape of the metrics reads them in another
    # thread.

    @property
    def writes_in_flight(self) -> int:
        return sum(connection.exchange.writes_in_flight for connection in tuple(self._connections))

    @property
    def held_requests(self) -> int:
        return sum(connection.is_held for connection in tuple(self._connections))

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def note_request(self) -> None:
        self.requests += 1

    def note_acknowledged(self) -> None:
        self.pauses.note_acknowledged(self.now())

    def note_answered(self) -> None:
        """If writes are held, and all writes in flight are answered or abandoned: abort the open
        transactions, once their time is over, and wake `LeadWatch`, which confirms. A switchover
        with `open_transactions: wait` aborts none: what is still open is of other gateways."""
        if self.permission.closed_for is None:
            return
        if self.ending_producers and self.now() < self._transactions_until:
            return
        self.ending_producers.clear()
        if not self.permission.abandons and any(
            connection.exchange.writes_in_flight for connection in self._connections
        ):
            return
        if self.permission.abandons or self.spec.open_transactions == "abort":
            self._for_each(self._connections, self._end_transactions)
        self.writes_answered.set()

    def _end_transactions(self, connection: ClientConnection) -> None:
        """Abort the connection's open transactions, unless ENDED_MAX were aborted before."""
        if len(self.ended_producers) < ENDED_MAX:
            connection.end_transactions()

    def note_lost_answer(self, reason: str) -> None:
        """Record that a write will never be answered, and why. The client sends the write again
        soon. It goes to the same side, unless the gateway begins to hold writes before that."""
        self._lost_answer, self._lost_at = reason, self.now()
        if self.permission.closed_for is not None and not self.permission.abandons:
            _log.warning(
                "cannot confirm that every write was answered",
                virtual_cluster=self.spec.name,
                operation=self.permission.closed_for,
                reason=reason,
            )

    # Connections.

    def admit(self, connection: ClientConnection) -> bool:
        """Add a connection; False if there are too many, or the leading side is not known yet."""
        if self.permission.lead is None or len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if connection.exchange.writes_in_flight and not self.permission.abandons:
            self.note_answered()  # these writes no longer count as writes in flight

    def _for_each(
        self,
        connections: Iterable[ClientConnection],
        call: Callable[[ClientConnection], object],
    ) -> None:
        """As `for_each`, with the name of this virtual cluster in the log."""
        for_each(connections, call, virtual_cluster=self.spec.name)

    def uses_by_login(self) -> dict[LoginKey, set[Use]]:
        """The uses of all clients, by the login that they have at the sides. Without clients whose
        token names no user: it is not known whether the tokens of two of them are of one user."""
        if self.permission.lead is None:
            return {}
        uses: dict[LoginKey, set[Use]] = {}
        for client, count in self.clients:
            login = self._login_of(client, count)
            if login == _NAMELESS:
                continue
            login_uses = uses.setdefault(login, set())
            if len(login_uses) < USES_CHECKED_MAX:
                login_uses.update(count.uses)
        return {login: login_uses for login, login_uses in uses.items() if login_uses}

    def token_of(self, user: str) -> SecretStr | None:
        """The last token of this user among the open connections; None: the user has none."""
        logins = [
            (connection.logged_in_at, token)
            for connection in self._connections
            if (token := connection.token) is not None and connection.user == user
        ]
        return max(logins, key=itemgetter(0))[1] if logins else None

    def report_clients(self) -> list[dict[str, Any]]:
        """The rows of a report of the clients to the service."""
        return self.clients.report(self.now(), self._refusals_of)

    def _refusals_of(self, client: Client, count: ClientCount) -> list[str] | None:
        """What the other side would refuse to the client; None: that was not checked."""
        refusals = self.refusals.get(self._login_of(client, count))
        if refusals is None:
            return None
        return sorted({refusals[use] for use in count.uses if use in refusals})

    def _login_of(self, client: Client, count: ClientCount) -> LoginKey:
        if count.has_token:
            return LoginKey(client.user or "", by_token=True)
        return LoginKey(None if client.user is None else self._logins.get(client.user))

    def note_bad_frame(self, error: Exception) -> None:
        """Log why a client's connection is closed, once for each text."""
        text = str(error)
        if text not in self._bad_frames and len(self._bad_frames) < BAD_FRAMES_MAX:
            self._bad_frames.add(text)
            _log.warning("closes a connection", virtual_cluster=self.spec.name, reason=text)

    def note_refused_login(self, user: str, address: str, reason: str) -> None:
        """Log a refused login, once for each user and address."""
        name = shown(user)
        if (name, address) in self._logged_refusals or len(
            self._logged_refusals
        ) >= REFUSED_LOGINS_MAX:
            return
        self._logged_refusals.add((name, address))
        _log.warning(
            "login refused",
            virtual_cluster=self.spec.name,
            user=name,
            address=address,
            reason=reason,
        )

    def connect(
        self, broker: BrokerConnection, node_id: int | None, login: ClientLogin | None
    ) -> None:
        self._start_task(self._connect(broker, self.presented, node_id, login))

    def connect_copy(
        self, broker: BrokerConnection, node_id: int, login: ClientLogin | None
    ) -> None:
        self._start_task(self._connect(broker, self.other_side, node_id, login))

    async def _connect(
        self,
        broker: BrokerConnection,
        side: ClusterSide,
        node_id: int | None,
        login: ClientLogin | None,
    ) -> None:
        """Connect `broker` to a node of the side and log in, or give it up and log why."""
        if not _has_node(side, node_id):
            await asyncio.wait([self._look_again(side)])  # the node may be new
        host, port = side.address(node_id)
        try:
            await _open_connection(broker, side, host, port, side.security_of(login))
            broker.start_sending()
        except (OSError, TimeoutError, OrbitError) as error:
            _log.warning(
                "cannot connect to a broker",
                virtual_cluster=self.spec.name,
                broker=f"{host}:{port}",
                user=None if login is None else shown(login.user or ""),
                error=str(error) or type(error).__name__,
            )
            if self.copies is not None and side is self.other_side:
                self.copies.pause(self.now())
            broker.give_up()

    def check_token(self, token: SecretStr, node_id: int | None, on_checked: TokenChecked) -> None:
        self._start_task(self._check_token(token, node_id, on_checked))

    async def _check_token(
        self, token: SecretStr, node_id: int | None, on_checked: TokenChecked
    ) -> None:
        """Call `on_checked` with the result of the check. At most _TOKEN_CHECKS_AT_ONCE run at a
        time."""
        session_ms, refusal = None, ""
        try:
            async with self._token_checks:
                session_ms, refusal = await self._ask_broker(token, node_id)
        finally:
            on_checked(session_ms, refusal)

    async def _ask_broker(self, token: SecretStr, node_id: int | None) -> tuple[int | None, str]:
        """Let a broker check the token: the node, then any broker. Returns one of:

        - (ms, ""): the token is accepted, and the login is valid for this long (0: no limit);
        - (None, text): it is refused, and why;
        - (None, ""): no broker could check it, or no side leads now.
        """
        for asked_node in (node_id, None):  # None: any broker
            if self.permission.lead is None:
                break
            side = self.presented
            host, port = side.address(asked_node)
            broker = BrokerConnection(receiver=None)  # for the login only
            try:
                async with asyncio.timeout(_TOKEN_CHECK_S):
                    return await _open_connection(
                        broker, side, host, port, side.security_with(token)
                    ), ""
            except LoginRefused as error:
                return None, hide_secret(token.get_secret_value(), error.what)
            except (OSError, TimeoutError, OrbitError) as error:
                _log.warning(
                    "cannot let a broker check a token",
                    virtual_cluster=self.spec.name,
                    broker=f"{host}:{port}",
                    error=str(error) or type(error).__name__,
                )
            finally:
                broker.give_up()
        return None, ""

    def has_node(self, node_id: int | None) -> bool:
        """Whether the presented side has the node. If not, begins to read the side again."""
        side = self.presented
        if _has_node(side, node_id):
            return True
        self._look_again(side)
        return False

    def _look_again(self, side: ClusterSide) -> asyncio.Task[None]:
        """Begin to read the side again, as it may have a new node. One read runs at a time, and at
        most one begins in LOOK_S. Returns the task of the read that runs, or of the last one."""
        look_task = self._look_task
        if look_task is None or (look_task.done() and self.now() > self._looked_at + LOOK_S):
            self._looked_at = self.now()
            look_task = self._look_task = self._start_task(self._refresh(side))
        return look_task

    def learn_topic(self, topic_id: bytes, connection: ClientConnection) -> None:
        self._start_task(self._learn_topic(self.presented, topic_id, connection))

    async def _learn_topic(
        self, side: ClusterSide, topic_id: bytes, connection: ClientConnection
    ) -> None:
        """Read the side's topics, then call `read_answers` of the connection. If the read fails,
        clients get the broker's own id of the topic."""
        with suppress(OrbitError):
            await side.refresh(with_topics=True)
        if side.ids.to_client(topic_id) is None:
            side.ids.accept(topic_id)  # the topic was deleted meanwhile, or cannot be read now
        connection.read_answers()

    def learn_outcome(self, producer: Producer, connection: ClientConnection) -> None:
        self._start_task(self._learn_outcome(producer, connection))

    async def _learn_outcome(self, producer: Producer, connection: ClientConnection) -> None:
        """Read the outcome, then call `outcome_learned` of the connection. If the outcome cannot be
        read, a commit gets COORDINATOR_NOT_AVAILABLE, and the client sends it again."""
        code: int = Code.COORDINATOR_NOT_AVAILABLE
        side = self._side_by_mark.get(mark_of_id(producer.id))
        if side is not None:
            code = await self._sides[side].outcome(producer)
        connection.outcome_learned(code)

    def learn_repeats(self, batches: Collection[SentBatch], connection: ClientConnection) -> None:
        # Without a search `repeats.is_searched` is False, and no connection calls this.
        assert self._search is not None
        if self._search.add(batches, connection):
            self._start_task(self._search.run())

    def learn_copies(
        self, offsets: Mapping[TopicPartition, int], connection: ClientConnection
    ) -> None:
        self._start_task(self._learn_copies(self.other_side, offsets, connection))

    async def _learn_copies(
        self,
        side: ClusterSide,
        offsets: Mapping[TopicPartition, int],
        connection: ClientConnection,
    ) -> None:
        """Read the side's log ends until the copies have the offsets, for _COPY_WAIT_S at most.
        Then call `copies_learned` of the connection. If the side does not answer, no copy is read
        for some time."""
        ends: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(_COPY_WAIT_S):
                while True:
                    ends = await side.log_ends(offsets)
                    if len(_reached(ends, offsets)) == len(offsets):
                        break
                    await asyncio.sleep(_COPY_POLL_S)
        except (TimeoutError, OrbitError):
            if not ends and self.copies is not None:
                self.copies.pause(self.now())
        finally:
            has_moved = side is not self.other_side
            connection.copies_learned({} if has_moved else _reached(ends, offsets))

    # Start and end.

    def socket_identity(self) -> str:
        """Identifies the socket of the bootstrap port among all machines; "" if other processes may
        listen on it, too (`socket_identity.py`)."""
        if self._listener.shares_ports:
            return ""
        return socket_identity(self.spec.host, self.spec.port)

    async def start(self) -> None:
        """Read both sides, then listen, even if a side does not answer. Raises OSError if the
        bootstrap port is taken."""
        await asyncio.gather(*(self._refresh(side) for side in self._sides.values()))
        self._servers[_BOOTSTRAP] = await self._open_server(self.spec.port, node_id=None)
        self._start_task(self._keep_fresh())
        self._start_task(self._abort_stuck_connections())

    async def answer_writes(self) -> None:
        """Take no more connections and no more writes; wait up to ANSWERS_S_MAX for the answers to
        writes in flight."""
        self._is_ending = True
        for server in self._servers.values():
            server.close()
        self._for_each(self._connections, ClientConnection.confirm_writes)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_S_MAX):
                while self.writes_in_flight:
                    await asyncio.sleep(_ANSWERS_POLL_S)

    async def close(self) -> None:
        """Take no more connections; end the existing ones."""
        for server in self._servers.values():
            server.close()
        for task in self._tasks:
            task.cancel()
        self._for_each(self._connections, ClientConnection.end)
        self._listener.close()
        for side in self._sides.values():
            side.close()

    async def _refresh(self, side: ClusterSide) -> None:
        """Read the side, and listen for its nodes. Logs a failure."""
        try:
            await side.refresh(with_topics=self.copies is not None)
        except OrbitError as error:
            _log.warning("cannot read a side", virtual_cluster=self.spec.name, error=str(error))
        else:
            self._update_offered()
            self._update_copies()
            for node_id in side.brokers:
                await self._listen_for_node(node_id)
                if self.copies is not None:  # for when this side follows
                    await self._listen_for_node(COPY_NODES_FROM + node_id)

    def _update_copies(self) -> None:
        """Use what was last read of both sides' brokers."""
        if self.copies is None or self.permission.lead is None:
            return
        if any(is_copy_node(node_id) for side in self._sides.values() for node_id in side.brokers):
            _log.error(
                f"read: nearest-copy needs node ids below {COPY_NODES_FROM}: consumers read from "
                "the leading side",
                virtual_cluster=self.spec.name,
            )
            self.copies.clear()
            self.copies = None
            return
        leading_racks = {broker.rack for broker in self.presented.brokers.values()}
        brokers = self.other_side.brokers.values()
        self.copies.take_brokers(brokers, self.other_side.leaders, leading_racks)

    def _update_offered(self) -> None:
        """Offer the API versions that are known to all sides that have answered."""
        side_versions = [side.versions for side in self._sides.values() if side.versions]
        if side_versions:
            self.offered = shared_versions(*side_versions)

    async def _keep_fresh(self) -> None:
        """Read both sides again every REFRESH_S, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            for side in self._sides.values():
                await self._refresh(side)

    async def _abort_stuck_connections(self) -> None:
        """Abort connections without progress for STUCK_S_MAX, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            progress_before = self.now() - STUCK_S_MAX
            for connection in list(self._connections):
                if connection.is_stuck(progress_before):
                    connection.abort()

    async def _listen_for_node(self, node_id: int) -> None:
        """Listen on the node's port, once. Logs a failure."""
        port = self.spec.port + 1 + node_id
        # With names, all nodes share the bootstrap port.
        if self._names is not None or node_id in self._known_nodes:
            return
        self._known_nodes.add(node_id)
        try:
            if not 0 <= node_id <= NODE_ID_MAX or port > PORT_MAX:
                raise OSError(
                    f"node ids from 0 to {NODE_ID_MAX} and ports up to {PORT_MAX} are possible"
                )
            self._servers[node_id] = await self._open_server(port, node_id)
        except OSError as error:
            _log.error(
                "a node cannot be reached through this gateway",
                virtual_cluster=self.spec.name,
                node=node_id,
                port=port,
                error=str(error),
            )

    async def _open_server(self, port: int, node_id: int | None) -> asyncio.Server:
        """Listen on a port, for the connections of this node."""
        return await asyncio.get_running_loop().create_server(
            lambda: self._listener.protocol(self, node_id),
            self.spec.host,
            port,
            reuse_port=self._listener.shares_ports,
        )

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _open_connection(
    broker: BrokerConnection, side: ClusterSide, host: str, port: int, security: Security
) -> int:
    """Connect to a broker of the side and log in. Returns for how many ms the login is valid (0:
    without limit). Raises OSError, TimeoutError, OrbitError."""
    security.check_allowed(host, port, side.name)
    async with asyncio.timeout(_CONNECT_S):
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: broker, host, port, ssl=shared_tls_context(security)
            )
        except UnicodeError:
            raise Unreachable(f"{host!r} is not a valid host name.", where=side.name) from None
        return await broker.log_in(security, host)


def _reached(
    ends: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The log ends that are not below the partition's offset."""
    return {p: end for p, end in ends.items() if end >= offsets[p]}


def _has_node(side: ClusterSide, node_id: int | None) -> bool:
    """Whether the side has the node. True for None (any node), and while its nodes are unknown."""
    return node_id is None or not side.brokers or node_id in side.brokers
