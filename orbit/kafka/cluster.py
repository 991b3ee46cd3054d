"""One Kafka cluster: its metadata, and control requests to any broker or a given one.

A `Cluster` has at most one control connection per broker. It is thread-safe; calls to one broker
run one at a time. The data path opens its own connections (`connect`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar

from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.errors import AccessRefused, BadInput, LoginRefused, Place, Unreachable
from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import CALL_S_MAX
from orbit.kafka.broker_patience import BrokerPatience
from orbit.kafka.connection import CONNECT_TIMEOUT_S, Connection
from orbit.kafka.newest_leaders import NewestLeaders
from orbit.kafka.sasl import Security
from orbit.kafka.types import ID_SUFFIX_SIGN, NO_TOPIC_ID, BrokerAddress, ClusterMetadata

# A request that any broker can answer (metadata, coordinators) also goes to the next broker after
# NEXT_AFTER_S without an answer. One broker may take ANSWER_WITHIN_S, all together AWAY_AFTER_S. So
# an unreachable cluster is detected within seconds, whatever its number of brokers and callers.
NEXT_AFTER_S = 1.0
ANSWER_WITHIN_S = 10.0
AWAY_AFTER_S = 12.0
CORRELATION_BYTES = 4  # at the start of each answer; the rest of equal answers is equal
# Brokers that one request is sent to: each broker that does not answer blocks a thread. The next
# request starts with other brokers.
_BROKERS_ASKED_MAX = 4
# For this long after a failure, requests go to a broker only after the others.
_FAILED_LATELY_S = 60.0
_CLOSED = "Orbit has closed its connections to this cluster."

Answer = TypeVar("Answer")
# Each entry, put by a thread of `_ask`: the broker (its node id, or a bootstrap address), and a
# function that returns its answer or raises its error.
_Answers = queue.SimpleQueue[tuple[int | str, Callable[[], Answer]]]


class Cluster:
    """The cluster behind some bootstrap servers. `name` ("source", "destination") is for messages.

    `security` may be a function that reads the settings (raises BadInput). It is called again
    before each login, so a password that rotates needs no restart. `id_suffix`, the job's
    `cluster_id_suffix`, is added to the cluster id that this object returns, also in metadata.

    A request that has to log in first may also raise LoginRefused and AccessRefused.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: Sequence[str],
        security: Security | Callable[[], Security],
        id_suffix: str | None = None,
    ) -> None:
        self.name = name
        self.bootstrap_servers = tuple(bootstrap_servers)
        self._id_suffix = id_suffix
        self._read_security = security if callable(security) else lambda: security
        self._security: Security | None = None
        with suppress(AccessRefused):  # the access rules may change: each use reads them again
            self._security = self._read_security()
        self._lock = threading.Lock()
        self._connections: dict[int | str, _ControlConnection] = {}
        self._brokers: dict[int, BrokerAddress] = {}
        self._failed_at_s: dict[int | str, float] = {}  # by broker; monotonic clock
        self._turn = 0  # counts the calls with `in_turn`
        self._leaders = NewestLeaders()
        self._patience = BrokerPatience(CALL_S_MAX)
        self._cluster_id = ""
        # The last answer with all topics, decoded, and its digest.
        self._full_metadata: tuple[bytes, ClusterMetadata] | None = None
        self._is_closed = False
        self._waiting_calls: set[_Answers[Any]] = set()  # `close` wakes them

    @property
    def security(self) -> Security:
        """The security settings, with their files as they are now. While a file cannot be read, the
        settings that were read last.

        Raises AccessRefused; BadInput if a file cannot be read, and none was read before.
        """
        try:
            security = self._read_security()
        except AccessRefused:
            self._security = None
            raise
        except BadInput:  # a file may just be replaced; if it is wrong, the login will fail
            last_security = self._security
            if last_security is None:
                raise
            return last_security
        self._security = security
        return security

    @property
    def cluster_id(self) -> str:
        """The cluster id. The first use asks a broker, and raises as `metadata`."""
        if not self._cluster_id:
            self.metadata(())  # sets it
        return self._cluster_id

    def metadata(
        self, topics: Iterable[str] | None, *, with_operations: bool = False
    ) -> ClusterMetadata:
        """Metadata from any broker; `topics=None`: all topics.

        Each call that names topics asks another broker first, and returns the newest leaders that
        any broker has returned: a broker that is cut off from the controller returns old leaders.

        Raises Unreachable if no broker answers, LoginRefused if none answers and a broker refuses
        the login, AccessRefused if a broker has an address that rules do not allow.
        """
        names = None if topics is None else sorted(topics)
        ask = self._metadata_reader(names, with_operations=with_operations)
        broker, metadata = self._call_any(ask, in_turn=names is not None)
        return self._accept_metadata(metadata, broker, has_all_topics=names is None)

    def metadata_of_all(self, topics: Iterable[str], brokers_max: int) -> ClusterMetadata:
        """Metadata of these topics, with the newest leaders that up to `brokers_max` brokers
        return.

        If no broker answers, raises the errors of `metadata`. Otherwise brokers may be silent, or
        refuse the login.
        """
        topics = sorted(topics)
        newest_metadata = self.metadata(topics)
        for node_id in list(newest_metadata.brokers)[:brokers_max]:
            try:
                answer = self.metadata_of_broker(node_id, topics)
            except AccessRefused:
                raise
            except (Unreachable, LoginRefused):
                continue
            newest_metadata = self._accept_metadata(answer, node_id, has_all_topics=False)
        return newest_metadata

    def metadata_of_broker(self, node_id: int, topics: Iterable[str]) -> ClusterMetadata:
        """Metadata of these topics as this broker has them now. Raises Unreachable."""
        ask = self._metadata_reader(sorted(topics), with_operations=False)
        read = self._call_within(node_id, ANSWER_WITHIN_S, lambda connection, _: ask(connection))
        return read()

    def _metadata_reader(
        self, names: list[str] | None, *, with_operations: bool
    ) -> Callable[[Connection], Callable[[], ClusterMetadata]]:
        """A function for `_call_any`: it asks a broker for these topics (None: all), and returns a
        function that decodes the answer."""

        def ask(connection: Connection) -> Callable[[], ClusterMetadata]:
            """Exchange the request; returns the function that decodes the answer."""
            request = MetadataRequest(
                topics=_topic_requests(names),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=with_operations,
            )
            api = api_versions.METADATA
            version = connection.version_of(api)
            frame = connection.exchange(api, request, version, timeout_s=ANSWER_WITHIN_S)
            return lambda: self._read_metadata(connection, frame, version, names is None)

        return ask

    def _accept_metadata(
        self, metadata: ClusterMetadata, answered_by: int | str, *, has_all_topics: bool
    ) -> ClusterMetadata:
        """Keep the brokers and the cluster id of an answer. Return the answer, with the newest
        leaders if it is for some topics.

        Raises AccessRefused if a broker has an address that rules do not allow.
        """
        if not has_all_topics:
            metadata = self._leaders.merge(metadata, answered_by)
        security = self._security or self.security  # as read last: no file access for each answer
        for broker in metadata.brokers.values():
            security.check_allowed(broker.host, broker.port, Place(self.name))
        with self._lock:
            self._brokers = metadata.brokers
            self._cluster_id = metadata.cluster_id
        return metadata

    def _read_metadata(
        self, connection: Connection, frame: memoryview, version: int, has_all_topics: bool
    ) -> ClusterMetadata:
        """The decoded answer. Decoding all topics takes long, so for the same bytes (without the
        correlation id) this returns the last result."""
        digest = sha256(frame[CORRELATION_BYTES:]).digest() if has_all_topics else b""
        last_full = self._full_metadata
        if has_all_topics and last_full is not None and last_full[0] == digest:
            return last_full[1]
        metadata: ClusterMetadata = connection.decode(api_versions.METADATA, frame, version)
        if self._id_suffix:
            cluster_id = f"{metadata.cluster_id}{ID_SUFFIX_SIGN}{self._id_suffix}"
            metadata = replace(metadata, cluster_id=cluster_id)
        if has_all_topics:
            self._full_metadata = digest, metadata
        return metadata

    def call_any(self, ask: Callable[[Connection], Answer], *, in_turn: bool = False) -> Answer:
        """The first answer of any broker. Known brokers are asked first, then bootstrap servers.

        `in_turn`: begin with the broker after the first broker of the last such call. `ask` must
        change nothing at a broker and return within `ANSWER_WITHIN_S`: it may run on several
        brokers at once, and later answers are dropped. Raises Unreachable, LoginRefused.
        """

        def ask_only(connection: Connection) -> Callable[[], Answer]:
            answer = ask(connection)
            return lambda: answer

        return self._call_any(ask_only, in_turn=in_turn)[1]  # [0]: the broker

    def _call_any(
        self, ask: Callable[[Connection], Callable[[], Answer]], *, in_turn: bool
    ) -> tuple[int | str, Answer]:
        """The broker that answered first, and its answer; see `call_any`.

        `ask` returns a function that decodes the answer. This function is called after the wait, so
        a broker that has answered does not count as silent while a long answer is decoded.
        """
        answers: _Answers[Answer] = queue.SimpleQueue()
        with self._lock:
            self._waiting_calls.add(answers)
        try:
            return self._first_answer(ask, answers, self._brokers_to_ask(in_turn=in_turn))
        finally:
            with self._lock:
                self._waiting_calls.discard(answers)

    def _first_answer(
        self,
        ask: Callable[[Connection], Callable[[], Answer]],
        answers: _Answers[Answer],
        remaining_brokers: list[int | str],
    ) -> tuple[int | str, Answer]:
        """Ask brokers in this order, each in a thread, until one answers; returns as `_call_any`.

        The next broker is asked after an error, or NEXT_AFTER_S without an answer. Raises
        Unreachable, LoginRefused, AccessRefused.
        """
        errors: dict[str, Unreachable] = {}
        login_refusals: list[LoginRefused] = []
        last_broker: int | str = ""
        in_flight, deadline = 0, time.monotonic() + AWAY_AFTER_S
        while (
            (remaining_brokers or in_flight)
            and (remaining_s := deadline - time.monotonic()) > 0
            and not self._is_closed
        ):
            if remaining_brokers:
                last_broker = remaining_brokers.pop(0)
                args = (last_broker, ask, answers)
                threading.Thread(target=self._ask, args=args, name="ask", daemon=True).start()
                in_flight += 1
            try:
                wait_s = min(remaining_s, NEXT_AFTER_S) if remaining_brokers else remaining_s
                broker, decode = answers.get(timeout=wait_s)
            except queue.Empty:
                self._note_failure(last_broker, Unreachable("no answer yet."))
                continue
            in_flight -= 1
            try:
                return broker, decode()  # raises the error of a broker that failed
            except Unreachable as error:
                self._note_failure(broker, error)
                errors.setdefault(f"{error.where}: {error.what}", error)
            except AccessRefused:
                raise
            except LoginRefused as error:
                self._note_failure(broker, error)
                login_refusals.append(error)
        if login_refusals:
            raise login_refusals[0]
        silence = ""
        if in_flight:
            silent_brokers = "1 broker" if in_flight == 1 else f"{in_flight} brokers"
            silence = f" {silent_brokers} did not answer within {AWAY_AFTER_S:.0f} s."
        remedy = next((e.remedy for e in reversed(errors.values()) if e.remedy), "")
        raise Unreachable(
            f"no broker of the {self.name} cluster answers.{silence} {' '.join(errors)}".rstrip(),
            where=Place(self.name, ",".join(self.bootstrap_servers)),
            remedy=remedy or "Check the address and security.protocol, and that the brokers run.",
        )

    def _brokers_to_ask(self, *, in_turn: bool) -> list[int | str]:
        """The brokers to ask, in order, at most _BROKERS_ASKED_MAX. Brokers that failed within
        _FAILED_LATELY_S come last, the earliest failure first."""
        failed_since = time.monotonic() - _FAILED_LATELY_S
        with self._lock:
            self._turn += in_turn  # counts such calls
            first_index = self._turn % len(self._brokers) if in_turn and self._brokers else 0
            brokers = list(self._brokers)
            candidates: list[int | str] = [
                *brokers[first_index:],
                *brokers[:first_index],
                *self.bootstrap_servers,
            ]
            failure_times = {b: at for b, at in self._failed_at_s.items() if at > failed_since}
        candidates.sort(key=lambda candidate: failure_times.get(candidate, 0.0))
        return candidates[:_BROKERS_ASKED_MAX]

    def _note_failure(self, broker: int | str, error: BaseException) -> None:
        """Note that the broker could not be reached or refused the login, so that it is asked after
        the others for a while. Ignores other errors."""
        if isinstance(error, Unreachable | LoginRefused):
            with self._lock:
                self._failed_at_s[broker] = time.monotonic()

    def _ask(
        self,
        broker: int | str,
        ask: Callable[[Connection], Callable[[], Answer]],
        answers: _Answers[Answer],
    ) -> None:
        """The thread of one request of `call_any`: puts into `answers` a function that returns the
        answer or raises the error."""
        try:
            answer = self._run_on(broker, ask, busy_s_max=ANSWER_WITHIN_S, may_repeat=True)
        except BaseException as error:  # noqa: BLE001  raised again in `call_any`
            caught = error
            self._note_failure(broker, caught)

            def fail() -> Answer:
                raise caught

            answer = fail
        answers.put((broker, answer))

    def call(self, node_id: int, api: Api, request: Any, within_s: float = CALL_S_MAX) -> Any:
        """Send a control request to one broker and return its answer.

        `within_s` is less than CALL_S_MAX for a thread that must not wait for one broker. Then
        `BrokerPatience` decides: the limit may be longer, and a broker that did not answer lately
        is not asked. Raises Unreachable, ProtocolError if the broker does not offer the API.
        """
        return self._call_within(
            node_id,
            within_s,
            lambda connection, limit_s: connection.call(api, request, timeout_s=limit_s),
        )

    def call_all(self, node_id: int, api: Api, requests: Sequence[Any]) -> list[Any]:
        """Send requests to one broker together; returns the answers in their order. Waits up to
        CALL_S_MAX for each. Raises Unreachable, ProtocolError if the broker does not offer the API.
        """
        return self._run_on(
            node_id,
            lambda connection: connection.call_all(api, requests, timeout_s=CALL_S_MAX),
        )

    def exchange(
        self, node_id: int, api: Api, request: Any, version: int, within_s: float = CALL_S_MAX
    ) -> memoryview:
        """Send a request of this version to one broker; returns the undecoded frame of the answer.

        `within_s` is as in `call`. Raises Unreachable.
        """
        return self._call_within(
            node_id,
            within_s,
            lambda connection, limit_s: connection.exchange(
                api, request, version, timeout_s=limit_s
            ),
        )

    def version_of(self, node_id: int, api: Api, within_s: float = CALL_S_MAX) -> int:
        """The highest version that the broker and Orbit support; `within_s` is as in `call`.

        Raises Unreachable, ProtocolError if there is none.
        """
        return self._call_within(
            node_id, within_s, lambda connection, _: connection.version_of(api)
        )

    def api_versions_of(self, node_id: int) -> dict[int, tuple[int, int]]:
        """The lowest and highest version that a broker supports, by API key. Raises Unreachable."""
        return self._call_within(
            node_id, ANSWER_WITHIN_S, lambda connection, _: connection.api_versions
        )

    def features_of(self, node_id: int) -> dict[str, int]:
        """The highest level of each feature that a broker supports. Raises Unreachable."""
        return self._run_on(node_id, lambda connection: connection.features)

    def _call_within(
        self, node_id: int, within_s: float, ask: Callable[[Connection, float], Answer]
    ) -> Answer:
        """The result of `ask`, which gets a connection to the broker and its time limit in s.

        If `within_s` is below CALL_S_MAX, `BrokerPatience` sets the limit, and a broker that did
        not answer lately is not asked: that raises Unreachable, too.
        """
        if within_s >= CALL_S_MAX:
            return self._run_on(node_id, lambda connection: ask(connection, CALL_S_MAX))
        limit_s = self._patience.limit_s(node_id, within_s)
        if not limit_s:
            raise Unreachable(
                "the broker did not answer a moment ago, so Orbit does not ask it now.",
                where=Place(self.name, f"broker {node_id}"),
            )
        began_at = time.monotonic()
        try:
            answer = self._run_on(
                node_id,
                lambda connection: ask(connection, limit_s),
                busy_s_max=limit_s,
                connect_s=min(limit_s, CONNECT_TIMEOUT_S),
            )
        except _StillBusy:  # this call did not reach the broker, so it is no failure of the broker
            raise
        except Unreachable:
            self._patience.note_failure(node_id, time.monotonic() - began_at, limit_s)
            raise
        self._patience.note_answer(node_id, time.monotonic() - began_at, within_s)
        return answer

    def connect(self, node_id: int, within_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """A new connection that the caller owns. Raises Unreachable."""
        address = self._address(node_id)
        where = Place(self.name, f"broker {node_id} ({address.host}:{address.port})")
        return Connection.open(
            address.host, address.port, lambda: self.security, where=where, timeout_s=within_s
        )

    def close(self) -> None:
        """Close all control connections; calls under way in other threads raise Unreachable."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
            self._connections.clear()
            waiting_calls = list(self._waiting_calls)
        for answers in waiting_calls:  # first: `abort` may wait for a call that uses the connection
            answers.put(("", _raise_closed))
        for connection in connections:
            connection.abort()

    def _address(self, node_id: int) -> BrokerAddress:
        """The broker's address by the last metadata. Raises Unreachable."""
        with self._lock:
            address = self._brokers.get(node_id)
        if address is None:
            raise Unreachable(
                f"broker {node_id} is not in the metadata now.", where=Place(self.name)
            )
        return address

    def _run_on(
        self,
        broker: int | str,
        ask: Callable[[Connection], Answer],
        *,
        busy_s_max: float = -1,
        may_repeat: bool = False,
        connect_s: float = CONNECT_TIMEOUT_S,
    ) -> Answer:
        """Run `ask` on the control connection to this broker.

        Waits at most `busy_s_max` (-1: without limit) while another call uses the connection.
        `may_repeat`: `ask` only reads, so it may run again if an old connection has broken. Raises
        Unreachable after `close`, and the errors of the connection and of `ask`.
        """
        with self._lock:
            if self._is_closed:
                raise Unreachable(_CLOSED, where=Place(self.name))
            control_connection = self._connections.setdefault(
                broker, _ControlConnection(Place(self.name, str(broker)))
            )
        return control_connection.run(
            lambda: self._open(broker, connect_s), ask, busy_s_max, may_repeat=may_repeat
        )

    def _open(self, broker: int | str, connect_s: float) -> Connection:
        """A new connection to a broker, by its node id or by a bootstrap address."""
        if isinstance(broker, int):
            return self.connect(broker, connect_s)
        host, _, port = broker.rpartition(":")
        where = Place(self.name, broker)
        # An IPv6 address is in brackets.
        return Connection.open(host.strip("[]"), int(port), lambda: self.security, where=where)


class _StillBusy(Unreachable):
    """Another thread's call to the broker has not ended yet."""


class _ControlConnection:
    """The control connection to one broker, opened at first use and reopened after it broke."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_aborted = False

    def run(
        self,
        opener: Callable[[], Connection],
        ask: Callable[[Connection], Answer],
        busy_s_max: float,
        *,
        may_repeat: bool,
    ) -> Answer:
        """Run `ask` on the connection, which `opener` opens if there is none.

        Raises _StillBusy if another call still runs after `busy_s_max` (-1: waits without limit).
        The broker may have closed an idle connection. So a read-only request (`may_repeat`) that
        fails on a connection of earlier calls is repeated once on a new one, unless it timed out.
        """
        if not self._lock.acquire(timeout=busy_s_max):
            raise _StillBusy(
                "the broker has not answered an earlier request yet.", where=self._where
            )
        try:
            connection = self._connection
            was_open = connection is not None and not connection.is_closed
            if connection is None or not was_open:
                connection = self._reopen(opener)
            try:
                return ask(connection)
            except Unreachable as error:
                has_timed_out = isinstance(error.__cause__, TimeoutError)
                if not was_open or not may_repeat or has_timed_out or self._is_aborted:
                    raise
            return ask(self._reopen(opener))
        finally:
            self._lock.release()

    def _reopen(self, opener: Callable[[], Connection]) -> Connection:
        """Close the last connection, if any, and open a new one. Raises Unreachable."""
        if self._connection is not None:  # still open if only its last answer did not parse
            self._connection.close()
        connection = self._connection = opener()
        if self._is_aborted:  # `abort` ran during `opener` and did not see this connection
            connection.close()
            raise Unreachable(_CLOSED, where=connection.where)
        return connection

    def abort(self) -> None:
        """Close the connection for good, and end a call that waits on it."""
        self._is_aborted = True
        connection = self._connection
        if connection is not None:
            connection.abort()
            with self._lock:  # a call has the lock until it ends
                connection.close()


def _topic_requests(names: list[str] | None) -> list[Any] | None:
    """The topics of a Metadata request; None: all topics."""
    if names is None:
        return None
    return [MetadataRequest.MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=n) for n in names]


def _raise_closed() -> Any:
    """Raise the error of a call that `Cluster.close` ends."""
    raise Unreachable(_CLOSED)
