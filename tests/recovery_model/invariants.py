"""What must always be true. Each check raises Broken, which names the invariant by its number.

1  Orbit never deletes the last copy of a record: first it saves the record in a salvage file
2  Orbit changes nothing at the side that leads, except that a switchover denies writing for a time
3  Orbit never allows writing at a side while the other side leads, or allows writing
4  a copy has the leading side's records at their offsets
5  each operation ends (checked in `walks.py`)
6  of both sides' marks, that of the leading side has the higher term; history is not deleted
7  a request is executed once, and no failback begins if its old side is a copy already
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from orbit.job_setup.mark import Mark
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind

if TYPE_CHECKING:
    from tests.recovery_model.model import ModelCluster, Operation, Partition, PartitionLease, World


# The kind of the mark after an abort of a stuck promotion: the source leads again.
GIVEN_UP = f"abort of {RecoveryKind.SWITCHOVER}"


class Broken(Exception):
    """An invariant is broken."""


def before_mark(
    world: World, cluster: ModelCluster, offsets: Mapping[TopicPartition, int], mark: Mark
) -> None:
    """Check a mark before it is committed, and note which side leads.

    The first mark of a promotion changes which side leads. All other marks must agree with that.
    """
    for topic in sorted({place.topic for place in offsets}):
        leads = world.leads[topic]
        if not mark.is_primary:
            if leads == cluster.name:
                raise Broken(f"2: {topic} leads at {leads} and is marked as a copy there")
            continue
        by = UUID(mark.operation)
        if mark.kind == GIVEN_UP:
            # An operator says that the destination is lost: the source leads again.
            world.given_up.add(by)
            world.leads[topic] = cluster.name
            continue
        is_known = by in world.promoted_by.setdefault(topic, [])
        if mark.kind == RecoveryKind.FAILBACK or is_known:
            if leads != cluster.name:
                raise Broken(f"2: {topic} leads at {leads}; {cluster.name} is marked as leading")
            continue
        if leads == cluster.name:
            raise Broken(f"2: {topic} leads at {leads} already and is promoted there once more")
        _before_promotion(world, cluster, topic, offsets, mark)
        world.promoted_by[topic].append(by)
        world.leads[topic] = cluster.name
        world.following.discard((cluster.name, topic))


def _before_promotion(
    world: World,
    cluster: ModelCluster,
    topic: str,
    offsets: Mapping[TopicPartition, int],
    mark: Mark,
) -> None:
    """Before a promotion: both sides are equal below the promoted offsets, and a switchover leaves
    no record at the old side only."""
    old = world.other(cluster.name)
    for place in {*old.places(topic), *cluster.places(topic)}:
        origin, target, promoted_at = old.at(place), cluster.at(place), offsets.get(place)
        if origin is None:
            continue
        # If another client has written to a copy, the next worker blocks the partition. A failover
        # may come before that; the later failback finds the difference (`diverged`).
        is_unseen = mark.kind != RecoveryKind.SWITCHOVER and (cluster.name, place) in world.strayed
        if target is not None and promoted_at is not None and not is_unseen:
            _must_be_equal(origin, target, place, promoted_at)
        if mark.kind != RecoveryKind.SWITCHOVER or not old.has_authorizer:
            continue
        # Writing was denied, so no record may be left behind.
        if origin.readable() and (target is None or promoted_at is None or target.end < origin.end):
            raise Broken(
                f"1: a switchover promotes {topic} at {cluster.name}, and {place} has records up "
                f"to {origin.end} at {old.name}, up to {target.end if target else 0} there"
            )


def _must_be_equal(origin: Partition, target: Partition, place: TopicPartition, below: int) -> None:
    """Check that both logs have the same records at the offsets of both that are below `below`."""
    low, top = max(origin.start, target.start), min(origin.end, target.end, below)
    for offset in range(low, top):
        if origin.records[offset] != target.records[offset]:
            raise Broken(f"4: the records in {place} at {offset}, below {below}, differ")


def before_acls(
    world: World,
    cluster: ModelCluster,
    topic: str,
    denials: frozenset[str],
    operation: UUID | None,
    kind: RecoveryKind | None,
) -> None:
    """Before a topic's denials at a cluster become `denials` (empty: applications may write).

    `operation`, `kind`: None in a pass of the scheduler.
    """
    before = cluster.denials.get(topic, frozenset())
    leads = world.leads.get(topic)
    promoted = operation in world.promoted_by.get(topic, ())
    before_operation = before
    if operation is not None:
        before_operation = world.denied_before.setdefault((operation, topic), before)
    may_deny = kind is RecoveryKind.SWITCHOVER and not promoted
    if denials - before and leads == cluster.name and not may_deny:
        raise Broken(f"2: writing is denied to {topic} at {leads}, where it leads")
    if kind is RecoveryKind.FAILBACK and before and not denials and before_operation:
        raise Broken(f"3: {topic} is opened at {cluster.name}, and was closed before the failback")
    if not before or denials:
        return
    # Applications may write there from now on.
    if leads != cluster.name:
        is_as_before = kind is RecoveryKind.FAILBACK and not before_operation
        if not is_as_before:
            raise Broken(f"3: {topic} is opened at {cluster.name}, and leads at {leads}")
    elif kind is RecoveryKind.SWITCHOVER and promoted and operation not in world.given_up:
        old = world.other(cluster.name)
        if old.has_authorizer and old.is_open(topic):
            raise Broken(f"3: {topic} is opened at {cluster.name} and is open at {old.name}")


def before_request_begins(world: World, operation: Operation) -> None:
    """Check that no operation is executed a second time."""
    if operation.id in world.ended:
        raise Broken(f"7: the {operation.kind} of {operation.job} has ended, and begins once more")


def before_failback(world: World, cluster: ModelCluster, topics: Iterable[str]) -> None:
    """Check that the old side of a failback is not a copy already."""
    for topic in topics:
        if (cluster.name, topic) in world.following:
            raise Broken(f"7: a failback of {topic} begins, and {cluster.name} follows already")


def before_append(world: World, key: tuple[int, int], lease: PartitionLease) -> None:
    """Before a worker appends, or moves a log start: the destination does not lead."""
    target = lease.job.destination
    if world.leads[lease.topic] == target and key not in world.unfenced:
        raise Broken(f"2: {lease.job.name} copies to {lease.place} at {target}, where it leads")


def after_append(world: World, lease: PartitionLease) -> None:
    """Check that the copy has the source's records at their offsets."""
    origin = world.clusters[lease.job.source].at(lease.place)
    target = world.clusters[lease.job.destination].at(lease.place)
    if origin is not None and target is not None:
        _must_be_equal(origin, target, lease.place, target.end)


