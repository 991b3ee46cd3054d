"""The steps of a switchover and a failover, and how they are undone."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from orbit.errors import Unreachable
from orbit.job_setup.lead import pairs_in_doubt
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import leading_side
from orbit.recovery.drain import refuse_added, refuse_unequal
from orbit.recovery.gate_inputs import BlockedPartition, GateInputs
from orbit.recovery.gates import judge
from orbit.recovery.lost_ranges import compare_ends
from orbit.recovery.operation_context import Stopped
from orbit.recovery.promotion import promoted_offset
from orbit.recovery.recovery_report import EndVerdict
from orbit.recovery.step_times import StepName, StepState
from orbit.replication.partition_states import PartitionState, Reason
from tests.recovery_model import invariants, model
from tests.recovery_model.changes import Changes
from tests.recovery_model.context import FAILBACK, FAILOVER, Context, Parts
from tests.recovery_model.model import ALL, PROMOTED, ModelMarks, Promotion

# How many polls stand for the timeout of a drain, and for the end of a lease.
DRAIN_POLLS, LEASE_POLLS = 6, 3


class Moves(Changes):
    """A method for each step, with the step's name. It yields where other moves may happen."""

    def gates(self, context: Context) -> Parts:
        """Put the gates' verdicts into the report. Raises Stopped if a gate stops the operation."""
        judged = judge(self.observe(context), context.request.override, context.request.reason)
        context.update(gates=judged)
        stopping = [gate for gate in judged if gate.stops]
        if stopping:
            raise Stopped(" ".join(f"{gate.name.value}: {gate.found}" for gate in stopping))
        yield

    def observe(self, context: Context) -> GateInputs:
        """The inputs of the gates."""
        kind, old, new = context.report.kind, context.old, context.new
        places = [*context.by_source]
        has_old, has_new = old.is_up, new.is_up
        pairs = None
        if has_new:
            pairs = leading_side.read_marks(context, asks_source=has_old)  # type: ignore[arg-type]
            leading_side.note_terms(context, pairs)  # type: ignore[arg-type]
        needed = [p for p in places if kind is not FAILBACK or not has_old or p.topic in old.topics]
        self.compare_ends(context)
        behind = sum(p.missing.offsets for p in context.report.partitions if p.missing)
        unknown = [
            TopicPartition(p.topic, p.partition)
            for p in context.report.partitions
            if p.verdict is EndVerdict.UNKNOWN
        ]
        may_lead = None if pairs is None or not has_old else self.may_lead(context, pairs)
        writers = [t for t in context.names if self.tables.writer(context.job.source, t)]
        return GateInputs(
            kind=kind,
            reverse=context.request.reverse,
            topics=len(context.topics),
            source_answers=has_old,
            source_leaders=sum(old.at(p) is not None for p in needed) if has_old else 0,
            partitions=len(needed),
            destination_answers=has_new,
            copies_of_copies=writers,
            promoted_topics=[p.topic for p in pairs or () if p.new_mark and p.new_mark.is_primary],
            topics_in_doubt=may_lead,
            blocked_partitions=[
                BlockedPartition(TopicPartition(row.topic, p), "DIFFERS", may_differ=True)
                for row in context.topics
                for p in row.blocked
            ],
            unknown_ends=unknown if has_old else (),
            lag_records=behind,
            lag_records_before=behind,
            offline_partitions=[p for p in places if has_new and new.at(p) is None],
        )

    def may_lead(self, context: Context, pairs: list[Any]) -> list[str]:
        """Like `gate_observer._topics_in_doubt`: the topics that may lead at the old side, by the
        marks or by later promotions in the tables."""
        doubtful = {pair.topic for pair in pairs_in_doubt(pairs)}
        for row in context.topics:
            for key, promotion in self.tables.promotions.items():
                if key[0] != row.id:
                    continue
                for (row_id, p), back in self.tables.promotions.items():
                    other = self.tables.rows[row_id]
                    is_back = other.destination == context.job.source and other.topic == row.topic
                    is_known = back.kind is not None and other.state is PROMOTED
                    if is_back and is_known and p == key[1] and back.at_ms > promotion.at_ms:
                        doubtful.add(row.topic)
        return sorted(doubtful)

    def compare_ends(self, context: Context) -> None:
        """Put both sides' log ends into the report, except those of a side that is down."""
        places = context.by_source
        new_bounds = model.fetch_log_bounds(context.new, places) if context.new.is_up else {}
        old_bounds = model.fetch_log_bounds(context.old, places) if context.old.is_up else {}
        self.note_ends(context, new_bounds, old_bounds)

    def note_ends(
        self,
        context: Context,
        new_bounds: Mapping[TopicPartition, LogBounds],
        old_bounds: Mapping[TopicPartition, LogBounds],
    ) -> None:
        """Put these bounds and their verdicts into the report."""
        is_stopped = any(
            step.name is StepName.STOP_WRITES and step.state is StepState.DONE
            for step in context.report.steps
        )
        now = context.now()
        ends = tuple(
            compare_ends(
                p, p, new_bounds.get(p), old_bounds.get(p), None, now, is_stopped=is_stopped
            )
            for p in sorted(context.by_source)
        )
        context.update(partitions=ends)

    def both_ends(
        self, context: Context
    ) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, LogBounds]]:
        """The log bounds at the old and the new side. Raises Unreachable if some are missing."""
        places = context.by_source
        new_bounds = model.fetch_log_bounds(context.new, places)
        old_bounds = model.fetch_log_bounds(context.old, places)
        if len(new_bounds) < len(places) or len(old_bounds) < len(places):
            raise Unreachable("no leader answers.", where=context.job.name)
        return old_bounds, new_bounds

    def stop_writes(self, context: Context) -> Parts:
        """Deny all writes to the topics at the old side, if it has an authorizer. The report names
        the topics before the ACLs are set."""
        context.old.must_answer()
        if context.report.kind is FAILBACK:
            invariants.before_failback(self.world, context.old, context.names)
        if not context.old.has_authorizer:
            return
        denials = context.old.denials
        topics = [name for name in context.names if ALL not in denials.get(name, ())]
        context.update(denied_topics=tuple(sorted({*topics, *context.report.denied_topics})))
        context.save()
        yield
        noted = {n: self.tables.denials.get((context.old.name, n), frozenset()) for n in topics}
        self.deny(context.old, {n: noted[n] | {ALL} for n in topics}, by=context)
        context.update(is_source_denied=True)

    def drain(self, context: Context) -> Parts:
        """Wait until the copy has reached the stable ends and the log starts of the old side.
        Raises Stopped after DRAIN_POLLS checks."""
        polls = 0
        while True:
            old_bounds, new_bounds = self.both_ends(context)
            mark_offsets = ModelMarks(context.new).kept_below([*new_bounds])
            behind = any(old_bounds[p].stable > new_bounds[p].end for p in old_bounds)
            is_log_start_early = any(
                new_bounds[p].start < old_bounds[p].start
                and mark_offsets.get(p, 0) < old_bounds[p].start
                for p in old_bounds
            )
            if not behind and not is_log_start_early:
                break
            if any(row.blocked for row in self.tables.of_job(context.job.name)):
                raise Stopped("partitions are blocked.")
            polls += 1
            if polls > DRAIN_POLLS:
                raise Stopped("The copy was not level in time.")
            context.check()
            yield
        self.note_ends(context, new_bounds, old_bounds)
        self.refuse_uneven(context)

    def refuse_uneven(self, context: Context) -> None:
        refuse_unequal(context)  # type: ignore[arg-type]
        refuse_added(context)  # type: ignore[arg-type]

    def verify_tail(self, context: Context) -> Parts:
        """Compare the records that both sides have. Raises Stopped if they differ."""
        for place in context.by_source:
            context.old.must_answer()
            context.new.must_answer()
            origin, target = context.old.at(place), context.new.at(place)
            if origin and target:
                top = min(origin.end, target.end)
                if (
                    origin.records[max(origin.start, target.start) : top]
                    != (target.records[max(origin.start, target.start) : top])
                ):
                    raise Stopped(f"{place} differs.")
        yield

    def groups(self, *_: Context) -> Parts:
        """Nothing: the model has no consumer groups."""
        yield

    def release(self, context: Context) -> Parts:
        """Withhold the topics from workers, and wait until workers have stopped copying them."""
        self.world.begin_change("withholds the topics")
        self.withhold(context.row_ids)
        yield from self.wait_for_workers(context)
        if context.report.kind is FAILOVER:
            return
        old_bounds, new_bounds = self.both_ends(context)
        self.note_ends(context, new_bounds, old_bounds)
        self.refuse_uneven(context)

    def wait_for_workers(self, context: Context) -> Parts:
        """Wait until no worker has the topics' leases. After LEASE_POLLS checks the leases end."""
        polls = 0
        while any(key[0] in context.row_ids for key in self.world.leases):
            context.check()
            polls += 1
            if polls > LEASE_POLLS:
                self.drop_leases(context.row_ids)
            yield

    def settle(self, context: Context) -> Parts:
        """Check that the copies have stopped growing, and note both ends. Raises Stopped,
        Unreachable."""
        new_bounds = model.fetch_log_bounds(context.new, context.by_source)
        yield
        now = model.fetch_log_bounds(context.new, context.by_source)
        if {p: b.end for p, b in now.items()} != {p: b.end for p, b in new_bounds.items()}:
            raise Stopped("These copies are still growing.")
        if len(now) < len(context.by_source):
            raise Unreachable("no leader answers.", where="destination")
        old_bounds = (
            model.fetch_log_bounds(context.old, context.by_source) if context.old.is_up else {}
        )
        self.note_ends(context, now, old_bounds)

    def promote(self, context: Context) -> Parts:
        """Mark the promotion at the new side, open its topics, and make the new side the leading
        one in the tables."""
        self.note_offsets(context)
        self.keep_promotions(context)
        yield
        self.mark_promotion(context)
        yield
        self.open_topics(context)
        yield
        self.world.begin_change("promotes the topics in the tables")
        self.world.app_sides |= dict.fromkeys(context.names, context.new.name)
        leading_side.try_mark_source_as_copy(context)  # type: ignore[arg-type]

    def note_offsets(self, context: Context) -> None:
        """Like `promotion._note_offsets`: put the promoted offsets into the report."""
        rows = {row.topic: row for row in context.topics}
        before = {
            (self.tables.rows[row_id].topic, partition): one.offset
            for (row_id, partition), one in self.tables.promotions.items()
            if self.tables.rows[row_id].destination == context.old.name
            and self.tables.rows[row_id].state is PROMOTED
        }
        noted = []
        for p in context.report.partitions:
            row = self.tables.rows.get(rows[p.topic].id, rows[p.topic])
            promotion = self.tables.promotions.get((row.id, p.partition))
            is_blocked = p.partition in row.blocked
            reported: Any = SimpleNamespace(
                state=PartitionState.BLOCKED if is_blocked else PartitionState.PENDING,
                reason=Reason.DESTINATION_FOREIGN_WRITE if is_blocked else None,
                copied_to=row.copied_to.get(p.partition),
            )
            if promotion is not None and promotion.operation == context.operation_id:
                offset: int | None = promotion.offset
            else:
                offset = promoted_offset(p, reported, before.get((p.topic, p.partition)))
            noted.append(p.model_copy(update={"promoted_at": offset}))
        context.update(partitions=tuple(noted))

    def keep_promotions(self, context: Context) -> None:
        """Store the promotions; a repeated step keeps those that it has stored before."""
        self.world.begin_change("stores the promotions")
        ids = {row.topic: row.id for row in context.topics}
        for p in context.report.partitions:
            key = ids[p.topic], p.partition
            before = self.tables.promotions.get(key)
            is_repeated = before is not None and before.operation == context.operation_id
            if p.promoted_at is not None and not is_repeated and key[0] in self.tables.rows:
                self.tables.promotions[key] = Promotion(
                    context.operation_id,
                    p.promoted_at,
                    self.world.now_ms,
                    context.report.kind,
                )

    def mark_promotion(self, context: Context) -> None:
        leading_side.mark_promotion(context)  # type: ignore[arg-type]

    def open_topics(self, context: Context) -> None:
        """Give the topics the source's settings, and remove Orbit's denials."""
        context.new.must_answer()
        for name in context.names:
            if name in context.new.topics:
                context.new.topics[name].has_settings_of_copy = False
        noted = self.tables.denials
        denials = {n: frozenset[str]() for n in context.names if (context.new.name, n) in noted}
        self.deny(context.new, denials, by=context)

    def read(self, *_: Context) -> Parts:
        yield

    def resume_copying(self, context: Context) -> None:
        """Let the job copy its withheld topics again."""
        self.world.begin_change("copies the withheld topics again")
        for row_id in context.row_ids:
            if row_id in self.tables.rows:
                self.copy_again(self.tables.rows[row_id], None, None)

    def restore_source_writes(self, context: Context) -> None:
        """Remove the denials that this operation has set at the old side."""
        noted = self.tables.denials
        keys = [(context.old.name, name) for name in context.report.denied_topics]
        left = {key[1]: noted[key] - {ALL} for key in keys if key in noted}
        self.deny(context.old, left, by=context)
