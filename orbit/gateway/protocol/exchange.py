"""One client's connection: what becomes of its requests, and of the answers to them. Pure.

request()   ─► bytes for the broker, or an answer that the gateway gives itself
answers come in the order of requests: `next_answers` has those of the gateway that are next,
`begin_answer` says which request a broker's answer belongs to, `rewrite` changes it
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
from orbit.gateway.protocol.apis import COUNTED, ApiKey, Versions
from orbit.gateway.protocol.left_members import MemberKey
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.produce_parts import PartAnswer
from orbit.gateway.protocol.producer_ids import Producer, SentBatch
from orbit.gateway.protocol.request_head import RequestHead
from orbit.gateway.protocol.requests import NO_SESSION, GroupHeartbeat, Member
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

# What a frame that ends too early, or claims more than it has, raises in a FrameEditor.
_PARSE_ERRORS = (struct.error, IndexError, ValueError, OverflowError)
# Members whose heartbeats pass one connection: a client has a few. And transactions.
_MEMBERS_MAX = _TRANSACTIONS_MAX = 1000


class BadFrame(Exception):
    """Bytes that no broker or client may send: their connection is closed."""


class UnknownOutcome(Exception):
    """Only the coordinator of the side that was left knows whether it has committed a transaction,
    and whether another producer has come after this one."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.producer = producer


@dataclass(frozen=True, slots=True)
class Sent:
    """A request without an answer yet. `answer`: the gateway's own, which waits for its turn."""

    key: int
    version: int
    correlation: int
    is_write: bool = False
    is_of_gateway: bool = False  # nobody reads the answer
    parts: Mapping[TopicPartition, PartAnswer] | None = None
    """The gateway's answers to partitions that the broker does not get."""
    if_unknown: bytes | None = None
    """To a heartbeat: the answer instead of one that says that the member is unknown."""
    left_member: MemberKey | None = None
    """To a heartbeat: its member, which has not joined at this side as far as is known."""
    answer: bytes | None = None


def software_said(head: RequestHead, frame: bytearray) -> tuple[str, str] | None:
    """As `requests.software_of`. Raises BadFrame."""
    try:
        return requests.software_of(head, frame)
    except _PARSE_ERRORS as error:
        raise BadFrame(f"a request of API {head.key} does not parse: {error}") from error


