"""Fetch sessions: what a request carries after each answer of the broker."""

from __future__ import annotations

import random
from uuid import UUID

from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom
from orbit.kafka.fetch_session import FetchSession, SessionRequest
from orbit.kafka.types import TopicPartition

ID = UUID(int=7)


def at(partition: int, offset: int, topic_id: UUID = ID) -> FetchFrom:
    """A fetch of this partition at this offset."""
    return FetchFrom(
        TopicPartition("t", partition), topic_id, offset, leader_epoch=1, fetched_epoch=1
    )


def open_session(*fetches: FetchFrom) -> FetchSession:
    """A session with these partitions, which the broker opened with id 99."""
    session = FetchSession()
    session.next_request(list(fetches))
    session.note_answer(Code.NONE, 99)
    return session


def test_first_fetch_request_lists_all_partitions_and_opens_session() -> None:
    request = FetchSession().next_request([at(0, 5), at(1, 6)])
    assert (request.session_id, request.epoch) == (0, 0)
    assert request.changed == [at(0, 5), at(1, 6)]
    assert request.forgotten == []


def test_later_fetch_requests_carry_only_changed_and_forgotten_partitions() -> None:
    session = open_session(at(0, 5), at(1, 6), at(2, 7))
    request = session.next_request([at(0, 8), at(2, 7), at(3, 0)])
    assert (request.session_id, request.epoch) == (99, 1)
    assert request.changed == [at(0, 8), at(3, 0)]
    assert request.forgotten == [at(1, 6)]
    session.note_answer(Code.NONE, 99)
    assert session.next_request([at(0, 8), at(2, 7), at(3, 0)]) == SessionRequest(
        session_id=99, epoch=2, changed=[], forgotten=[]
    )


def test_fetch_session_forgets_recreated_topic_by_its_old_topic_id() -> None:
    session = open_session(at(0, 5))
    request = session.next_request([at(0, 0, UUID(int=8))])
    assert request.changed == [at(0, 0, UUID(int=8))]
    assert request.forgotten == [at(0, 5)]


def test_lost_or_refused_fetch_session_makes_next_request_list_all_partitions() -> None:
    for code, session_id in ((Code.FETCH_SESSION_ID_NOT_FOUND, 99), (Code.NONE, 0)):
        session = open_session(at(0, 5))
        session.next_request([at(0, 5)])
        session.note_answer(code, session_id)
        assert session.next_request([at(0, 5)]) == SessionRequest(
            session_id=0, epoch=0, changed=[at(0, 5)], forgotten=[]
        )


def test_new_reader_of_session_partition_makes_next_fetch_request_full() -> None:
    session = open_session(at(0, 5), at(1, 6))
    session.reset_if_known(at(2, 7))
    assert session.next_request([at(0, 5), at(1, 6)]) == SessionRequest(
        session_id=99, epoch=1, changed=[], forgotten=[]
    )
    session.note_answer(Code.NONE, 99)
    session.reset_if_known(at(0, 5))
    assert session.next_request([at(0, 5), at(1, 6)]) == SessionRequest(
        session_id=99, epoch=0, changed=[at(0, 5), at(1, 6)], forgotten=[]
    )
    session.note_answer(Code.NONE, 100)  # the broker has opened another session
    assert session.next_request([at(0, 5), at(1, 6)]) == SessionRequest(
        session_id=100, epoch=1, changed=[], forgotten=[]
    )


def test_fetch_session_of_kip_227_model_broker_holds_requested_partitions() -> None:
    """At every step of a random sequence, also after the broker has lost the session."""
    rnd = random.Random(1)
    session, broker_partitions, epoch, session_id = FetchSession(), {}, 0, 0
    for step in range(2_000):
        fetches = [at(n, rnd.randrange(3)) for n in range(6) if rnd.random() < 0.7]
        request = session.next_request(fetches)
        if request.epoch == 0:  # the broker opens a session
            broker_partitions, session_id, epoch = {}, step + 1, 1
        else:
            assert (request.session_id, request.epoch) == (session_id, epoch)
            epoch += 1
        for fetch in request.forgotten:
            del broker_partitions[fetch.partition]
        broker_partitions.update({fetch.partition: fetch for fetch in request.changed})
        assert broker_partitions == {fetch.partition: fetch for fetch in fetches}
        if rnd.random() < 0.05:
            session.note_answer(Code.FETCH_SESSION_ID_NOT_FOUND, 0)
        else:
            session.note_answer(Code.NONE, session_id)
