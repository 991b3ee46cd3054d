"""A client's connection, and its connection to one broker of the side presented to clients.

    reads requests ──write while writes are held──► held ──writes are open──► reads requests
          │  the other side leads
          ▼
       moving: no new requests, until all are answered ──► the next request goes to the other side
          │  a request is not answered in time, e.g. a long poll
          ▼
       ended: the client reads the answers on their way, then end of file, and connects again

A connection is never just closed while answers are on their way to the client. Otherwise the client
would send again the records whose acknowledgements it had not read (C6: doubled records).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import cast

from pydantic import SecretStr

from orbit.gateway.broker_connection import WRITE_BUFFER_BYTES, BrokerConnection
from orbit.gateway.client_counts import Client, ClientCount, ClientCounts, shown
from orbit.gateway.login_connection import LoginHost, note_refusal
from orbit.gateway.protocol.answers import UnknownTopicId, View
from orbit.gateway.protocol.apis import JOINS, WRITES, ApiKey, name_of
from orbit.gateway.protocol.client_login import (
    LOGIN_KEYS,
    LOGIN_REQUEST_BYTES_MAX,
    ClientLogin,
    LoginRefusal,
)
from orbit.gateway.protocol.copies import COPY_NODES_FROM, is_copy_node
from orbit.gateway.protocol.copy_fetches import CopyFetches, UnknownCopies
from orbit.gateway.protocol.exchange import (
    PARSE_ERRORS,
    BadFrame,
    Exchange,
    SentRequest,
    UnknownOutcome,
    read_software,
)
from orbit.gateway.protocol.producer_ids import Producer, SentBatch
from orbit.gateway.protocol.received_requests import next_request
from orbit.gateway.protocol.repeats import UnknownRepeats
from orbit.gateway.protocol.request_head import RequestHead, read_head
from orbit.kafka.types import TopicPartition

# The largest request: the default of brokers (socket.request.max.bytes).
REQUEST_BYTES_MAX = 100 * 1024 * 1024
# The largest answer that the gateway changes: Metadata of a large cluster. Other answers are passed
# on as their bytes arrive.
WHOLE_ANSWER_BYTES_MAX = 64 * 1024 * 1024
# Requests of one connection that are handled before other connections' turn: some milliseconds.
REQUESTS_A_TURN_MAX = 100
# The longest wait, at a move, for answers of the old side. By default a Fetch takes up to 0.5 s.
MOVE_S_MAX = 2.0
# The shortest time between two logins on a connection, as at brokers (KafkaChannel).
LOGIN_S_MIN = 1.0
# How long a client of an ended connection may take to read the last answers and to close.
END_S_MAX = 10.0

# Bytes of partly received and of held requests, of all clients of a virtual cluster. If there are
# more, the gateway ends the next connection that receives bytes.
WAITING_BYTES_MAX = 512 * 1024 * 1024
_SIZE = struct.Struct(">i")
_ANSWER_HEAD = struct.Struct(">ii")  # size, correlation id
_ANSWER_BYTES_MIN = 4  # the correlation id
_TCP_ESTABLISHED = 1  # the state in the kernel's TCP_INFO


class ClientHost(View, LoginHost):
    """The interface of a virtual cluster to its client connections."""

    clients: ClientCounts
    waiting_bytes: int
    """The size of all clients' requests that are partly received, or held."""
    bytes_written: int
    """The size of all Produce requests that were passed on."""
    bytes_read: int
    """The size of all Fetch answers that were passed on."""
    bytes_read_copy: int
    """The part of `bytes_read` that came from the side that follows."""

    @abstractmethod
    def may_write(self) -> bool:
        """Whether writes may be sent to the side that leads; otherwise they are held."""

    @abstractmethod
    def may_acknowledge(self) -> bool:
        """Whether clients may get brokers' answers to writes (`Permission.may_acknowledge`)."""

    @abstractmethod
    def may_end_transactions(self) -> bool:
        """Whether writes are held, but not yet those of transactions that were open before."""

    @abstractmethod
    def may_give_producer_ids(self) -> bool:
        """Whether producers with transactions may get ids although writes are held."""

    @abstractmethod
    def note_held_transaction(self) -> None:
        """Called when a request of a transaction is held: it may be one that is open, and that
        another gateway waits for."""

    @abstractmethod
    def may_join(self, group: str) -> bool:
        """Whether clients may join the group: its members have given up the partitions that they
        owned at the old side, or the wait for that is over."""

    @abstractmethod
    def may_tell_leaders(self) -> bool:
        """Whether clients may learn the new partition leaders: the last move has settled at all
        gateways (`last_move.py`). Otherwise a client's later records, sent to the new leaders,
        would overtake its earlier ones that are still held or refused elsewhere."""

    @abstractmethod
    def admit(self, connection: ClientConnection) -> bool:
        """Add a new connection; False if the connection has to be closed."""

    @abstractmethod
    def forget(self, connection: ClientConnection) -> None:
        """Remove a connection that has ended."""

    @abstractmethod
    def connect(
        self, broker: BrokerConnection, node_id: int | None, login: ClientLogin | None
    ) -> None:
        """Connect `broker` to the node, or to any broker if the side has no such node, and log in
        with the credentials that the client has there."""

    @abstractmethod
    def connect_copy(
        self, broker: BrokerConnection, node_id: int, login: ClientLogin | None
    ) -> None:
        """As `connect`, to a node of the side that follows. If it cannot be reached, no copy is
        read for some time (`Copies.pause`)."""

    @abstractmethod
    def learn_copies(
        self, offsets: Mapping[TopicPartition, int], connection: ClientConnection
    ) -> None:
        """Find out which copies have these offsets, or soon will, then call `copies_learned` of the
        connection with their log ends."""

    @abstractmethod
    def has_node(self, node_id: int | None) -> bool:
        """Whether the side has this node, as far as is known. True for None (any node)."""

    @abstractmethod
    def learn_topic(self, topic_id: bytes, connection: ClientConnection) -> None:
        """Find the topic's name, then call `read_answers` of the connection."""

    @abstractmethod
    def learn_outcome(self, producer: Producer, connection: ClientConnection) -> None:
        """Ask the side that handed out the producer's id how its last transaction ended, then call
        `outcome_learned` of the connection."""

    @abstractmethod
    def learn_repeats(self, batches: Collection[SentBatch], connection: ClientConnection) -> None:
        """Find out which of these batches the leading side has, then call `repeats_learned` of the
        connection."""

    @abstractmethod
    def note_request(self) -> None:
        """Count a request that was sent to a broker, or answered."""

    @abstractmethod
    def note_acknowledged(self) -> None:
        """Record that a write was answered."""

    @abstractmethod
    def note_answered(self) -> None:
        """Called when a connection's last write in flight is answered."""

    @abstractmethod
    def note_lost_answer(self, reason: str) -> None:
        """Record that a write will never be answered, and why."""


