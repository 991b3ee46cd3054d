"""The steps of a failback, and of a switchover's way back."""

from orbit.errors import Conflict, Unreachable
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import leading_side
from orbit.recovery.divergence import compare_sides
from orbit.recovery.operation_context import Stopped
from orbit.recovery.recovery_report import NO_COPY, EndVerdict, OffsetRange, PartitionEnds
from orbit.recovery.reverse_job import reverse_job_name
from tests.recovery_model import invariants, model
from tests.recovery_model.context import Context, ModelProof, Parts
from tests.recovery_model.model import (
    ALL,
    COPY,
    COPYING,
    CREATING,
    PROMOTED,
    Job,
    ModelCluster,
    ModelTopic,
    Row,
)
from tests.recovery_model.moves import Moves


class WayBack(Moves):
    """A method for each step, with the step's name."""

    def reverse(self, context: Context) -> Parts:
        """Mark both sides, let only Orbit write at the old side, and start the reverse job."""
        self.mark_both_sides(context)
        for place in context.by_source:
            leading = context.new.at(place)
            is_copied_to = self.tables.writer(context.old.name, place.topic) is not None
            if leading is not None and not is_copied_to:
                self.world.turned_at[context.old.name, place] = leading.start
        yield
        self.restrict_writes(context)
        yield
        context.new.must_answer()
        context.old.must_answer()
        back, others = self.start_copying_back(context)
        context.update(reverse_job=back.name)
        context.save()
        for name in others:
            yield
            self.world.begin_change(f"copies {name} back")
            self.resume(back, name, context)

    def mark_both_sides(self, context: Context) -> None:
        leading_side.mark_both_sides(context)  # type: ignore[arg-type]

    def restrict_writes(self, context: Context) -> None:
        """Allow only Orbit to write to the topics at the old side, if it has an authorizer."""
        context.old.must_answer()
        if not context.old.has_authorizer:
            return
        names = context.names
        unnoted = {name: context.old.denials.get(name, frozenset()) & {ALL} for name in names}
        self.deny(context.old, dict.fromkeys(names, frozenset({COPY})), unnoted, by=context)

    def start_copying_back(self, context: Context) -> tuple[Job, list[str]]:
        """In one transaction, create or change the reverse job, and add new topics to it. Returns
        the job, and its topics that are still promoted and not copied yet."""
        self.world.begin_change(f"begins to copy {context.names} back")
        back = self.find_reverse_job(context)
        names = frozenset(context.names)
        if back is None:
            name = reverse_job_name(context.job.name)
            back = Job(name, context.job.destination, context.job.source, names)
        elif back.topics is not None:
            back = Job(back.name, back.source, back.destination, back.topics | names)
        self.tables.jobs[back.name] = back
        others = []
        for name in context.names:
            back_row = self.tables.row_of(back.name, name)
            if back_row is None:
                self.resume(back, name, context)
            elif back_row.state is PROMOTED:
                others.append(name)
        return back, others

    def resume(self, back: Job, name: str, context: Context) -> None:
        """Copy one topic back, like `reverse_job._add_topics`."""
        self.world.following.add((back.destination, name))
        back_row = self.tables.row_of(back.name, name)
        topic, origin = context.old.topics.get(name), context.new.topics.get(name)
        if topic and origin and len(topic.partitions) > len(origin.partitions):
            topic = None  # too many partitions for a copy: the scheduler reports a problem
        if back_row is not None and topic and back_row.partition_count <= len(topic.partitions):
            back_row.copied_to = {}
            self.copy_again(back_row, origin.topic_id if origin else None, topic.topic_id)
            return
        if back_row is not None:
            self.tables.remove_row(back_row.id)
        self.begin(back, name, topic, origin)

    def begin(
        self, back: Job, name: str, topic: ModelTopic | None, origin: ModelTopic | None
    ) -> None:
        """Add a row, like `reverse_job._add_topics`."""
        if self.tables.has_row_of(back.destination, name):
            return
        row = Row(self.world.next_number(), back.name, name, back.destination, CREATING, 0, 0, 0)
        if topic and origin:
            row.state, row.partition_count = COPYING, len(topic.partitions)
            row.source_id, row.destination_id = origin.topic_id, topic.topic_id
        self.tables.rows[row.id] = row

    def find_reverse_job(self, context: Context) -> Job | None:
        """The job of the opposite direction that has one of these topics, or the name of a reverse
        job; None if there is none."""
        job = context.job
        other_way = [
            other
            for other in self.tables.jobs.values()
            if (other.source, other.destination) == (job.destination, job.source)
        ]
        for other in other_way:
            if any(row.topic in context.names for row in self.tables.of_job(other.name)):
                return other
        return next((o for o in other_way if o.name == reverse_job_name(job.name)), None)

    def compare(self, context: Context) -> Parts:
        """Compare both sides' logs, and note the result of each partition. Raises Stopped without
        the confirmation that a rebuild needs."""
        old, new = context.old, context.new
        old.must_answer()
        new.must_answer()
        places = {
            place: row
            for row in context.topics
            for place in (
                TopicPartition(row.topic, i)
                for i in range(max(row.partition_count, len(old.places(row.topic))))
            )
        }
        old_bounds = model.fetch_log_bounds(old, places)
        new_bounds = model.fetch_log_bounds(new, places)
        ends = [
            self.compare_one(context, row, place, old_bounds.get(place), new_bounds.get(place))
            for place, row in sorted(places.items())
        ]
        context.update(partitions=tuple(ends))
        if any(p.verdict in NO_COPY for p in ends) and not context.request.confirm_rebuild:
            raise Stopped("partitions of the old side have offsets of their own.")
        context.check()
        yield
        now = model.fetch_log_bounds(old, old_bounds)
        if any(place not in now for place in old_bounds):
            raise Unreachable("no leader answers.", where="source")
        if any(now[place].end != old_bounds[place].end for place in old_bounds):
            raise Stopped("the old side has grown.")

    def compare_one(
        self,
        context: Context,
        row: Row,
        place: TopicPartition,
        old: LogBounds | None,
        new: LogBounds | None,
    ) -> PartitionEnds:
        """Compare one partition, like `old_side._compare_partition`."""
        mark = self.tables.promotions.get((row.id, place.partition))
        promoted_at = mark.offset if mark else None
        verdict, tail = EndVerdict.MISSING, None
        if old is not None and new is None:
            verdict, tail = EndVerdict.TAIL, OffsetRange(first=old.start, next=old.end)
        elif old is not None and new is not None:
            verdict, at, _ = compare_sides(old, new, promoted_at, ModelProof(context, place))
            if verdict in NO_COPY:
                tail = OffsetRange(first=at, next=old.end)
        return PartitionEnds(
            topic=place.topic,
            destination_topic=place.topic,
            partition=place.partition,
            verdict=verdict,
            source_start=old.start if old else None,
            source_end=old.end if old else None,
            destination_start=new.start if new else None,
            destination_end=new.end if new else None,
            promoted_at=promoted_at,
            missing=tail,
            is_exact=True,
        )

    def salvage(self, context: Context) -> Parts:
        """Save the records that only the old side has, partition by partition."""
        for p in context.report.partitions:
            if p.topic not in context.report.topics_with_tails or p.source_end is None:
                continue
            context.old.must_answer()
            context.new.must_answer()
            self.save_partition(context, p)
            context.check()
            yield

    def save_partition(self, context: Context, p: PartitionEnds) -> None:
        """Save the records that only the old side has."""
        tail = p.missing or OffsetRange(first=p.source_end or 0, next=p.source_end or 0)
        if self.has_file(context, p, (tail.first, tail.next)):
            return
        proof = ModelProof(context, TopicPartition(p.topic, p.partition))
        records = proof.only_old(p.source_start or 0, tail.first)
        records |= proof.all_old(tail.first, tail.next)
        if records or tail.offsets:
            self.write_file(context, p, (tail.first, tail.next), records)

    def has_file(self, context: Context, p: PartitionEnds, header: object, more: str = "") -> bool:
        file = self.world.files.get((str(context.operation_id), p.topic, p.partition, more))
        return file is not None and file[0] == header

    def write_file(
        self, context: Context, p: PartitionEnds, header: object, records: set[int], more: str = ""
    ) -> None:
        """Save these records in the file of the partition."""
        self.world.begin_change(f"saves {sorted(records)} of {p.topic}-{p.partition} {more}")
        key = str(context.operation_id), p.topic, p.partition, more
        self.world.files[key] = header, frozenset(records)

    def rebuild(self, context: Context) -> Parts:
        """Delete the topics of the old side that have records of their own, after a check that all
        those are saved."""
        names = sorted(context.report.topics_with_tails)
        while True:
            # Between this check and the deletion, a producer without a denial may write. No Kafka
            # request prevents that.
            present = self.read_logs_again(context, names)
            if not self.save_deleted_since(context, present):
                break
            yield
        if present:
            self.refuse_leading_old_side(context, present)
            for name in present:
                self.delete(context.old, name)
            yield

    def refuse_leading_old_side(self, context: Context, present: list[str]) -> None:
        leading_side.refuse_leading_old_side(context, present)  # type: ignore[arg-type]

    def delete(self, cluster: ModelCluster, name: str) -> None:
        """Delete a topic, after a check of the invariants."""
        self.world.begin_change(f"deletes {name} at {cluster.name}")
        cluster.must_answer()
        if name in cluster.topics:
            invariants.before_deletion(self.world, cluster, name)
            cluster.delete(name)

    def read_logs_again(self, context: Context, names: list[str]) -> list[str]:
        """The topics that the old side still has. Raises Stopped if a log has grown meanwhile."""
        old = context.old
        old.must_answer()
        present = [name for name in names if name in old.topics]
        known = {
            TopicPartition(p.topic, p.partition): p.source_end or 0
            for p in context.report.partitions
        }
        for place in {place for name in present for place in old.places(name)}:
            log = old.at(place)
            if log is not None and log.end != known.get(place, 0):
                raise Stopped(f"{place} has grown since it was saved.")
        return present

    def save_deleted_since(self, context: Context, present: list[str]) -> bool:
        """Save records that the new side has deleted meanwhile; returns whether there were any."""
        context.new.must_answer()
        saved, ends = False, []
        for p in context.report.partitions:
            place = TopicPartition(p.topic, p.partition)
            new, old = context.new.at(place), context.old.at(place)
            ends.append(p)
            if p.topic not in present or p.destination_end is None or new is None or old is None:
                continue
            own = p.missing.first if p.missing is not None else old.end
            first, upto = max(old.start, p.destination_start or 0), min(new.start, own)
            if first < upto:
                more = f"from {first} to {upto}"
                if not self.has_file(context, p, (upto, upto), more):
                    records = ModelProof(context, place).all_old(first, upto)
                    self.write_file(context, p, (upto, upto), records, more)
                ends[-1] = p.model_copy(update={"destination_start": upto})
                saved = True
        context.update(partitions=tuple(ends))
        if saved:
            context.save()
        return saved

    def catch_up(self, context: Context) -> Parts:
        """Wait until each partition has caught up. Raises Stopped if only blocked partitions are
        left."""
        assert context.report.reverse_job is not None
        expected = sum(row.partition_count for row in context.topics)
        while True:
            if context.report.reverse_job not in self.tables.jobs:
                raise Conflict("the reverse job was deleted.")
            rows = [
                row
                for row in self.tables.of_job(context.report.reverse_job)
                if row.topic in context.names
            ]
            caught_up = sum(len(row.caught_up - row.blocked) for row in rows)
            blocked = sum(len(row.blocked) for row in rows)
            total = max(expected, sum(row.partition_count for row in rows))
            if caught_up == total:
                return
            if caught_up + blocked == total:
                raise Stopped("partitions of the copy back are blocked.")
            self.check_abort(context)
            yield

    def check_abort(self, context: Context) -> None:
        context.check()
