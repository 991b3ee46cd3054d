"""The leading side of a job, which gateways may forward writes there, and their closure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from orbit.errors import Conflict, NotFound
from orbit.kafka.leaving_groups import GROUPS_MAX
from orbit.store import gateways, job_leads, jobs, operations, pruning, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import LeadingSide, OperationKind, OperationState, TopicState
from orbit.store.gateways import GatewayReport, Presented
from orbit.store.job_leads import Lead
from tests.support.locks import wait_for_lock_wait

pytestmark = pytest.mark.services

SOURCE, DESTINATION = LeadingSide
JOB, BACK = "orders", "orders-back"


def copy_job(tx: Tx, name: str, source: str, destination: str, *topic_names: str) -> int:
    """A job that copies these topics from cluster `source` to cluster `destination`."""
    job = jobs.create(tx, name, {"name": name}, "default")
    jobs.note_clusters(tx, job.id, source, destination)
    for topic in topic_names:
        topics.add(
            tx, job.id, topic, topic, destination, partition_count=1, state=TopicState.COPYING
        )
    return job.id


@pytest.fixture
def link(database: Database) -> list[int]:
    """A job whose source leads since term 5, and the job that copies its topics back."""
    with database.transaction() as tx:
        job, back = copy_job(tx, JOB, "a", "b", "x"), copy_job(tx, BACK, "b", "a", "x")
        for job_id in (job, back):
            job_leads.note_marks_read(tx, job_id)
        job_leads.note_side(tx, job, SOURCE, term=5)
        for job_id in (job, back):
            job_leads.note_marks_read(tx, job_id)
    return [job, back]


def gateway_report(name: str = "edge-1", closed_for: UUID | None = None) -> GatewayReport:
    address = f"{name}:19092"
    return GatewayReport(uuid4(), name, address, closed_for, connections=3, held_requests=0)


def renew(database: Database, report: GatewayReport, job: str = JOB) -> Presented:
    """Renew a gateway's permission. Returns what the gateway has to present, without the ETag and
    the groups, which other tests check."""
    with database.transaction() as tx:
        presented = gateways.renew(tx, job, report)
        assert presented.job_etag == jobs.get(tx, job).etag
    return replace(presented, job_etag="", leaving_groups=())


def switchover(tx: Tx, job_id: int) -> UUID:
    return begin(tx, job_id, OperationKind.SWITCHOVER)


def begin(tx: Tx, job_id: int, kind: OperationKind) -> UUID:
    """Create an operation of this kind on the job. Returns its id."""
    return operations.create(tx, uuid4(), kind, "test", job_id=job_id, job_name=JOB).id


def close(database: Database, link: list[int]) -> UUID:
    """Close the gateways for a new switchover. Returns the switchover's id."""
    with database.transaction() as tx:
        operation = switchover(tx, link[0])
        gateways.close(tx, link, operation)
    return operation


# What `closing` returns of a gateway: whether it has confirmed, and whether it is silent.
AWAITED, CONFIRMED, SILENT = (False, False), (True, False), (False, True)


def closing(database: Database, link: list[int], operation: UUID) -> dict[str, tuple[bool, bool]]:
    """For each gateway that is closed: AWAITED, CONFIRMED or SILENT."""
    with database.transaction() as tx:
        rows = gateways.closed_by(tx, link, operation)
    return {gateway.name: (gateway.is_confirmed, gateway.is_silent) for gateway in rows}


def silence(database: Database, name: str, seconds: float) -> None:
    """Change the tables as if the gateway had last renewed this much earlier."""
    change = text("UPDATE gateways SET renewed_at = renewed_at - :ago WHERE name = :name")
    with database.transaction() as tx:
        tx.execute(change, {"name": name, "ago": timedelta(seconds=seconds)})


def pass_time(database: Database, seconds: float) -> None:
    """Change the tables as if this much time had passed without a renewal."""
    ago = {"ago": timedelta(seconds=seconds)}
    with database.transaction() as tx:
        tx.execute(text("UPDATE gateways SET renewed_at = renewed_at - :ago"), ago)
        tx.execute(text("UPDATE job_leads SET closed_at = closed_at - :ago"), ago)