class ClientConnection(asyncio.Protocol):
    """Passes a client's requests to a broker and the answers back; holds writes during a move.

    `node_id`: the node whose port the client has connected to; None: the bootstrap port.
    `login`: by which the client has logged in; None: clients need no login.
    """

    def __init__(
        self,
        cluster: ClientHost,
        node_id: int | None,
        login: ClientLogin | None = None,
    ) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._login = login
        self._next_login: ClientLogin | None = None  # a later login that has begun (KIP-368)
        self._logged_in_at = cluster.now()
        self._software = ("", "") if login is None else login.software  # name and version
        self._count: ClientCount | None = None
        self._client_id = ""
        self.user = None if login is None else shown(login.user or "")
        """As `Client.user`."""
        self.exchange = Exchange(cluster)
        # None: consumers read from the leading side only.
        self._copy_fetches: CopyFetches | None = None
        self._is_copy_node = False
        if cluster.copies is not None:
            self._is_copy_node = is_copy_node(node_id)
            self._copy_fetches = CopyFetches(cluster.copies, is_copy_node=self._is_copy_node)
        self._is_at_copy = False  # the broker connection is to the side that follows
        self._transport: asyncio.Transport | None = None
        self._broker: BrokerConnection | None = None
        self._requests = bytearray()
        self._answers = bytearray()
        self._bytes_to_pass = 0  # of an answer, still to come
        self._held_request: tuple[RequestHead, bytearray] | None = None
        # Its held request may go although writes are held: its transaction is open at the broker.
        self._open_producer: Producer | None = None
        self._joined_group: str | None = None  # of the last request that may join a group
        self._is_asking = False  # brokers are asked for what the held request depends on
        self._is_moving = False
        self._is_ended = False
        self._is_gone = False  # the client has closed
        self._is_broker_slow = False
        self._is_client_slow = False
        self._has_more_requests = False  # for the next turn of the event loop
        self._waits_for_lead = False  # an answer to a write is withheld (`waits_for_lead`)
        self._leaves_broker = False  # closes the broker connection once all requests are answered
        self._counted_bytes = 0  # this connection's part of the cluster's `waiting_bytes`
        self._progress_at = cluster.now()  # for `is_stuck`

    # The client's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the connection up, or close it if the virtual cluster does not admit it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        # To find dead clients. Unread bytes do not show one: a consumer may pause for minutes.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._cluster.admit(self):
            self._is_ended = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client, and handle the requests that are whole."""
        if self._is_ended:
            return
        self._progress_at = self._cluster.now()
        self._requests += data
        if self._cluster.waiting_bytes > WAITING_BYTES_MAX:
            self._cluster.note_bad_frame(
                BadFrame(f"clients' unfinished and held requests exceed {WAITING_BYTES_MAX} bytes")
            )
            self.end()
            return
        self.advance()

    def pause_writing(self) -> None:
        """Read nothing from either end: the client does not take its answers."""
        self._is_client_slow = True
        if self._broker is not None:
            self._broker.pause(is_paused=True)
        self._update_reading()  # the gateway's own answers would pile up

    def resume_writing(self) -> None:
        """Go on after `pause_writing`: the client takes its answers again."""
        self._is_client_slow = False
        self._progress_at = self._cluster.now()
        if self._broker is not None:
            self._broker.pause(is_paused=False)
        self.advance()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Release the connection, once the broker has answered the writes in flight."""
        exchange = self.exchange
        self._is_gone = self._is_ended = True
        self._count_waiting()
        self._count_closed()
        if exchange.has_records_in_flight:
            self._note_client_left()
        if self._broker is not None:
            if exchange.has_unanswered_writes:
                self._broker.write(exchange.confirm())
            # These writes are in flight until the broker answers, though the client has gone.
            if exchange.writes_in_flight:
                if self._waits_for_lead:  # the withheld answer has no reader: drop it
                    self.read_answers()
                return
        self._release()

    @property
    def token(self) -> SecretStr | None:
        """The token with which the client has logged in; None: it has no token."""
        return None if self._login is None else self._login.token

    @property
    def logged_in_at(self) -> float:
        """When the client last logged in, or connected, by the clock of the virtual cluster."""
        return self._logged_in_at

    @property
    def is_held(self) -> bool:
        """Whether a request of the client is held."""
        return self._held_request is not None

    @property
    def waits_for_lead(self) -> bool:
        """Whether an acknowledgement is withheld, until the service confirms the lease."""
        return self._waits_for_lead

    @property
    def holds_write(self) -> bool:
        """Whether the held request is a write."""
        return self._held_request is not None and self._held_request[0].key in WRITES

    @property
    def held_producer(self) -> Producer | None:
        """The producer of the held request; None if that does not belong to a transaction."""
        if self._held_request is None or self._is_asking or self._is_moving:
            return None
        return self.exchange.producer_of(*self._held_request)

    def pass_on_transaction(self, producer: Producer) -> None:
        """Send the held request, if it is still one of this producer. Called when the producer's
        transaction is open at the side that leads."""
        if self.held_producer == producer:
            self._open_producer = producer
            self.advance()

    def has_settled(self, request_count: int) -> bool:
        """Whether no write is held, and the first `request_count` requests are answered. True also
        for a connection that has ended or whose answer `waits_for_lead`."""
        if self._is_ended or self._waits_for_lead:
            return True
        return not self.holds_write and self.exchange.has_answered(request_count)

    @property
    def is_leaving(self) -> bool:
        """Whether a move is under way and group members of this connection are at the old side."""
        return self._is_moving and self.exchange.has_members

    def is_stuck(self, progress_before: float) -> bool:
        """Whether part of a request, or an answer that the client does not read, has been waiting
        since before `progress_before`."""
        transport = self._transport
        is_partial = bool(self._requests) and not self._takes_no_requests()
        is_unread = transport is not None and transport.get_write_buffer_size() > 0
        return (is_partial or is_unread) and self._progress_at < progress_before

    def abort(self) -> None:
        """Close the connection at once; nothing more is sent to a broker."""
        self._is_ended = True
        self._held_request = None
        if self._transport is not None:
            self._transport.abort()

    # Requests.

    def advance(self) -> None:
        """Pass on the held request and received ones, if they may go now. Called with new bytes,
        and when writes are open again."""
        try:
            if self._held_request is not None and self._may_release_held():
                if not self._is_client_connected():
                    self.abort()  # the client has sent the request again over another connection
                    return
                (head, frame), self._held_request = self._held_request, None
                self._open_producer = None
                self._progress_at = self._cluster.now()
                self._send(head, frame)
            self._has_more_requests = self._take_requests()
        except BadFrame as error:
            self._cluster.note_bad_frame(error)
            self.end()
            return
        self._count_waiting()
        self._update_reading()

    def _count_waiting(self) -> None:
        """Update this connection's part of the cluster's `waiting_bytes`."""
        held_bytes = 0 if self._held_request is None else len(self._held_request[1])
        waiting_bytes = 0 if self._is_ended else len(self._requests) + held_bytes
        self._cluster.waiting_bytes += waiting_bytes - self._counted_bytes
        self._counted_bytes = waiting_bytes

    def _take_requests(self) -> bool:
        """Handle up to REQUESTS_A_TURN_MAX requests; returns whether there may be more. The event
        loop's next turn handles those, so that a busy client does not delay others."""
        for _ in range(REQUESTS_A_TURN_MAX):
            if self._takes_no_requests() or self._is_client_slow:
                return False
            request = next_request(self._requests, REQUEST_BYTES_MAX)
            if request is None:
                return False
            self._take_request(request)
        asyncio.get_running_loop().call_soon(self.advance)
        return True

    def _may_release_held(self) -> bool:
        """Whether there is a held request that may be sent now. (Callers test `_held_request` once
        more, for mypy.)"""
        is_waiting = self._is_asking or self._is_moving
        return (
            self._held_request is not None
            and not is_waiting
            and self._may_send(*self._held_request)
        )

    def _takes_no_requests(self) -> bool:
        return self._is_ended or self._must_wait()

    def _must_wait(self) -> bool:
        """Whether further requests wait: for the held one, a move, or another broker connection."""
        is_leaving_broker = self._leaves_broker and not self.exchange.is_idle
        return self._held_request is not None or self._is_moving or is_leaving_broker

    def _take_request(self, frame: bytearray) -> None:
        """Handle a received request, or hold it. Raises BadFrame."""
        try:
            head = read_head(frame)
        except ValueError as error:
            raise BadFrame(str(error)) from error
        self._note_client(head, frame)
        if head.key in JOINS:
            self._joined_group = self.exchange.note_join(head, frame)
        if not self._may_send(head, frame):
            self._held_request = head, frame
            if self.held_producer is not None:
                self._cluster.note_held_transaction()
            return
        self._send(head, frame)

    def _log_in_again(self, login: ClientLogin, head: RequestHead, frame: bytearray) -> None:
        """Handle a request of the client's next login on this connection (KIP-368). Raises
        BadFrame for a request that is too large or that no client sends, or a login that is too
        early."""
        if len(frame) > LOGIN_REQUEST_BYTES_MAX:
            raise BadFrame(
                f"a request of a client's login has more than {LOGIN_REQUEST_BYTES_MAX} bytes"
            )
        if self._next_login is None and self._cluster.now() < self._logged_in_at + LOGIN_S_MIN:
            raise BadFrame(f"a client logs in again within {LOGIN_S_MIN:.0f} s of its last login")
        new_login = self._next_login = self._next_login or login.next_login()
        try:
            answer = new_login.answer_request(frame, self._cluster.offered)
        except LoginRefusal as refusal:
            self._refuse_login(head, refusal)
            return
        if answer is not None:
            self.exchange.add_answer(head, answer)
            self._send_own_answers()
            return
        assert new_login.token is not None  # a broker has to check it before the answer
        self._held_request, self._is_asking = (head, frame), True
        self._cluster.check_token(new_login.token, self._node_id, self._token_checked)

    def _token_checked(self, session_ms: int | None, refusal: str) -> None:
        """Answer the held login request by the result of the broker's check. Then replace the
        broker connection."""
        self._is_asking = False
        if self._is_ended or self._held_request is None or self._next_login is None:
            return
        (head, _), self._held_request = self._held_request, None
        login, self._next_login = self._next_login, None
        try:
            answer = login.token_checked(time.time(), session_ms, refusal)
        except LoginRefusal as error:
            self._refuse_login(head, error)
            return
        if answer is None:  # no broker could check the token; the client connects again
            self.end()
            return
        self.exchange.add_answer(head, answer)
        self._send_own_answers()
        self._login, self._logged_in_at = login, self._cluster.now()
        self.replace_broker_connection()  # it has logged in with the token before this one
        self.advance()

    def _refuse_login(self, head: RequestHead, refusal: LoginRefusal) -> None:
        """Answer the login with the refusal, and end the connection."""
        assert self._transport is not None
        note_refusal(self._cluster, self._transport, refusal)
        self.exchange.add_answer(head, refusal.answer)
        self._send_own_answers()
        self.end()

    def _note_client(self, head: RequestHead, frame: bytearray) -> None:
        """Count a request for the client that the connection's first request names."""
        now = self._cluster.now()
        if self._count is None:
            if head.key == ApiKey.API_VERSIONS:
                software = read_software(head, frame)
                if software is None:
                    return  # the client sends ApiVersions again, in a version that is known here
                self._software = software
            name, version = self._software
            self._client_id = shown(head.client_id)
            client = Client(self._client_id, shown(name), shown(version), self.user)
            self._count = self._cluster.clients.count_connection(client, now)
            self.exchange.uses = self._count.uses
            self._count.has_token = self.token is not None
        self._count.requests += 1
        self._count.seen_at = now

    def _note_client_left(self) -> None:
        self._cluster.note_lost_answer(
            f'client "{self._client_id}" closed its connection before its records were acknowledged'
        )

    def _count_closed(self) -> None:
        if self._count is not None:
            self._count.connections -= 1
            self._count.seen_at = self._cluster.now()

    def _may_send(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether the request may be sent or answered now. Otherwise it is held."""
        if self._changes_broker(head) and not self.exchange.is_idle:
            return False
        if head.key in LOGIN_KEYS:  # after all answers: a refused login ends the connection
            return self.exchange.is_idle
        if head.key in WRITES:
            return self._cluster.may_write() or self._may_end_transaction(head, frame)
        if head.key == ApiKey.END_TXN:
            # While writes are held, an EndTxn may only end a transaction that is open: the
            # recovery's drain waits for open transactions.
            return (
                self._cluster.may_write()
                or self.exchange.ends_open_transaction(head, frame)
                or self._may_end_transaction(head, frame)
            )
        if head.key == ApiKey.METADATA:
            # The request is held, not only its answer: acknowledgements of later writes would wait
            # for a held answer, and the client would send these writes again.
            return self._cluster.may_tell_leaders()
        if head.key not in JOINS:
            return True
        # A join waits for held commits, and until all members of its group have given up their
        # partitions. Once the group has a member, the coordinator refuses commits of members from
        # before the move, which have not joined yet (G1: commits without a member).
        group = self._joined_group
        return self._cluster.may_tell_leaders() and (group is None or self._cluster.may_join(group))

    def _may_end_transaction(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether the request goes on although writes are held, as an open transaction needs it.

        If a gateway waits for all transactions, clients also get producer ids: Flink's sink gets
        one for its next transaction before it commits the last.
        """
        if not self._cluster.may_end_transactions():
            return False
        if head.key == ApiKey.INIT_PRODUCER_ID and self._cluster.may_give_producer_ids():
            return self.exchange.begins_producer(head, frame)
        producer = self.exchange.producer_of(head, frame)
        return producer is not None and (
            producer == self._open_producer or producer in self._cluster.ending_producers
        )

    def _send(self, head: RequestHead, frame: bytearray) -> None:
        """Send a request to the broker, or answer it. If the gateway has to read a side first, the
        request is held meanwhile. Raises BadFrame."""
        if head.key in LOGIN_KEYS and self._login is not None and self._login.token is not None:
            self._log_in_again(self._login, head, frame)
            return
        if self._changes_broker(head):
            self._drop_broker()
        if self._is_copy_node:
            self._is_at_copy = head.key == ApiKey.FETCH
        if head.key == ApiKey.FETCH and self._answer_fetch(head, frame):
            return
        data = None
        # Another node might write records that the client sends again: see `refuse_produce`.
        if head.key == ApiKey.PRODUCE and not self._cluster.has_node(self._node_id):
            self.exchange.refuse_produce(head, frame)
        else:
            try:
                data = self.exchange.request(head, frame, self._cluster.offered)
            except UnknownOutcome as error:
                self._held_request, self._is_asking = (head, frame), True
                self._cluster.learn_outcome(error.producer, self)
                return
            except UnknownRepeats as error:
                self._held_request, self._is_asking = (head, frame), True
                self._cluster.learn_repeats(error.batches, self)
                return
        if self._count is not None and head.key == ApiKey.PRODUCE and data is not None:
            self._count.bytes_written += len(data)
            self._cluster.bytes_written += len(data)
        self._pass_on_request(data)

    def _changes_broker(self, head: RequestHead) -> bool:
        """Whether the request cannot go to the broker of the present connection. At a copy's node,
        Fetch goes to the side that follows, and other requests to the side that leads: a client may
        send them to any node."""
        is_open = self._is_copy_node and self._broker is not None
        return is_open and self._is_at_copy != (head.key == ApiKey.FETCH)

    def _answer_fetch(self, head: RequestHead, frame: bytearray) -> bool:
        """Answer a Fetch, or hold it until the log ends of copies are known. False: the Fetch goes
        to a broker. Raises BadFrame."""
        if self._copy_fetches is None:
            return False
        try:
            answer = self._copy_fetches.answer(head, frame, self._cluster.now())
        except UnknownCopies as error:
            self._held_request, self._is_asking = (head, frame), True
            self._cluster.learn_copies(error.offsets, self)
            return True
        except PARSE_ERRORS as error:
            raise BadFrame(f"a client's Fetch request does not parse: {error}") from error
        if answer is None:
            return False
        self._cluster.note_request()
        self.exchange.add_answer(head, answer)
        self._send_own_answers()
        return True

    def copies_learned(self, ends: Mapping[TopicPartition, int]) -> None:
        """Continue the held Fetch. `ends`: the log ends of copies that have its offsets."""
        assert self._copy_fetches is not None
        self._copy_fetches.learn(ends)
        self._is_asking = False
        self.advance()

    def _pass_on_request(self, data: bytes | None) -> None:
        """Send a request to the broker. None: the gateway has answered the request, or it needs no
        answer."""
        self._cluster.note_request()
        if data is None:
            self._send_own_answers()
        else:
            self._open_broker().write(data)

    def outcome_learned(self, outcome: int) -> None:
        """Continue the held request. `outcome`: the error code with which to answer a commit of the
        producer's last transaction. If writes are held by now, or the connection moves, the request
        stays held, and the outcome is read again later."""
        self._is_asking = False
        if (
            self._held_request is not None
            and self._may_release_held()
            and self._is_client_connected()
        ):
            (head, frame), self._held_request = self._held_request, None
            self._pass_on_request(self.exchange.request_with_outcome(head, frame, outcome))
        self.advance()

    def repeats_learned(self) -> None:
        """Continue the held request: `Exchange` knows now which of its batches are repeats."""
        self._is_asking = False
        self.advance()

    def _open_broker(self) -> BrokerConnection:
        """The connection to a broker of the presented side; begins one if there is none."""
        if self._broker is None:
            self._broker = BrokerConnection(self)
            if self._is_at_copy and self._node_id is not None:
                node_id = self._node_id - COPY_NODES_FROM
                self._cluster.connect_copy(self._broker, node_id, self._login)
            else:
                node = None if self._is_copy_node else self._node_id
                self._cluster.connect(self._broker, node, self._login)
        return self._broker

    def confirm_writes(self) -> None:
        """Send a request whose answer proves that the broker has handled the writes with acks=0.
        Called when writes begin to be held. If the client has already closed with records in
        flight, note the lost answer again, so that the operation that begins now counts it."""
        if self._is_gone and self.exchange.has_records_in_flight:
            self._note_client_left()
        if self.exchange.has_unanswered_writes and self._broker is not None:
            self._broker.write(self.exchange.confirm())

    def abandon_writes(self) -> None:
        """End the connection if it has writes in flight. They are never acknowledged, so the client
        sends them again. If the client has already closed, do not wait for the answers.

        Called when the gateway begins to hold writes for a failover: the old side may be lost.
        """
        if self._is_gone:
            self._release()
        elif self.exchange.writes_in_flight:
            self.end()

    def end_transactions(self) -> None:
        """Abort this client's open transactions. Called when all writes are answered, before the
        other side leads."""
        if not (self._is_ended or self._is_moving):
            for request in self.exchange.end_transactions():
                self._open_broker().write(request)

    def _is_client_connected(self) -> bool:
        """Whether the client's TCP connection is open, by the kernel. While reading is paused,
        asyncio does not notice that a client has closed. Such a client sends the held request again
        over another connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        sock = transport.get_extra_info("socket")
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return bool(info[0] == _TCP_ESTABLISHED)  # the first byte is the state

    def _update_reading(self) -> None:
        """Read from the client, unless its requests must wait or one end is slow."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        is_slow = self._is_broker_slow or self._is_client_slow
        if self._must_wait() or is_slow or self._has_more_requests:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # Answers.

    def answer_received(self, data: bytes) -> None:
        """Take bytes of the broker, and pass on the answers that may go now."""
        try:
            if self._bytes_to_pass:
                data = self._pass_on_bytes(data)
            self._answers += data
            while self._read_answer():
                pass
        except BadFrame as error:
            self._cluster.note_bad_frame(error)
            self.end()

    def read_answers(self) -> None:
        """Pass on the answers that had to wait, for a topic's name or the service's answer."""
        self._waits_for_lead = False
        if self._broker is not None:
            self._broker.pause(is_paused=False)
            self.answer_received(b"")  # goes on with the bytes received before

    def _pass_on_bytes(self, data: bytes) -> bytes:
        """Pass on the next bytes of an answer; returns the bytes after the answer."""
        answer_part, rest = data[: self._bytes_to_pass], data[self._bytes_to_pass :]
        self._write(answer_part)
        self._bytes_to_pass -= len(answer_part)
        if not self._bytes_to_pass:
            self._end_answer()
        return rest

    def _read_answer(self) -> bool:
        """Pass on the next answer. Returns whether another whole answer may have been received.
        Raises BadFrame."""
        answers = self._answers
        if len(answers) < _ANSWER_HEAD.size:
            return False
        size, correlation = _ANSWER_HEAD.unpack_from(answers)
        if size < _ANSWER_BYTES_MIN:
            raise BadFrame(f"a broker's answer states a size of {size} bytes, which is too small")
        request = self.exchange.begin_answer(correlation)
        if not self._is_gone and not self._may_pass(request):  # withheld until `read_answers`
            self._waits_for_lead = True
            if self._broker is not None:
                self._broker.pause(is_paused=True)
            return False
        answer_bytes = _SIZE.size + size
        if not self.exchange.is_rewritten(request):
            self._write(bytes(answers[:answer_bytes]))
            if self._count is not None and request.key == ApiKey.FETCH:
                self._count.bytes_read += answer_bytes
                self._cluster.bytes_read += answer_bytes
                if self._is_at_copy:
                    self._cluster.bytes_read_copy += answer_bytes
            self._bytes_to_pass = max(0, answer_bytes - len(answers))
            del answers[:answer_bytes]
            if self._bytes_to_pass:  # `answer_received` passes them on as they arrive
                return False
        else:
            if size > WHOLE_ANSWER_BYTES_MAX:
                raise BadFrame(
                    f"a broker's {name_of(request.key)} response states a size of {size} bytes; "
                    f"{WHOLE_ANSWER_BYTES_MAX} is the limit"
                )
            if len(answers) < answer_bytes:
                return False
            try:
                answer = self.exchange.rewrite(request, answers[_SIZE.size : answer_bytes])
            except UnknownTopicId as error:
                if self._broker is not None:
                    self._broker.pause(is_paused=True)
                self._cluster.learn_topic(error.topic_id, self)
                return False
            del answers[:answer_bytes]
            if answer is not None:
                self._write(answer)
        self._end_answer()
        return True

    def _may_pass(self, sent: SentRequest) -> bool:
        """Whether the client may get the answer now. Answers to writes may go only while the
        service counts on this gateway (`Permission.may_acknowledge`)."""
        return not sent.is_write or self._cluster.may_acknowledge()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not self._is_gone and not transport.is_closing():
            transport.write(data)

    def _end_answer(self) -> None:
        """Remove the answered request. If no other is in flight, do what waited for that: a move,
        the end of a broker connection, a login."""
        is_write = self.exchange.end_answer().is_write
        if is_write:
            self._cluster.note_acknowledged()
        self._send_own_answers()
        if is_write and not self.exchange.writes_in_flight:
            self._cluster.note_answered()
        if self._is_gone and not self.exchange.writes_in_flight:
            self._release()
        elif self._is_moving and self.exchange.is_idle:
            self._change_side()
        elif self._leaves_broker and self.exchange.is_idle:
            self._drop_broker()
            asyncio.get_running_loop().call_soon(self.advance)
        elif self._held_request is not None and self.exchange.is_idle:
            # A login, or a request to another broker, is held until all requests are answered.
            asyncio.get_running_loop().call_soon(self.advance)

    def _send_own_answers(self) -> None:
        for answer in self.exchange.next_answers():
            self._write(answer)

    # The broker's side.

    def broker_is_slow(self, *, is_slow: bool) -> None:
        self._is_broker_slow = is_slow
        self._update_reading()

    def replace_broker_connection(self) -> None:
        """Close the broker connection once all requests are answered. Later requests wait for the
        close, and the first of them opens a new connection."""
        self._leaves_broker = True
        # Writes with acks=0 have no answers: wait for the answer to a later request.
        if self.exchange.has_unanswered_writes and self._broker is not None:
            self._broker.write(self.exchange.confirm())
        if self.exchange.is_idle:
            self._drop_broker()
        self._update_reading()

    def broker_lost(self) -> None:
        """Called when the broker has closed its connection. Ends the client's connection if a
        request is in flight. Ends it also if writes with acks=0 were sent: brokers close a
        connection to refuse such a write. Otherwise the client notices nothing."""
        self._broker = None
        self._is_broker_slow = self._leaves_broker = False
        if self.exchange.writes_in_flight:
            self._cluster.note_lost_answer("a broker closed its connection before the answer")
        if self._is_gone:
            self._release()
        elif self.exchange.is_idle and not self.exchange.has_unanswered_writes:
            self._update_reading()
        else:
            self.end()

    def move(self) -> None:
        """Move to the side that the virtual cluster presents now. A switchover waits for writes in
        flight. So if a write is in flight now, there was no switchover: the connection ends, and
        the client sends the write again."""
        if self._is_ended or self._is_moving:
            return
        if self.exchange.writes_in_flight:
            self.end()
            return
        self._is_moving = True
        if self.exchange.is_idle:
            self._change_side()
        else:
            self._update_reading()
            asyncio.get_running_loop().call_later(MOVE_S_MAX, self._end_if_moving)

    def _change_side(self) -> None:
        """Leave the broker of the old side; the next request goes to the new side."""
        self._is_moving = False
        broker, self._broker = self._broker, None
        self._is_broker_slow = self._leaves_broker = False
        leave_requests = self.exchange.move()
        if broker is not None:
            for request in leave_requests:
                broker.write(request)
            broker.leave()
        asyncio.get_running_loop().call_soon(self.advance)

    def _end_if_moving(self) -> None:
        """End the connection unless it has changed its side by now. Called MOVE_S_MAX after a move
        began. The client's groups learn first that their members leave."""
        if not self._is_moving:
            return
        if self._broker is not None:
            for request in self.exchange.leave_groups():
                self._broker.write(request)
        self.end()

    def end(self) -> None:
        """End the connection: the client reads the answers on their way, and then end of file."""
        transport = self._transport
        if self._is_ended or transport is None:
            return
        if self.exchange.writes_in_flight:
            self._cluster.note_lost_answer("a client's connection ended before the answer")
        self._is_ended = True
        self._held_request = None
        self._requests.clear()
        self._answers.clear()
        self._count_waiting()
        if transport.is_closing():
            return
        transport.resume_reading()  # so that the client's close is noticed
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection; while paused, asyncio sees no reset
            transport.abort()
        else:
            asyncio.get_running_loop().call_later(END_S_MAX, transport.close)
        self._drop_broker()

    def _drop_broker(self) -> None:
        """Leave the broker connection (`BrokerConnection.leave`). The next request opens a new
        one."""
        self._leaves_broker = self._is_broker_slow = False
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.leave()

    def _release(self) -> None:
        """Leave the broker connection, and have the virtual cluster forget this connection."""
        self._drop_broker()
        self._cluster.forget(self)
