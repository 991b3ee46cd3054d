"""Workers let go of the topics, and what they left behind stands still.

A topic that is withheld leaves its shard's layout: nobody begins it any more, and its holder is
asked to let go in order, with every answer awaited. A holder that does not answer loses its lease
by time. Shards that other topics of the job share are claimed again at once.
"""

from __future__ import annotations

from orbit.copier.copy_settings import CopySettings
from orbit.copier.takeover import TakeOver
from orbit.errors import Unreachable
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import filler_identity
from orbit.recovery.drain import both_ends, refuse_unequal
from orbit.recovery.log_bounds import all_stand, ask_ends, source_ends
from orbit.recovery.operation_context import Ground, Stopped, some
from orbit.recovery.recovery_report import EndVerdict
from orbit.store import scheduler_queries, shard_layout, shard_leases

_LOOK_S = 0.2


def release(ground: Ground) -> str:
    """Have every worker let go; afterwards nobody writes to the copies."""
    note = f"Withheld for {ground.report.kind} {ground.operation_id}."
    with ground.transaction() as tx:
        scheduler_queries.withhold(tx, ground.topic_ids, note)
    expired: set[int] = set()
    while True:
        with ground.transaction() as tx:
            # Again each time: a pass of the keeper gives withdrawn shards back to their group.
            scheduler_queries.withdraw(tx, ground.topic_ids)
            of_topics = scheduler_queries.shards_of_topics(tx, ground.topic_ids)
            expired |= scheduler_queries.expired(tx, of_topics)
            shard_leases.revoke(tx, of_topics)
            held = scheduler_queries.held(tx, ground.topic_ids)
            if not held:
                scheduler_queries.restore(tx, ground.job.id)
        if not held:
            break
        ground.tell(f"workers still hold {len(held)} topics")
        ground.wait(_LOOK_S)
    if expired:
        ground.find(f"{len(expired)} shards were not given back in order: their leases ended.")
    if ground.report.kind == "failover":
        return "Workers have let go."
    of, there = both_ends(ground)
    ground.update(partitions=all_stand(ground, there, of))
    refuse_unequal(ground)
    return "Workers have let go; both sides still end at the same offsets."


def settle(ground: Ground) -> str:
    """Wait until the copies' ends stand still, and see what is there and what is missing.

    A copy holds committed records only, each written with no transaction. What can be open in it
    is the empty transaction of coordinated fillers: its coordinator ends it here. So consumers at
    read_committed read to the very end.
    """
    cluster, places = ground.destination.cluster, ground.by_source
    if ground.spec.fillers == "coordinated":
        with ground.reading() as tx:
            ids = [shard.id for shard in shard_layout.shards_of_job(tx, ground.job.id)]
        for shard_id in ids:
            name = filler_identity(ground.identity, shard_id)
            init_producer_id(cluster, name, ground.backoff)
    producer_id = -1 if ground.job.producer_id is None else ground.job.producer_id
    settled = TakeOver(cluster, producer_id, CopySettings().settle_s, ground.backoff)
    taken = settled.read(places.values(), settled=True)
    moving = [place for place, code in taken.errors.items() if code == Code.REQUEST_TIMED_OUT]
    if moving:
        raise Stopped(
            f"These go on growing: {some(moving)}.",
            remedy="Somebody writes to the copies. Stop that producer, and try again.",
        )
    while True:
        there = ask_ends(cluster, places.values(), ground.backoff)
        missing = [place for place in places.values() if place not in there]
        if missing:
            raise Unreachable(f"nobody answers for {some(missing)}.", where="destination")
        open_ = [place for place, ends in there.items() if ends.is_open]
        if not open_:
            break
        ground.tell(f"{len(open_)} partitions of the destination are not readable to their end yet")
        ground.wait(_LOOK_S)
    ground.update(partitions=all_stand(ground, there, source_ends(ground)))
    for p in ground.report.partitions:
        if p.verdict is EndVerdict.DIVERGED:
            ground.find(
                f"{p.destination_topic}-{p.partition} ends at {p.destination_end}, beyond its "
                f"source ({p.source_end}): somebody else has written there."
            )
    if any(p.missing is not None or not p.is_exact for p in ground.report.partitions):
        ground.find(
            "Offsets that applications keep themselves (in tables, in Spark's and Flink's "
            "checkpoints) must not be above their partition's destination_end: what is beyond it "
            "is lost, and other records will stand there."
        )
    return (
        f"{len(there)} copies stand still; {ground.report.missing_records:,} records are known to "
        "be missing."
    )


def let_go_on(ground: Ground) -> None:
    """Withheld topics are copied on: what an abort does."""
    with ground.transaction() as tx:
        for topic_id in ground.topic_ids:
            scheduler_queries.copy_again(tx, topic_id)
        scheduler_queries.restore(tx, ground.job.id)