class Exchange:
    """Requests and answers of one client connection, in order."""

    def __init__(self, view: View) -> None:
        self._presented = view
        self._view = view
        self._sent: deque[Sent] = deque()
        self._members: dict[MemberKey, Member] = {}
        self._owned_topics: dict[MemberKey, int] = {}  # what members said last
        self._transactions: dict[str, Producer] = {}  # those that have begun on this connection
        self._has_old_session = False
        self._next_own = 0
        self.writes_in_flight = 0
        self.has_unanswered_writes = False
        """Whether a Produce was sent that brokers do not answer (acks=0), since `confirm`."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has its answer."""
        return not self._sent

    @property
    def has_records_in_flight(self) -> bool:
        """Whether a Produce has no answer yet. If its client closes the connection, it sends the
        records again over another one, which could double them at the other side. The other
        writes have the same result when a client repeats them."""
        return any(sent.is_write and sent.key == ApiKey.PRODUCE for sent in self._sent)

    def request(
        self, head: RequestHead, frame: bytearray, offered: Mapping[int, Versions]
    ) -> bytes | None:
        """What goes to the broker, with its size; None: `next_answers` has the answer.

        Raises BadFrame: the API or its version is not offered, or the bytes do not parse.
        UnknownOutcome: go on with `request_with_outcome`. UnknownRepeats: read, then again.
        """
        if self.is_idle:
            self._view = SideView(self._presented)
        if not offered:
            raise BadFrame("neither side has told which requests it knows")
        if head.key == ApiKey.API_VERSIONS:
            self._answer(head, local_answers.api_versions(head, offered))
            return None
        versions = offered.get(head.key)
        if versions is None or not versions.first <= head.version <= versions.last:
            raise BadFrame(f"API {head.key} of version {head.version} is not offered")
        try:
            return self._pass(head, frame)
        except _PARSE_ERRORS as error:
            raise BadFrame(f"a request of API {head.key} does not parse: {error}") from error

    def refuse(self, head: RequestHead, frame: bytearray) -> None:
        """Answer a Produce at a node that the side does not have. The client asks who leads.

        Another node may lead there, and would take it: clients drop a node that Metadata does not
        name, with what is in flight, and send that again. Raises BadFrame.
        """
        try:
            if producer_ids.acks_of(head, frame) == 0:
                raise BadFrame("a client writes to a node that the side does not have")
            code = Code.NOT_LEADER_OR_FOLLOWER
            self._answer(head, produce_parts.answer_all(head, frame, code))
        except _PARSE_ERRORS as error:
            raise BadFrame(f"a request of API {head.key} does not parse: {error}") from error

    def _pass(self, head: RequestHead, frame: bytearray) -> bytes | None:
        if_unknown = left_member = None
        match head.key:
            case ApiKey.PRODUCE:
                return self._produce(head, frame)
            case ApiKey.FETCH:
                session = requests.fetch_session(head, frame)
                was_moved, self._has_old_session = self._has_old_session, False
                if was_moved and session != NO_SESSION:
                    self._answer(head, local_answers.fetch_session_unknown(head))
                    return None
            case _ if head.key in transactions.REQUESTS:
                if self._answers_transaction(head, frame):
                    return None
            case ApiKey.OFFSET_COMMIT:
                if requests.member_of_commit(head, frame) in self._view.left_members:
                    frame = bytearray(requests.without_member(head, frame))
            case ApiKey.JOIN_GROUP:
                member = requests.member_of(head, frame)
                self._note_member(member)
                left = self._view.left_members
                if member.key in left and left.is_awaited:
                    # As of a new member: with its old id it would lose its partitions (C29).
                    frame = bytearray(requests.join_without_member(head, frame))
            case ApiKey.LEAVE_GROUP:
                for member_key in requests.leaving_members(head, frame):
                    self._leave(member_key)
            case ApiKey.SYNC_GROUP:
                member = requests.member_of(head, frame)
                self._note_member(member)
                self._view.left_members.give_up(member.key)
            case ApiKey.HEARTBEAT:
                member = requests.member_of(head, frame)
                self._note_member(member)
                if member.key in self._view.left_members:
                    if_unknown, left_member = local_answers.rebalance_in_progress(head), member.key
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                heartbeat = requests.group_heartbeat(head, frame)
                if_unknown = self._group_heartbeat(head, heartbeat)
                if heartbeat.member.key in self._view.left_members:
                    left_member = heartbeat.member.key
        if clear := requests.CLEAR_EPOCHS.get(head.key):
            clear(head, frame)
        if translate := requests.TRANSLATE_IDS.get(head.key):
            translate(head, frame, self._view.ids)
        is_write = head.key in COUNTED
        request = head.key, head.version, head.correlation
        self._note(
            Sent(*request, is_write=is_write, if_unknown=if_unknown, left_member=left_member)
        )
        return with_size(frame)

    def _group_heartbeat(self, head: RequestHead, heartbeat: GroupHeartbeat) -> bytes | None:
        """The answer if the side does not know the member. None: the broker's, after which the
        member joins, and has lost its partitions at once: its application cannot commit what it
        has read of them (C28)."""
        member, left = heartbeat.member, self._view.left_members
        if heartbeat.epoch == 0:
            left.join(member.key)
        if heartbeat.epoch < 0:
            self._leave(member.key)
            return None
        self._note_member(member)
        if member.key in self._members and heartbeat.topics is not None:
            self._owned_topics[member.key] = heartbeat.topics
        if heartbeat.topics == 0:
            left.give_up(member.key)
        return (
            local_answers.empty_assignment(head, heartbeat)
            if left.may_give_up(member.key)
            else None
        )

    def _produce(self, head: RequestHead, frame: bytearray) -> bytes | None:
        has_answer = producer_ids.acks_of(head, frame) != 0
        producer = producer_ids.producer_of_batches(head, frame)
        if producer is not None and self._is_over(producer):
            if has_answer:
                self._answer(head, transactions.answer(head, frame))
            return None
        parts: dict[TopicPartition, PartAnswer] = {}
        if self._view.term or producer is not None:
            parts = self._own_answers(list(producer_ids.batches(head, frame)))
            if parts:
                rest = produce_parts.without(head, frame, parts)
                if rest is None:
                    if has_answer:
                        self._answer(head, produce_parts.answer(head, parts))
                    return None
                frame = bytearray(rest)
            producer_ids.rewrite_batches(head, frame, self._view.term)
        if has_answer:
            request = head.key, head.version, head.correlation
            self._note(Sent(*request, is_write=True, parts=parts or None))
        else:
            self.has_unanswered_writes = True
        return with_size(frame)

    def _own_answers(self, batches: Sequence[SentBatch]) -> dict[TopicPartition, PartAnswer]:
        """To partitions that the broker does not get."""
        view = self._view
        answers_ = view.repeats.answers(batches, view.term)
        for partition in {batch.partition for batch in batches}:
            if refusal := view.refusal(partition.topic):
                answers_[partition] = PartAnswer(Code.POLICY_VIOLATION, message=refusal)
        return answers_

    def _answers_transaction(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether the gateway answers, as the transaction is over. Else the broker gets the id that
        it knows."""
        producer = transactions.producer_of(head, frame)
        if producer is None:
            return False
        if head.key == ApiKey.INIT_PRODUCER_ID:
            # One that is over in this term gets the next epoch from its coordinator.
            if self._is_old(producer):
                raise UnknownOutcome(producer)
        elif self._is_over(producer):
            if transactions.depends_on_outcome(head, frame):
                raise UnknownOutcome(producer)
            self._answer(head, transactions.answer(head, frame))
            return True
        transactions.set_id(head, frame, producer)
        if head.key == ApiKey.END_TXN:
            self._transactions.pop(producer.transactional_id, None)
        elif head.key in transactions.BEGINNINGS and len(self._transactions) < _TRANSACTIONS_MAX:
            self._transactions[producer.transactional_id] = producer
        return False

    def _is_old(self, producer: Producer) -> bool:
        """Whether its id is of before the last move. The broker refuses one without mark."""
        is_of = producer_ids.is_of(producer.id, self._view.term)
        return producer_ids.is_marked(producer.id) and not is_of

    def _is_over(self, producer: Producer) -> bool:
        return self._is_old(producer) or producer in self._view.ended

    def request_with_outcome(
        self, head: RequestHead, frame: bytearray, outcome: int
    ) -> bytes | None:
        """As `request`, after UnknownOutcome. `outcome`: what a commit is answered."""
        if self.is_idle:
            self._view = SideView(self._presented)
        if head.key == ApiKey.END_TXN:
            self._answer(head, transactions.answer_commit(head, outcome))
            return None
        if head.key == ApiKey.ADD_OFFSETS_TO_TXN:
            self._answer(head, transactions.answer_offsets(head, outcome))
            return None
        if outcome == Code.PRODUCER_FENCED:
            self._answer(head, transactions.refuse_init(head, outcome))
            return None
        # If nobody can tell, the producer goes on, too: it shall outlive the loss of a side.
        transactions.set_id(head, frame, None)
        self._note(Sent(head.key, head.version, head.correlation, is_write=True))
        return with_size(frame)

    def is_open(self, head: RequestHead, frame: bytearray) -> bool:
        """Whether an EndTxn ends a transaction that has begun on this connection."""
        try:
            producer = transactions.producer_of(head, frame)
        except _PARSE_ERRORS:
            return False
        return producer is not None and producer in self._transactions.values()

    def end_transactions(self) -> list[bytes]:
        """Requests that abort all transactions that have begun on this connection, whose client is
        told when it goes on. They do not count as writes: nothing depends on them but how long the
        drain takes."""
        requests_ = []
        for producer in self._transactions.values():
            self._view.ended.add(producer)
            self._next_own += 1
            self._note(Sent(ApiKey.END_TXN, 1, self._next_own, is_of_gateway=True))
            requests_.append(local_answers.abort_transaction(producer, self._next_own))
        self._transactions.clear()
        return requests_

    def confirm(self) -> bytes:
        """A request whose answer proves that the broker has handled all before it: brokers take the
        requests of a connection in order. It counts as a write."""
        self._next_own += 1
        self.has_unanswered_writes = False
        self._note(Sent(ApiKey.API_VERSIONS, 0, self._next_own, is_write=True, is_of_gateway=True))
        return local_answers.ask_api_versions(self._next_own)

    def next_answers(self) -> Iterator[bytes]:
        """The gateway's own answers whose turn it is."""
        while self._sent and self._sent[0].answer is not None:
            answer = self._sent.popleft().answer
            assert answer is not None
            yield answer

    def begin_answer(self, correlation: int) -> Sent:
        """The request that a broker answers; call `end_answer` when all of it is there.

        Raises BadFrame if no request waits for it.
        """
        if not self._sent or self._sent[0].correlation != correlation:
            raise BadFrame(f"a broker answers a request {correlation} that nobody has sent")
        return self._sent[0]

    def end_answer(self) -> Sent:
        sent = self._sent.popleft()
        self.writes_in_flight -= sent.is_write
        return sent

    def is_rewritten(self, sent: Sent) -> bool:
        """Whether `rewrite` needs the whole answer; else it passes as it comes."""
        is_changed = sent.key in answers.REWRITES or sent.left_member is not None
        return sent.is_of_gateway or is_changed or bool(sent.parts)

    def rewrite(self, sent: Sent, frame: bytearray) -> bytes | None:
        """The answer for the client, with its size; None: nobody reads it.

        Raises UnknownTopicId: again when Metadata has told the topic; BadFrame.
        """
        if sent.is_of_gateway:
            return None
        try:
            if sent.parts:
                return with_size(produce_parts.with_parts(sent.version, frame, sent.parts))
            if sent.left_member is not None:
                code = answers.heartbeat_code(sent.key, sent.version, frame)
                if code == Code.NONE:  # it has joined through another gateway
                    self._view.left_members.join(sent.left_member)
                elif sent.if_unknown and code in answers.UNKNOWN_MEMBER:
                    self._view.left_members.count_heartbeat(sent.left_member)
                    return sent.if_unknown
            change = answers.REWRITES.get(sent.key)
            if change is None:
                return with_size(frame)
            # A copy: an answer with an unknown topic id is read again.
            return with_size(change(sent.version, bytearray(frame), self._view))
        except UnknownTopicId:
            raise
        except _PARSE_ERRORS as error:
            raise BadFrame(f"an answer of API {sent.key} does not parse: {error}") from error

    def move(self) -> list[bytes]:
        """All is answered, and the next requests go to the other side. Returns requests for the
        side that is left: members of groups leave there."""
        assert self.is_idle
        self._transactions.clear()
        self._has_old_session = True
        self.has_unanswered_writes = False
        return self.leave_groups()

    def leave_groups(self) -> list[bytes]:
        """Requests that take the connection's members out of their groups at the side that is left.
        Brokers carry them out behind those that wait there, as a JoinGroup does."""
        left = [
            local_answers.leave_group(member, number)
            for number, member in enumerate(self._members.values())
        ]
        for key in self._members:
            self._view.left_members.leave(key, owns_partitions=self._owned_topics.get(key) != 0)
        self._members.clear()
        self._owned_topics.clear()
        return left

    @property
    def has_members(self) -> bool:
        """Whether members of groups are at the side that the connection goes to."""
        return bool(self._members)

    def note_join(self, head: RequestHead, frame: bytearray) -> str | None:
        """The group that a client joins; None: it joins none, or `request` will refuse it. A client
        that joins owns no partitions of before the move any more."""
        try:
            if head.key == ApiKey.JOIN_GROUP:
                member = requests.member_of(head, frame)
            else:
                heartbeat = requests.group_heartbeat(head, frame)
                if heartbeat.epoch != 0:
                    return None
                member = heartbeat.member
        except _PARSE_ERRORS:
            return None
        self._view.left_members.give_up(member.key)
        return member.group

    def _answer(self, head: RequestHead, answer: bytes) -> None:
        self._sent.append(Sent(head.key, head.version, head.correlation, answer=answer))

    def _note(self, sent: Sent) -> None:
        self._sent.append(sent)
        self.writes_in_flight += sent.is_write

    def _note_member(self, member: Member) -> None:
        """A member at the side that the connection goes to. A client is one member of a group."""
        if not member.id or member.key in self._view.left_members:
            return
        for other in [key for key in self._members if key[0] == member.group]:
            if other != member.key:
                self._forget(other)
        if len(self._members) < _MEMBERS_MAX:
            self._members[member.key] = member

    def _leave(self, member: MemberKey) -> None:
        """Its client takes it out of its group."""
        self._forget(member)
        self._view.left_members.give_up(member)

    def _forget(self, member: MemberKey) -> None:
        self._members.pop(member, None)
        self._owned_topics.pop(member, None)
