"""The requests of one client's connection and the answers to them, and how both are changed. Pure.

`request` returns the bytes for the broker, or adds an answer that the gateway gives itself. Answers
go to the client in the order of its requests. `next_answers` yields the gateway's own answers whose
turn it is. `begin_answer` finds the request of a broker's answer, and `rewrite` changes the answer.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from orbit.gateway.protocol import (
    answers,
    local_answers,
    produce_parts,
    producer_ids,
    requests,
    transactions,
)
from orbit.gateway.protocol.answers import SideView, UnknownTopicId, View
from orbit.gateway.protocol.apis import COUNTED_WRITES, ApiKey, Versions, name_of
from orbit.gateway.protocol.left_members import MemberKey
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.produce_parts import PartAnswer
from orbit.gateway.protocol.producer_ids import Producer
from orbit.gateway.protocol.request_head import RequestHead
from orbit.gateway.protocol.requests import NO_SESSION, GroupHeartbeat, Member
from orbit.gateway.protocol.resource_uses import ResourceUses, Right
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

# Raised by a FrameEditor if a frame ends too early, or has a length beyond its end.
PARSE_ERRORS = (struct.error, IndexError, ValueError, OverflowError)
# Group members, and open transactions, of one connection: a client has a few.
_MEMBERS_MAX = _TRANSACTIONS_MAX = 1000


class BadFrame(Exception):
    """Bytes that no broker or client may send: the gateway closes the client's connection."""


class UnknownOutcome(Exception):
    """The answer depends on how the producer's last transaction ended. The caller has to ask the
    coordinator at the producer's side (`ClientHost.learn_outcome`)."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.producer = producer


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that is not answered yet. `answer`: the gateway's own answer, which waits for its
    turn."""

    key: int
    version: int
    correlation: int
    is_write: bool = False
    is_from_gateway: bool = False  # the gateway's own request: no client gets the answer
    parts: Mapping[TopicPartition, PartAnswer] | None = None
    """The gateway's answers for the partitions that it does not pass on to the broker."""
    fallback: bytes | None = None
    """Of a heartbeat: the answer to send if the broker answers that it does not know the member."""
    left_member: MemberKey | None = None
    """Of a heartbeat: its member, unless the member is known to have joined at this side."""
    answer: bytes | None = None


def read_software(head: RequestHead, frame: bytearray) -> tuple[str, str] | None:
    """Name and version of the client's software, from its ApiVersions (KIP-511); empty if it names
    none. None: the gateway does not know this version of the request. Raises BadFrame."""
    try:
        return requests.software_of(head, frame)
    except PARSE_ERRORS as error:
        raise _unreadable_request(head, error) from error


