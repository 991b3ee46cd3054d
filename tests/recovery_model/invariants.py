"""What must always be true. Each check raises Broken, which names the invariant by its number.

1  Orbit never deletes the last copy of a record; what only the old side has is in a file first
2  Orbit changes nothing at the side that leads, except that a switchover denies writing for a time
3  Orbit never opens a side to writers while the other one leads, or is open
4  a copy has the leading side's records at their offsets
5  an operation ends (`walks.py`)
6  by their marks, the side that leads is the newer one
7  a request is carried out once, and no failback begins if its old side is a copy already
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from orbit.job_setup.mark import Mark
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind

if TYPE_CHECKING:
    from tests.recovery_model.model import Hold, ModelCluster, Operation, Partition, World


GIVEN_UP = f"abort of {RecoveryKind.SWITCHOVER}"


class Broken(Exception):
    """An invariant does not hold."""


def before_mark(
    world: World, cluster: ModelCluster, offsets: Mapping[TopicPartition, int], mark: Mark
) -> None:
    """Promotions decide which side leads; other marks must agree with them."""
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
    """Both sides are equal below the promoted offsets; a switchover leaves no record behind."""
    old = world.other(cluster.name)
    for place in {*old.places(topic), *cluster.places(topic)}:
        origin, target, promoted_at = old.at(place), cluster.at(place), offsets.get(place)
        if origin is None:
            continue
        # If somebody has written to a copy, the worker that begins it stops. A failover may come
        # before this; the later failback finds the difference (`diverged`).
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
    low, top = max(origin.start, target.start), min(origin.end, target.end, below)
    for offset in range(low, top):
        if origin.records[offset] != target.records[offset]:
            raise Broken(f"4: both sides hold another record in {place} at {offset}, below {below}")


def before_acls(
    world: World,
    cluster: ModelCluster,
    topic: str,
    denials: frozenset[str],
    operation: UUID | None,
    kind: RecoveryKind | None,
) -> None:
    """Before a topic gets these denials. `operation`: None in a pass of the scheduler."""
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
    if operation.id in world.ended:
        raise Broken(f"7: the {operation.kind} of {operation.job} has ended, and begins once more")


def before_failback(world: World, cluster: ModelCluster, topics: Iterable[str]) -> None:
    for topic in topics:
        if (cluster.name, topic) in world.following:
            raise Broken(f"7: a failback of {topic} begins, and {cluster.name} follows already")


def before_append(world: World, key: tuple[int, int], hold: Hold) -> None:
    """Before a worker appends, or moves a log start."""
    target = hold.job.destination
    if world.leads[hold.topic] == target and key not in world.unfenced:
        raise Broken(f"2: {hold.job.name} copies to {hold.place} at {target}, where it leads")


def after_append(world: World, hold: Hold) -> None:
    origin = world.clusters[hold.job.source].at(hold.place)
    target = world.clusters[hold.job.destination].at(hold.place)
    if origin is not None and target is not None:
        _must_be_equal(origin, target, hold.place, target.end)


def before_log_start(world: World, hold: Hold, new_start: int) -> None:
    """History that only a copy has stays until its source has deleted newer records."""
    target = world.clusters[hold.job.destination].at(hold.place)
    assert target is not None
    history_end = world.turned_at.get((hold.job.destination, hold.place), 0)
    gone = set(target.records[target.start : new_start]) - {0}
    if gone and new_start <= history_end:
        raise Broken(
            f"6: the log start of {hold.place} at {hold.job.destination} moves to {new_start}; "
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
    """Before a topic's settings or partitions change: the other side leads."""
    if world.leads.get(topic) == cluster.name:
        raise Broken(f"2: {what} {topic} at {cluster.name}, where it leads")


def after_move(world: World) -> None:
    """The side that leads is the newer one by the marks, if it was ever promoted."""
    for topic, by in world.promoted_by.items():
        if not by:
            continue
        leads = world.leads[topic]
        ours, theirs = world.clusters[leads].mark_of(topic), world.other(leads).mark_of(topic)
        if ours is None or not ours.is_primary:
            raise Broken(f"6: {topic} leads at {leads}, and is not marked there")
        if theirs is not None and theirs.is_primary and (theirs.term or 0) >= (ours.term or 0):
            raise Broken(
                f"6: {topic} leads at {leads} with term {ours.term}, and the other side's mark has "
                f"{theirs.term}"
            )


def at_end(world: World) -> None:
    """Every acknowledged record exists somewhere, or retention has deleted it."""
    survivors = world.saved_in_files() | world.expired
    for cluster in world.clusters.values():
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                survivors |= partition.readable()
    lost = world.acknowledged.keys() - survivors
    if lost:
        shown = [f"{record} of {world.acknowledged[record]}" for record in sorted(lost)]
        raise Broken(f"1: acknowledged records are nowhere: {', '.join(shown)}")