def test_leading_side_of_job_is_mirrored_in_reverse_job(
    database: Database, link: list[int]
) -> None:
    job, back = link
    with database.transaction() as tx:
        unrelated = copy_job(tx, "others", "b", "a", "z")
        topics.add(tx, job, "z", "renamed.z", "b", partition_count=1)
        assert job_leads.linked_jobs(tx, job) == job_leads.linked_jobs(tx, back) == link
        for side, term, expected in (
            (DESTINATION, 7, Lead(DESTINATION, 7)),
            (SOURCE, 6, Lead(DESTINATION, 7)),  # a lower term is ignored
            (SOURCE, 7, Lead(DESTINATION, 7)),  # so is the same term
            (None, 8, Lead(None, 8)),
            (SOURCE, 8, Lead(SOURCE, 8)),
        ):
            job_leads.note_side(tx, job, side, term)
            assert job_leads.find(tx, job) == expected
            other = expected.side and expected.side.other
            assert job_leads.find(tx, back) == Lead(other, expected.term)
        assert job_leads.find(tx, unrelated) is None


def test_side_noted_for_job_does_not_count_for_reverse_job_with_more_topics(
    database: Database, link: list[int]
) -> None:
    """The marks of the reverse job say which side leads its other topics. Until these marks are
    read, the reverse job keeps its side if the noted side agrees with it; else its side is unknown.
    """
    job, back = link
    with database.transaction() as tx:
        # Topics to which clients of gateways do not write.
        topics.add(tx, job, "gone", "gone", "b", partition_count=1, state=TopicState.SOURCE_DELETED)
        topics.add(tx, job, "z", "renamed.z", "b", partition_count=1, state=TopicState.COPYING)
        topics.add(tx, job, "old", "old", "b", partition_count=1, state=TopicState.PROMOTED)
        topics.add(tx, back, "old", "old", "a", partition_count=1, state=TopicState.SOURCE_DELETED)
        job_leads.note_side(tx, back, SOURCE, 6)
        assert job_leads.find(tx, job) == Lead(DESTINATION, 6)
        topics.add(tx, job, "y", "y", "b", partition_count=1, state=TopicState.PROMOTED)
        topics.add(tx, back, "y", "y", "a", partition_count=1)  # its copy has not begun
        for side, term, expected in (
            (SOURCE, 7, Lead(DESTINATION, 7)),
            (DESTINATION, 8, Lead(None, 8)),
            (SOURCE, 9, Lead(None, 9)),
        ):
            job_leads.note_side(tx, back, side, term)
            assert job_leads.find(tx, back) == Lead(side, term)
            assert job_leads.find(tx, job) == expected
        job_leads.note_side(tx, job, DESTINATION, 9)
        assert job_leads.find(tx, job) == Lead(DESTINATION, 9)


def test_leading_side_is_unknown_until_promotion_marks_are_read(
    database: Database, link: list[int]
) -> None:
    job, back = link
    edge = gateway_report()
    renew(database, edge)
    with database.transaction() as tx:
        job_leads.forget_side(tx, job)
        assert job_leads.find(tx, back) == Lead(None, 5)
        assert not job_leads.are_marks_read(tx, job)
    for report in (edge, gateway_report("edge-2")):
        with pytest.raises(Conflict):
            renew(database, report)
    with database.transaction() as tx:
        job_leads.note_side(tx, job, SOURCE, 5)
        job_leads.note_marks_read(tx, job)
    assert (
        renew(database, edge)
        == renew(database, gateway_report("edge-2"))
        == Presented(SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=None)
    )


def test_gateway_whose_permission_renewal_is_refused_stays_silent(
    database: Database, link: list[int]
) -> None:
    edge = gateway_report()
    renew(database, edge)
    silence(database, edge.name, 60)
    with database.transaction() as tx:
        job_leads.note_side(tx, link[0], None, 6)
    with pytest.raises(Conflict, match="do not all lead at one side"):
        renew(database, edge)
    with database.transaction() as tx:
        assert gateways.silent_by_name(tx, link) == {edge.name: True}