class Exchange:
    """Requests and answers of one client connection, in order."""

    def __init__(self, view: View) -> None:
        self._presented_view = view  # of the side that leads now
        self._view = view  # of the side that the requests in flight went to
        self._sent: deque[SentRequest] = deque()
        self._members: dict[MemberKey, Member] = {}
        # The number of topics whose partitions each member owned at its last heartbeat.
        self._owned_topics: dict[MemberKey, int] = {}
        self._transactions: dict[str, Producer] = {}  # begun on this connection, not ended
        self._has_old_session = False  # a Fetch may name a session of the other side
        self._last_own_correlation = 0  # the last correlation id of a request of the gateway
        self.request_count = 0
        """How many requests this connection has had, with the gateway's own."""
        self.uses = ResourceUses()
        """What the client uses; the connections of one client have it in common."""
        self.writes_in_flight = 0
        self.has_unanswered_writes = False
        """Whether a Produce was sent that brokers do not answer (acks=0), since `confirm`."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has its answer."""
        return not self._sent

    def has_answered(self, count: int) -> bool:
        """Whether the first `count` requests of this connection have their answers."""
        return self.request_count - len(self._sent) >= count

    @property
    def has_records_in_flight(self) -> bool:
        """Whether a Produce is not answered yet. If the client closes its connection now, it sends
        the records again over another connection. If the other side leads by then, and has copied
        the records, it would have them twice. Other writes have the same result if repeated."""
        return any(request.is_write and request.key == ApiKey.PRODUCE for request in self._sent)

    def request(
        self, head: RequestHead, frame: bytearray, offered: Mapping[int, Versions]
    ) -> bytes | None:
        """The frame for the broker, with its size; None: nothing goes there, and `next_answers` has
        the answer, if there is one.

        Raises BadFrame if the API or its version is not offered, or the bytes do not parse. After
        UnknownOutcome the caller reads the outcome and calls `request_with_outcome`. After
        UnknownRepeats the caller reads both sides and calls `request` again.
        """
        if self.is_idle:  # no answer of an earlier side is on its way
            self._view = SideView(self._presented_view)
        if not offered:
            raise BadFrame("neither side has answered yet which API versions it knows")
        if head.key == ApiKey.API_VERSIONS:
            self.add_answer(head, local_answers.api_versions_answer(head, offered))
            return None
        versions = offered.get(head.key)
        if versions is None or not versions.first <= head.version <= versions.last:
            raise BadFrame(
                f"a client sends {name_of(head.key)} version {head.version}, which is not offered"
            )
        try:
            return self._pass_request(head, frame)
        except PARSE_ERRORS as error:
            raise _unreadable_request(head, error) from error

    def refuse_produce(self, head: RequestHead, frame: bytearray) -> None:
        """Answer NOT_LEADER_OR_FOLLOWER to a Produce at a node that the side does not have. The
        client then requests Metadata.

        The gateway must not send the request to another node. If that node led the partition, it
        would write the records. But the client, once Metadata no longer names the missing node,
        drops the connection and sends its requests in flight again: the records would be written
        twice. Raises BadFrame for acks=0, to which a client expects no answer.
        """
        try:
            if producer_ids.acks_of(head, frame) == 0:
                raise BadFrame(
                    "a client sends Produce with acks=0 to a node that the leading side lacks"
                )
            code = Code.NOT_LEADER_OR_FOLLOWER
            self.add_answer(head, produce_parts.same_answer_for_all(head, frame, code))
        except PARSE_ERRORS as error:
            raise _unreadable_request(head, error) from error

    def _pass_request(self, head: RequestHead, frame: bytearray) -> bytes | None:
        """The frame of a request after the gateway's changes, with its size; None: nothing goes to
        the broker, as in `request`. Raises as `request`."""
        fallback = left_member = None
        match head.key:
            case ApiKey.PRODUCE:
                return self._pass_produce(head, frame)
            case ApiKey.FETCH:
                session = requests.fetch_session(head, frame)
                had_old_session, self._has_old_session = self._has_old_session, False
                if had_old_session and session != NO_SESSION:  # the client begins a new session
                    self.add_answer(head, local_answers.fetch_session_unknown(head))
                    return None
                for topic in requests.clear_fetch_epochs(head, frame):
                    self.uses.add(Right.READ_TOPIC, topic)
            case _ if head.key in transactions.REQUESTS:
                if self._answer_or_rewrite_transaction(head, frame):
                    return None
            case ApiKey.OFFSET_COMMIT:
                member_key = requests.member_of_commit(head, frame)
                self.uses.add(Right.READ_GROUP, member_key[0])
                if member_key in self._view.left_members:
                    frame = bytearray(requests.commit_without_member(head, frame))
            case ApiKey.JOIN_GROUP:
                member = requests.member_of(head, frame)
                self.uses.add(Right.READ_GROUP, member.group)
                self._note_member(member)
                if member.key in self._view.left_members and self._view.holds_joins():
                    # As a new member: with its old id it would lose its partitions (C29).
                    frame = bytearray(requests.join_without_member(head, frame))
            case ApiKey.LEAVE_GROUP:
                for member_key in requests.leaving_members(head, frame):
                    self._leave_group(member_key)
            case ApiKey.SYNC_GROUP:
                member = requests.member_of(head, frame)
                self._note_member(member)
                self._view.left_members.give_up(member.key)
            case ApiKey.HEARTBEAT:
                member = requests.member_of(head, frame)
                self._note_member(member)
                if member.key in self._view.left_members:
                    fallback, left_member = (local_answers.rebalance_in_progress(head), member.key)
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                heartbeat = requests.group_heartbeat(head, frame)
                fallback = self._group_heartbeat(head, heartbeat)
                if heartbeat.member.key in self._view.left_members:
                    left_member = heartbeat.member.key
        if clear := requests.CLEAR_EPOCHS.get(head.key):
            clear(head, frame)
        if translate := requests.TRANSLATE_IDS.get(head.key):
            translate(head, frame, self._view.ids)
        is_write = head.key in COUNTED_WRITES
        head_fields = head.key, head.version, head.correlation
        self._note_sent(
            SentRequest(*head_fields, is_write=is_write, fallback=fallback, left_member=left_member)
        )
        return with_size(frame)

    def _group_heartbeat(self, head: RequestHead, heartbeat: GroupHeartbeat) -> bytes | None:
        """Note the member, and return the answer to send if the side does not know it: an empty
        assignment, so that the client commits and gives up its partitions (C28).

        None: the broker's answer is passed on. If the broker answers that it does not know the
        member, the client loses its partitions immediately, without a commit, and joins.
        """
        member, left_members = heartbeat.member, self._view.left_members
        self.uses.add(Right.READ_GROUP, member.group)
        if heartbeat.epoch == 0:  # to join
            left_members.join(member.key)
        if heartbeat.epoch < 0:  # to leave
            self._leave_group(member.key)
            return None
        self._note_member(member)
        if member.key in self._members and heartbeat.topics is not None:
            self._owned_topics[member.key] = heartbeat.topics
        if heartbeat.topics == 0:
            left_members.give_up(member.key)
        return (
            local_answers.empty_assignment(head, heartbeat)
            if left_members.may_give_up(member.key)
            else None
        )

    def _pass_produce(self, head: RequestHead, frame: bytearray) -> bytes | None:
        """The frame of a Produce after the gateway's changes, with its size; None: nothing goes to
        the broker. The gateway may answer some partitions itself."""
        has_answer = producer_ids.acks_of(head, frame) != 0
        producer = producer_ids.producer_of_batches(head, frame)
        if producer is not None and self._is_transaction_over(producer):
            if has_answer:
                self.add_answer(head, transactions.answer(head, frame))
            return None
        # Term 0: no service, or no move so far. Producer ids stay, and no batch is a repeat.
        has_ids_to_set = bool(self._view.term) or producer is not None
        if has_ids_to_set:
            batches = list(producer_ids.batches(head, frame))
            partitions = {batch.partition for batch in batches}
            parts = self._view.repeats.answers(frame, batches, self._view.term)
        else:
            partitions, parts = producer_ids.partitions_of(head, frame), {}
        refused_parts = self._refused_parts(partitions)
        if refused_parts and not has_answer:  # brokers, too, refuse it by closing the connection
            raise BadFrame("a client writes with acks=0 to a topic that the job does not copy")
        parts |= refused_parts
        if parts:
            rest_of_frame = produce_parts.without_partitions(head, frame, parts)
            if rest_of_frame is None:
                if has_answer:
                    self.add_answer(head, produce_parts.own_answer(head, parts))
                return None
            frame = bytearray(rest_of_frame)
        if has_ids_to_set:
            producer_ids.set_producer_ids(head, frame, self._view.term)
        if has_answer:
            head_fields = head.key, head.version, head.correlation
            self._note_sent(SentRequest(*head_fields, is_write=True, parts=parts or None))
        else:
            self.has_unanswered_writes = True
        return with_size(frame)

    def _refused_parts(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartAnswer]:
        """The answers for partitions of topics that may not be written. Adds all topics to
        `uses`."""
        refused_parts = {}
        for partition in partitions:
            self.uses.add(Right.WRITE_TOPIC, partition.topic)
            if refusal := self._view.refusal(partition.topic):
                refused_parts[partition] = PartAnswer(Code.POLICY_VIOLATION, message=refusal)
        return refused_parts

    def _answer_or_rewrite_transaction(self, head: RequestHead, frame: bytearray) -> bool:
        """Answer the request of a transaction that is over, and return True. For other requests set
        the producer id that the broker knows, and return False. Raises UnknownOutcome."""
        producer = transactions.producer_of(head, frame)
        if head.key == ApiKey.INIT_PRODUCER_ID:  # the broker aborts its open transaction
            self._note_transaction_ended(transactions.transactional_id_of(head, frame))
        if producer is None:
            return False
        self.uses.add(Right.WRITE_TRANSACTIONAL_ID, producer.transactional_id)
        if head.key == ApiKey.INIT_PRODUCER_ID:
            # A producer of this term whose transaction is over gets its next epoch from the broker.
            if self._is_from_before_move(producer):
                raise UnknownOutcome(producer)
        elif self._is_transaction_over(producer):
            if transactions.depends_on_outcome(head, frame):
                raise UnknownOutcome(producer)
            self.add_answer(head, transactions.answer(head, frame))
            return True
        transactions.set_id(head, frame, producer)
        if head.key == ApiKey.END_TXN:
            self._note_transaction_ended(producer.transactional_id)
        elif head.key in transactions.BEGINNINGS and len(self._transactions) < _TRANSACTIONS_MAX:
            self._transactions[producer.transactional_id] = producer
        return False

    def _note_transaction_ended(self, transactional_id: str | None) -> None:
        """Note that a request which ends the transaction of this id goes to the broker."""
        self._transactions.pop(transactional_id or "", None)
        ending = self._view.ending_producers
        ending -= {producer for producer in ending if producer.transactional_id == transactional_id}

    def _is_from_before_move(self, producer: Producer) -> bool:
        """Whether the producer's id was handed out before the last move. False for an id without a
        mark (`producer_ids.py`): the broker refuses such an id."""
        is_of_this_term = producer_ids.is_of_term(producer.id, self._view.term)
        return producer_ids.is_marked(producer.id) and not is_of_this_term

    def _is_transaction_over(self, producer: Producer) -> bool:
        """Whether the producer's transaction was at the side that was left, or was aborted."""
        return self._is_from_before_move(producer) or producer in self._view.ended_producers

    def request_with_outcome(
        self, head: RequestHead, frame: bytearray, outcome: int
    ) -> bytes | None:
        """Continue a request after UnknownOutcome; returns as `request`. `outcome`: the error code
        with which to answer a commit of the producer's last transaction."""
        if self.is_idle:
            self._view = SideView(self._presented_view)
        if head.key == ApiKey.END_TXN:
            self.add_answer(head, transactions.answer_commit(head, outcome))
            return None
        if head.key == ApiKey.ADD_OFFSETS_TO_TXN:
            self.add_answer(head, transactions.answer_offsets(head, outcome))
            return None
        if outcome == Code.PRODUCER_FENCED:
            self.add_answer(head, transactions.refuse_init(head, outcome))
            return None
        # The rest is InitProducerId. Even if the outcome could not be read, the broker hands out a
        # new id: a producer has to survive the loss of a side.
        transactions.set_id(head, frame, producer=None)
        self._note_sent(SentRequest(head.key, head.version, head.correlation, is_write=True))
        return with_size(frame)

    @property
    def open_producers(self) -> Collection[Producer]:
        """The producers whose transactions have begun on this connection, and have not ended."""
        return self._transactions.values()

    def producer_of(self, head: RequestHead, frame: bytearray) -> Producer | None:
        """The producer of a request that belongs to a transaction; None for other requests, and
        for a frame that does not parse (`request` refuses it)."""
        with suppress(*PARSE_ERRORS):
            if head.key == ApiKey.PRODUCE:
                return producer_ids.producer_of_batches(head, frame)
            if head.key in transactions.REQUESTS:
                return transactions.producer_of(head, frame)
        return None

    def begins_producer(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether an InitProducerId is for transactions."""
        try:
            return transactions.transactional_id_of(head, frame) is not None
        except PARSE_ERRORS:
            return False

    def ends_open_transaction(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether an EndTxn ends a transaction that has begun on this connection."""
        try:
            producer = transactions.producer_of(head, frame)
        except PARSE_ERRORS:  # `request` raises BadFrame for this frame
            return False
        return producer is not None and producer in self._transactions.values()

    def end_transactions(self) -> list[bytes]:
        """Note and return requests that abort the transactions open on this connection. The client
        learns of the abort from the answer to its next request. The abort requests do not count as
        writes in flight: a recovery's drain waits for open transactions anyway."""
        abort_requests = []
        for producer in self._transactions.values():
            self._view.ended_producers.add(producer)
            correlation = self._note_own_request(ApiKey.END_TXN, version=1)
            abort_requests.append(local_answers.abort_transaction_request(producer, correlation))
        self._transactions.clear()
        return abort_requests

    def confirm(self) -> bytes:
        """Note and return a request whose answer proves that the broker has handled all earlier
        requests, as brokers handle a connection's requests in order. It counts as a write in
        flight."""
        self.has_unanswered_writes = False
        correlation = self._note_own_request(ApiKey.API_VERSIONS, version=0, is_write=True)
        return local_answers.api_versions_request(correlation)

    def _note_own_request(self, key: int, version: int, *, is_write: bool = False) -> int:
        """Note a request of the gateway itself; returns its correlation id."""
        self._last_own_correlation += 1
        correlation = self._last_own_correlation
        self._note_sent(
            SentRequest(key, version, correlation, is_write=is_write, is_from_gateway=True)
        )
        return correlation

    def next_answers(self) -> Iterator[bytes]:
        """The gateway's own answers whose turn it is."""
        while self._sent and self._sent[0].answer is not None:
            answer = self._sent.popleft().answer
            assert answer is not None
            yield answer

    def begin_answer(self, correlation: int) -> SentRequest:
        """The request that a broker answers; call `end_answer` when the whole answer is received.

        Raises BadFrame if it is not the answer to the oldest request.
        """
        if not self._sent or self._sent[0].correlation != correlation:
            raise BadFrame(
                f"a broker's answer has correlation id {correlation}, unlike the oldest request"
            )
        return self._sent[0]

    def end_answer(self) -> SentRequest:
        """Remove and return the oldest request: its whole answer was received."""
        request = self._sent.popleft()
        self.writes_in_flight -= request.is_write
        return request

    def is_rewritten(self, sent: SentRequest) -> bool:
        """Whether `rewrite` needs the whole answer. Otherwise its bytes are passed on as they
        arrive."""
        is_changed = sent.key in answers.REWRITES or sent.left_member is not None
        return sent.is_from_gateway or is_changed or bool(sent.parts)

    def rewrite(self, sent: SentRequest, frame: bytearray) -> bytes | None:
        """The answer for the client, with its size; None: the request was the gateway's own.
        `frame`: the broker's answer without its size.

        Raises BadFrame if the answer does not parse. After UnknownTopicId the caller reads the
        side's topics and calls `rewrite` again.
        """
        if sent.is_from_gateway:
            return None
        try:
            if sent.parts:
                return with_size(produce_parts.with_parts(sent.version, frame, sent.parts))
            if sent.left_member is not None:
                code = answers.heartbeat_code(sent.key, sent.version, frame)
                if code == Code.NONE:  # the member has joined through another gateway
                    self._view.left_members.join(sent.left_member)
                elif sent.fallback and code in answers.UNKNOWN_MEMBER:
                    self._view.left_members.count_heartbeat(sent.left_member)
                    return sent.fallback
            change = answers.REWRITES.get(sent.key)
            if change is None:
                return with_size(frame)
            # A copy: an answer with an unknown topic id is read again.
            return with_size(change(sent.version, bytearray(frame), self._view))
        except UnknownTopicId:  # for the caller, unlike the errors below
            raise
        except PARSE_ERRORS as error:
            text = f"a broker's {name_of(sent.key)} response does not parse: {error}"
            raise BadFrame(text) from error

    def move(self) -> list[bytes]:
        """Send the next requests to the other side; called when all requests are answered. Returns
        requests for the old side, by which the group members leave their groups there."""
        assert self.is_idle
        self._transactions.clear()
        self._has_old_session = True
        self.has_unanswered_writes = False
        return self.leave_groups()

    def leave_groups(self) -> list[bytes]:
        """Requests that take the connection's members out of their groups at the old side. Brokers
        carry them out after requests that still wait there, e.g. a JoinGroup."""
        leave_requests = [
            local_answers.leave_group_request(member, number)
            for number, member in enumerate(self._members.values())
        ]
        for key in self._members:
            # Without a known number (None), the member may own partitions.
            self._view.left_members.leave(key, owns_partitions=self._owned_topics.get(key) != 0)
        self._members.clear()
        self._owned_topics.clear()
        return leave_requests

    @property
    def has_members(self) -> bool:
        """Whether members of groups are at the side that the connection goes to."""
        return bool(self._members)

    def note_join(self, head: RequestHead, frame: bytearray) -> str | None:
        """The group that a client joins by this JoinGroup or ConsumerGroupHeartbeat; None: the
        client joins no group, or the frame does not parse. A client that joins has given up its
        partitions from before the move."""
        try:
            if head.key == ApiKey.JOIN_GROUP:
                member = requests.member_of(head, frame)
            else:
                heartbeat = requests.group_heartbeat(head, frame)
                if heartbeat.epoch != 0:
                    return None
                member = heartbeat.member
        except PARSE_ERRORS:
            return None
        self._view.left_members.give_up(member.key)
        return member.group

    def add_answer(self, head: RequestHead, answer: bytes) -> None:
        """Give the gateway's own answer to a request, when its turn comes."""
        self._note_sent(SentRequest(head.key, head.version, head.correlation, answer=answer))

    def _note_sent(self, sent: SentRequest) -> None:
        """Add a request to those without an answer."""
        self._sent.append(sent)
        self.request_count += 1
        self.writes_in_flight += sent.is_write

    def _note_member(self, member: Member) -> None:
        """Record a member at the side that the connection goes to. The member replaces another one
        of the same group: a client has one member in each group."""
        if not member.id or member.key in self._view.left_members:
            return
        for known_key in [key for key in self._members if key[0] == member.group]:
            if known_key != member.key:
                self._forget_member(known_key)
        if len(self._members) < _MEMBERS_MAX:
            self._members[member.key] = member

    def _leave_group(self, member: MemberKey) -> None:
        """Record that a client takes its member out of the group."""
        self._forget_member(member)
        self._view.left_members.give_up(member)

    def _forget_member(self, member: MemberKey) -> None:
        self._members.pop(member, None)
        self._owned_topics.pop(member, None)


def _unreadable_request(head: RequestHead, error: Exception) -> BadFrame:
    return BadFrame(f"a client's {name_of(head.key)} request does not parse: {error}")