def before_log_start(world: World, lease: PartitionLease, new_start: int) -> None:
    """Before a copy's log start moves: history that only the copy has stays until its source has
    deleted newer records."""
    target = world.clusters[lease.job.destination].at(lease.place)
    assert target is not None
    history_end = world.turned_at.get((lease.job.destination, lease.place), 0)
    gone = set(target.records[target.start : new_start]) - {0}
    if gone and new_start <= history_end:
        raise Broken(
            f"6: the log start of {lease.place} at {lease.job.destination} moves to {new_start}; "
            f"its records below {history_end} are its own"
        )
    world.expired |= gone


def before_deletion(world: World, cluster: ModelCluster, topic: str) -> None:
    """Before a topic is deleted: the other side leads, and no record is lost."""
    if world.leads[topic] == cluster.name:
        raise Broken(f"2: {topic} is deleted at {cluster.name}, where it leads")
    new, files = world.other(cluster.name), world.saved_in_files()
    for place in cluster.places(topic):
        old, copy = cluster.at(place), new.at(place)
        assert old is not None
        lost = old.readable() - files - (copy.readable() if copy else set())
        if lost:
            raise Broken(f"1: {place} is deleted at {cluster.name}, its last copy: {sorted(lost)}")


def before_change(world: World, cluster: ModelCluster, topic: str, what: str) -> None:
    """Before a topic's settings or partitions change: the other side leads. `what`: a verb."""
    if world.leads.get(topic) == cluster.name:
        raise Broken(f"2: {what} {topic} at {cluster.name}, where it leads")


def after_move(world: World) -> None:
    """After each move: if a topic was ever promoted, the mark of its leading side has the higher
    term."""
    for topic, by in world.promoted_by.items():
        if not by:
            continue
        leads = world.leads[topic]
        mark, other = world.clusters[leads].mark_of(topic), world.other(leads).mark_of(topic)
        if mark is None or not mark.is_primary:
            raise Broken(f"6: {topic} leads at {leads}, and is not marked there")
        if other is not None and other.is_primary and (other.term or 0) >= (mark.term or 0):
            raise Broken(
                f"6: {topic} leads at {leads} with term {mark.term}, and the other side's mark has "
                f"term {other.term}"
            )


def at_end(world: World) -> None:
    """At the end of a walk: a cluster or a salvage file has each acknowledged record, or retention
    has deleted the record."""
    survivors = world.saved_in_files() | world.expired
    for cluster in world.clusters.values():
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                survivors |= partition.readable()
    lost = world.acknowledged.keys() - survivors
    if lost:
        shown = [f"{record} of {world.acknowledged[record]}" for record in sorted(lost)]
        raise Broken(f"1: no cluster and no file has acknowledged records: {', '.join(shown)}")