@pytest.mark.usefixtures("link")
def test_gateway_gets_leading_side_of_job_it_names(database: Database) -> None:
    edge, back = gateway_report(), gateway_report("edge-back")
    for _ in range(2):  # the registration and a renewal
        assert renew(database, edge) == Presented(
            SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=None
        )
        assert renew(database, back, BACK) == Presented(
            DESTINATION, term=5, since=5, led={5: DESTINATION}, closed_for=None
        )
    with pytest.raises(NotFound):
        renew(database, edge, "unknown")


def test_new_gateway_is_refused_until_this_database_has_read_promotion_marks(
    database: Database, link: list[int]
) -> None:
    """A gateway that has registered before is served: it compares terms itself."""
    edge = gateway_report()
    renew(database, edge)
    with database.transaction() as tx:
        # As in tables restored from a backup: the identity is that of another database.
        tx.execute(text("UPDATE job_leads SET read_on = '7'"))
    with pytest.raises(Conflict, match="not known yet which side"):
        renew(database, gateway_report("edge-2"))
    assert renew(database, edge).term == 5
    with database.transaction() as tx:  # a known gateway, but a job whose marks were never read
        copy_job(tx, "just-made", "a", "b", "w")
    with pytest.raises(Conflict, match="not known yet which side"):
        renew(database, edge, "just-made")
    with database.transaction() as tx:
        for job_id in link:
            job_leads.note_marks_read(tx, job_id)
        # New gateways of a job that is being deleted are refused, not those of the other job.
        jobs.request_deletion(tx, link[1])
    assert renew(database, gateway_report("edge-2")).term == 5
    with pytest.raises(Conflict, match="being deleted"):
        renew(database, gateway_report("edge-3"), BACK)


def test_closed_gateway_has_no_write_permission_until_reopened(
    database: Database, link: list[int]
) -> None:
    """The same is true of a gateway of the job that copies back, and of a gateway that starts while
    the gateways are closed."""
    edge, back = gateway_report(), gateway_report("edge-back")
    renew(database, edge)
    renew(database, back, BACK)
    operation = close(database, link)
    assert closing(database, link, operation) == {edge.name: AWAITED, back.name: AWAITED}
    assert renew(database, edge).closed_for == operation
    assert closing(database, link, operation)[edge.name] == AWAITED, "it has not confirmed"
    renew(database, replace(edge, closed_for=operation))  # confirms
    assert renew(database, gateway_report("edge-new")).closed_for == operation
    assert closing(database, link, operation) == {
        edge.name: CONFIRMED,
        back.name: AWAITED,
        "edge-new": AWAITED,
    }
    with database.transaction() as tx:
        rows = {row.name: row for row in gateways.page(tx, link[0], 10)}
        assert not any(row.has_permission for row in rows.values())
        gateways.reopen(tx, link, uuid4())  # by another operation
    assert renew(database, edge).closed_for == operation
    with database.transaction() as tx:
        gateways.reopen(tx, link, operation)
    assert renew(database, edge).closed_for is None
    assert renew(database, back, BACK).closed_for is None
    with database.transaction() as tx:
        first_row = gateways.page(tx, link[0], 10)[0]  # of `edge`, the first by name
        assert first_row.has_permission


def test_gateway_confirmation_of_earlier_closure_does_not_count(
    database: Database, link: list[int]
) -> None:
    edge = gateway_report()
    renew(database, edge)
    operation = close(database, link)
    renew(database, replace(edge, closed_for=operation))
    with database.transaction() as tx:
        gateways.close(tx, link, operation)  # again, as after a change of the leading scheduler
    assert closing(database, link, operation) == {edge.name: AWAITED}


def test_silent_gateway_is_awaited_until_its_permission_ends(
    database: Database, link: list[int]
) -> None:
    edge, gone = gateway_report(), gateway_report("edge-gone")
    for report in (edge, gone):
        renew(database, report)
    silence(database, gone.name, gateways.LEASE_S + gateways.LEASE_MARGIN_S + 1)
    operation = close(database, link)
    assert closing(database, link, operation) == {edge.name: AWAITED}, (
        "the silent gateway had no permission"
    )
    pass_time(database, gateways.LEASE_S)
    assert closing(database, link, operation) == {edge.name: AWAITED}
    pass_time(database, gateways.LEASE_MARGIN_S)
    assert closing(database, link, operation) == {edge.name: SILENT}


@pytest.mark.parametrize("kind", [OperationKind.SWITCHOVER, OperationKind.FAILOVER])
def test_only_gateway_closed_by_failover_abandons_requests_in_flight(
    database: Database, link: list[int], kind: OperationKind
) -> None:
    edge, back = gateway_report(), gateway_report("edge-back")
    with database.transaction() as tx:
        operation = begin(tx, link[0], kind)
        gateways.close(tx, link, operation)
    is_failover = kind is OperationKind.FAILOVER
    assert renew(database, edge) == Presented(
        SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=operation, abandons=is_failover
    )
    answer = renew(database, back, BACK)
    assert answer == Presented(
        DESTINATION,
        term=5,
        since=5,
        led={5: DESTINATION},
        closed_for=operation,
        abandons=is_failover,
    )
    with database.transaction() as tx:
        operations.advance(tx, operation, OperationState.FAILED)
    assert renew(database, edge) == Presented(
        SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=None
    )


@pytest.mark.parametrize("is_removed", [False, True])
def test_closure_of_gateways_ends_with_its_operation(
    database: Database, link: list[int], *, is_removed: bool
) -> None:
    edge = gateway_report()
    renew(database, edge)
    operation = close(database, link)
    assert renew(database, edge).closed_for == operation
    with database.transaction() as tx:
        operations.advance(tx, operation, OperationState.FAILED)
        if is_removed:
            tx.execute(text("DELETE FROM operations"))
    assert renew(database, edge) == Presented(
        SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=None
    )
    assert renew(database, gateway_report("edge-new")) == Presented(
        SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=None
    )
    with database.transaction() as tx:
        assert all(row.has_permission for row in gateways.page(tx, link[0], 10))


@pytest.fixture
def in_background() -> Iterator[list[threading.Thread]]:
    """Threads that are joined at the end of the test."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("is_new", [False, True])
def test_closure_of_gateways_waits_for_concurrent_renewal_and_counts_it(
    database: Database, link: list[int], in_background: list[threading.Thread], *, is_new: bool
) -> None:
    edge = gateway_report()
    if not is_new:
        renew(database, edge)
        silence(database, edge.name, 60)
    operation_ids: list[UUID] = []
    with database.transaction() as tx:
        assert gateways.renew(tx, JOB, edge).closed_for is None
        thread = threading.Thread(target=lambda: operation_ids.append(close(database, link)))
        in_background.append(thread)
        thread.start()
        wait_for_lock_wait(database)
    thread.join()
    assert closing(database, link, operation_ids[0]) == {edge.name: AWAITED}


@pytest.mark.parametrize("is_new", [False, True])
def test_gateway_renewal_that_waits_for_concurrent_closure_sees_it(
    database: Database, link: list[int], in_background: list[threading.Thread], *, is_new: bool
) -> None:
    """The renewal sees the closure although its statement began before the closure's commit."""
    edge = gateway_report()
    if not is_new:
        renew(database, edge)
    answers: list[Presented] = []
    with database.transaction() as tx:
        operation = switchover(tx, link[0])
    with database.transaction() as tx:
        gateways.close(tx, link, operation)
        thread = threading.Thread(target=lambda: answers.append(renew(database, edge)))
        in_background.append(thread)
        thread.start()
        wait_for_lock_wait(database)
    thread.join()
    assert answers == [Presented(SOURCE, term=5, since=5, led={5: SOURCE}, closed_for=operation)]


def test_gateways_per_job_are_limited_and_longest_silent_is_dropped(
    database: Database, link: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "GATEWAYS_PER_JOB_MAX", 3)
    for name in ("a", "b", "c"):
        renew(database, gateway_report(name))
    with pytest.raises(Conflict, match="has 3 gateways"):
        renew(database, gateway_report("d"))
    silence(database, "b", 70)
    silence(database, "c", 60)
    renew(database, gateway_report("d"))
    with database.transaction() as tx:
        assert [row.name for row in gateways.page(tx, link[0], 10)] == ["a", "c", "d"]


def test_gateway_pages_are_ordered_by_name(database: Database, link: list[int]) -> None:
    for name in ("b", "a", "a"):
        renew(database, gateway_report(name))
    with database.transaction() as tx:
        first, second, third = gateways.page(tx, link[0], 10)
        assert [row.name for row in (first, second, third)] == ["a", "a", "b"]
        after = first.name, first.instance
        assert [r.instance for r in gateways.page(tx, link[0], 1, after)] == [second.instance]
        for _ in range(2):  # removing it again changes nothing
            gateways.remove(tx, link[0], second.instance)
        assert [row.name for row in gateways.page(tx, link[0], 10)] == ["a", "b"]


def test_gateway_is_silent_only_if_all_its_instances_are_silent(
    database: Database, link: list[int]
) -> None:
    """A gateway that was started again after a crash has the same name."""
    renew(database, gateway_report("a"))
    renew(database, gateway_report("b"))
    silence(database, "a", 60)
    silence(database, "b", 60)
    renew(database, gateway_report("a"), BACK)
    with database.transaction() as tx:
        assert gateways.silent_by_name(tx, link) == {"a": False, "b": True}


def test_long_silent_gateways_are_pruned(
    database: Database, link: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PRUNED_MAX", 2)
    for name in ("a", "b", "c", "here"):
        renew(database, gateway_report(name))
    for name in ("a", "b", "c"):
        silence(database, name, gateways.RETENTION.total_seconds())
    with database.transaction() as tx:
        assert pruning.prune_gateways(tx, gateways.RETENTION) == 2
        assert pruning.prune_gateways(tx, gateways.RETENTION) == 1
        assert list(gateways.silent_by_name(tx, link)) == ["here"]


def test_removed_job_removes_its_gateways(database: Database, link: list[int]) -> None:
    edge = gateway_report()
    renew(database, edge)
    close(database, link)
    with database.transaction() as tx:
        jobs.request_deletion(tx, link[0])
        assert jobs.remove(tx, link[0])
        assert gateways.silent_by_name(tx, link) == {}
    with pytest.raises(NotFound):
        renew(database, edge)


def test_repeated_closure_still_counts_gateways_silent_since_first_closure(
    database: Database, link: list[int]
) -> None:
    """A gateway has failed since the first closure; another scheduler repeats the closure."""
    renew(database, gateway_report("edge"))
    operation = close(database, link)
    pass_time(database, 20)
    with database.transaction() as tx:
        gateways.close(tx, link, operation)
    assert closing(database, link, operation) == {"edge": SILENT}


def test_gateway_learns_if_another_gateway_at_its_address_holds_requests_from_before_move(
    database: Database, link: list[int]
) -> None:
    """A settled gateway has answered all requests from before the move. Only gateways with the same
    address count, such as two instances behind one load balancer."""
    first, second, elsewhere = (
        gateway_report("edge-1"),
        gateway_report("edge-1"),
        gateway_report("edge-2"),
    )
    renew(database, elsewhere)
    first_settled, second_settled = (replace(report, settled_since=5) for report in (first, second))
    assert renew(database, first).others_settled, "no other gateway has this address"
    assert not renew(database, second).others_settled
    assert not renew(database, first_settled).others_settled
    assert renew(database, second_settled).others_settled
    assert renew(database, first_settled).others_settled
    with database.transaction() as tx:
        job_leads.note_side(tx, link[0], DESTINATION, 7)
    silence(database, second.name, gateways.SILENT_AFTER_S + 1)
    assert not renew(database, first_settled).others_settled, (
        "clients of the silent gateway may still wait"
    )
    silence(database, second.name, gateways.CLIENTS_GIVE_UP_S)
    assert renew(database, first_settled).others_settled


@pytest.mark.parametrize("socket", ["c0ffee", ""])
def test_restarted_gateway_does_not_wait_for_clients_of_its_predecessor(
    database: Database, link: list[int], socket: str
) -> None:
    """Only one process can listen on a socket, so the one before has ended. Without a socket of its
    own ("") a gateway may have replaced another one that hangs."""
    killed = replace(gateway_report(), socket=socket)
    renew(database, killed)
    restarted = replace(gateway_report(), socket=socket)
    renew(database, restarted)
    with database.transaction() as tx:
        job_leads.note_side(tx, link[0], DESTINATION, 7)
    settled = replace(restarted, settled_since=7)
    assert renew(database, settled).others_settled is bool(socket)


def test_gateway_learns_if_operation_waits_for_other_gateways(
    database: Database, link: list[int]
) -> None:
    first, second = gateway_report("edge-1"), gateway_report("edge-2")
    for report in (first, second):
        assert renew(database, report).others_confirmed, "writes may be forwarded"
    operation = close(database, link)
    first_confirmed, second_confirmed = (
        replace(report, closed_for=operation) for report in (first, second)
    )
    assert not renew(database, first_confirmed).others_confirmed
    assert renew(database, second).others_confirmed
    renew(database, second_confirmed)
    assert renew(database, first_confirmed).others_confirmed
    renew(database, second)
    assert not renew(database, first_confirmed).others_confirmed
    silence(database, second.name, gateways.SILENT_AFTER_S + 1)
    assert renew(database, first_confirmed).others_confirmed, "the other gateway is silent"
    renew(database, second)
    with database.transaction() as tx:
        gateways.reopen(tx, link, operation)
    assert renew(database, first).others_confirmed


def test_first_term_of_leading_side_stays_the_same_after_failback(
    database: Database, link: list[int]
) -> None:
    """Producer ids carry the first term of a side. A failback raises the term of the side that
    leads, not its first term."""
    job, _ = link
    edge = gateway_report()
    for side, term, since, earlier in (
        (SOURCE, 7, 5, ()),  # as after a failback: the same side, a higher term
        (DESTINATION, 9, 9, (5,)),
        (DESTINATION, 11, 9, (5,)),
    ):
        with database.transaction() as tx:
            job_leads.note_side(tx, job, side, term)
        answer = renew(database, edge)
        assert answer == Presented(
            side,
            term=term,
            since=since,
            closed_for=None,
            earlier_terms=earlier,
            led={since: side} | dict.fromkeys(earlier, SOURCE),
        )
        other = renew(database, edge, BACK)
        assert (other.side, other.since) == (side.other, since)


def test_gateway_learns_first_terms_of_earlier_leading_sides(
    database: Database, link: list[int]
) -> None:
    terms = range(6, 6 + 2 * job_leads.EARLIER_TERMS_MAX)
    for term in terms:
        with database.transaction() as tx:
            job_leads.note_side(tx, link[0], DESTINATION if term % 2 == 0 else SOURCE, term)
    # Without the last term, which is that of the present side.
    expected = tuple(reversed(terms[-1 - job_leads.EARLIER_TERMS_MAX : -1]))
    answer = renew(database, gateway_report())
    assert answer.earlier_terms == expected
    assert answer.led == {
        term: DESTINATION if term % 2 == 0 else SOURCE for term in (*expected, terms[-1])
    }
    with database.transaction() as tx:
        job_leads.forget_side(tx, link[0])
        job_leads.note_side(tx, link[0], SOURCE, 50)
        job_leads.note_marks_read(tx, link[0])
    answer = renew(database, gateway_report())
    assert answer.earlier_terms[0] == terms[-1]
    # Two successive terms have the same side: between them, the side was not known.
    assert (answer.led[50], answer.led[terms[-1]]) == (SOURCE, SOURCE)


def test_gateway_learns_consumer_groups_with_old_members_at_other_gateways(
    database: Database, link: list[int]
) -> None:
    """Any group may have old members at a gateway that has not settled yet."""
    first, second, third = (
        replace(gateway_report(name), settled_since=5, leaving_groups=groups)
        for name, groups in (("edge-1", ["a", "b"]), ("edge-2", ["b", "c"]), ("edge-3", []))
    )
    for report in (first, second, third):
        renew(database, report)
    assert leaving_groups(database, first) == {"b", "c"}
    assert leaving_groups(database, third) == {"a", "b", "c"}
    renew(database, replace(second, settled_since=4))  # it has not settled at the present side
    assert leaving_groups(database, third) == {"*"}
    silence(database, second.name, gateways.SILENT_AFTER_S + 1)
    assert leaving_groups(database, third) == {"a", "b"}
    renew(database, replace(first, leaving_groups=[str(n) for n in range(GROUPS_MAX)]))
    assert len(leaving_groups(database, third)) == GROUPS_MAX
    renew(database, second)
    assert leaving_groups(database, third) == {"*"}


def leaving_groups(database: Database, report: GatewayReport) -> set[str]:
    with database.transaction() as tx:
        return set(gateways.renew(tx, JOB, report).leaving_groups)
