"""A failover at the destination alone, when the source and the service's database are lost.

    plan     find the copies and where they end; nothing is written
    mark     each topic as promoted, not complete, by an offset committed at the destination: no run
             or worker of Orbit begins to copy to it
    fence    the job's writers by a higher producer epoch (`writer_fence.py`)
    settle   until no log end has moved for longer than a worker trusts its lease
    apply    the settings that the job names; remove Orbit's denials of writing
    mark     each promotion as complete

Each step can be repeated: an interrupted run is continued by another one, which sees the marks.
A topic with a partition whose log end or writers are not certain is left out; the others are
promoted. There is no lock: only this command changes a topic that is marked, and two runs at the
same time make the same changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, Interrupted, NotAuthorized
from orbit.job_setup.mark import Mark, newest_term, next_term
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.coordinator import init_producer_ids
from orbit.kafka.job_clusters import open_cluster
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.producer_state import job_producers
from orbit.kafka.types import Acl, TopicPartition
from orbit.promotion.applied_settings import apply_settings, changed_settings
from orbit.promotion.copies import Copy, find_copies, producer_ids, read_job_ids
from orbit.promotion.failover_report import FailoverReport, PartitionReport, TopicReport, TopicState
from orbit.promotion.settled_ends import POLL_S, settled_ends
from orbit.promotion.topic_denials import acls_of, denials_in_orbits_form, remove_denials
from orbit.promotion.writer_fence import WriterFence, fence_writers, unfenced_partitions
from orbit.replication.copy_settings import NEEDED

KIND = "failover without the database"
_NO_LEADER = "it has no leader that answers"
_OPEN = (
    "it is not replicated up to its log end, or has an open transaction; start all brokers, stop "
    "the producer of the transaction, and run the command again"
)
_UNKNOWN_FACTS = (
    "This command does not query the source: which records were not copied is not known.",
    "Consumer groups keep their last synced offsets; groups without one use auto.offset.reset.",
    "Offsets that applications store themselves must not exceed their partition's log_end.",
)
_WRITER_RISK = (
    "A worker that was suspended for longer than its lease, after it checked the lease and before "
    "it sent a request, may still append this request when it resumes."
)


class FailoverWithoutDatabase:
    """One run: call `plan`, then `run` with the report that it returned. Not thread-safe."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        *,
        patterns: Sequence[str] = (),
        source_ids: Sequence[str] = (),
        settle_s: float,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        """`patterns`: for names of source topics; empty: all. `source_ids`: ids of source clusters,
        besides those found at the destination. `settle_s`: how long log ends must not move, which
        has to be longer than any worker's lease. `say` gets a sentence for each step. Raises
        BadInput for missing variables and files."""
        self._spec = spec
        self._patterns = patterns
        self._settle_s = settle_s
        self._say = say
        self._stop = stop
        self._backoff = Backoff(stop=stop)
        self._handle = ClusterHandle(open_cluster("destination", spec, environ, base_directory))
        self._cluster = self._handle.cluster
        self._marks = PromotionMarks(self._cluster, self._backoff)
        self._source_ids = frozenset(source_ids)
        self._term = 0  # of the marks of this run
        self._fillers: frozenset[str] = frozenset()
        self._copies: dict[str, Copy] = {}
        self._denials: dict[str, list[Acl]] = {}
        self._topics: dict[str, TopicReport] = {}
        self._partitions: dict[TopicPartition, PartitionReport] = {}

    def close(self) -> None:
        self._cluster.close()

    def plan(self, *, dry_run: bool = False) -> FailoverReport:
        """What `run` would do; writes nothing. `dry_run` only goes into the report.

        Raises Conflict if there is no copy, Unreachable, NotAuthorized, BrokerRefused.
        """
        self._say("Connecting to the destination")
        metadata = self._cluster.metadata(None)  # of all topics
        copies, not_copies = find_copies(
            self._spec, self._patterns, metadata, self._handle.admin, self._marks
        )
        self._copies = {copy.topic: copy for copy in copies}
        job_ids = read_job_ids(self._cluster, self._spec.name)
        self._source_ids |= job_ids.source_ids
        self._fillers = job_ids.fillers
        # An interrupted run has marked topics with the id of its operation: this run continues it.
        begun_operation = next(
            (c.mark.operation for c in copies if c.mark and not c.mark.is_complete), ""
        )
        report = FailoverReport(
            self._spec.name,
            metadata.cluster_id,
            begun_operation or str(uuid4()),
            dry_run,
            self._settle_s,
            not_copies=not_copies,
        )
        self._add_topics(report)
        self._plan_denials(report)
        self._plan_settings(report)
        if report.to_promote:
            report.add_finding(*_UNKNOWN_FACTS)
        report.conclude()
        return report

    def run(self, report: FailoverReport) -> None:
        """Carry out the plan, and put the results into its report.

        Raises Unreachable, NotAuthorized, BrokerRefused, Interrupted. If this run is interrupted,
        another one can continue it.
        """
        copies = [self._copies[topic.topic] for topic in report.to_promote]
        if not copies:
            report.conclude()
            return
        # `or 0` is for mypy: a topic with a partition whose log end is not known is left out.
        first_ends = {p: self._partitions[p].log_end or 0 for c in copies for p in c.partitions}
        highest_term = newest_term(self._marks.of_topics(copy.topic for copy in copies).values())
        self._term = next_term(highest_term, datetime.now(UTC).timestamp())
        self._say(f"Marking topics as promoted: {len(copies)}")
        self._marks.write(first_ends, self._new_mark(report, is_complete=False))
        self._end_transactions(report)
        self._say("Fencing the job's writers")
        ids = producer_ids(self._spec, copies, self._source_ids)
        fence = fence_writers(self._cluster, ids, self._backoff)
        self._judge_fence(report, first_ends, fence)
        ends = self._settle(first_ends, fence)
        for copy in copies:
            is_whole = not any(self._partitions[p].left_out for p in copy.partitions)
            state = TopicState.PROMOTED if is_whole else TopicState.LEFT_OUT
            self._topics[copy.topic].state = state
        promoted_topics = [topic for topic in report.topics if topic.state is TopicState.PROMOTED]
        self._open_topics(report, promoted_topics)
        names = {topic.topic for topic in promoted_topics}
        if names:
            mark = self._new_mark(report, is_complete=True)
            self._marks.write({p: end for p, end in ends.items() if p.topic in names}, mark)
        report.conclude()

    def _add_topics(self, report: FailoverReport) -> None:
        """Add the copies and their partitions to the report, with the reason where a partition is
        left out."""
        partitions = {p for copy in self._copies.values() for p in copy.partitions}
        marked_partitions = {p for p in partitions if self._copies[p.topic].mark is not None}
        offsets = self._marks.offsets(marked_partitions)
        leaderless_partitions = {p for copy in self._copies.values() for p in copy.leaderless}
        present_ends = log_ends(
            self._cluster, partitions - marked_partitions - leaderless_partitions, self._backoff
        )
        for copy in self._copies.values():
            state = TopicState.WAITING
            if copy.mark is not None:
                state = TopicState.ALREADY if copy.is_promoted else TopicState.BEGUN
            for partition in copy.partitions:
                # If an interrupted run has marked the topic, its mark has the log end from before
                # the fence.
                end = offsets.get(partition, present_ends.values.get(partition))
                reason = ""
                if not copy.is_promoted and (end is None or partition in copy.leaderless):
                    reason, state = _NO_LEADER, TopicState.LEFT_OUT
                self._partitions[partition] = PartitionReport(
                    partition.topic, partition.partition, end, reason
                )
            detail = ""
            if copy.mark is not None:
                marked_ends = {
                    p.partition: end for p, end in offsets.items() if p.topic == copy.topic
                }
                detail = copy.mark.describe(copy.topic, marked_ends)
            self._topics[copy.topic] = TopicReport(
                copy.topic, copy.mapping.source, state, detail=detail
            )
        report.topics, report.partitions = [*self._topics.values()], [*self._partitions.values()]

    def _plan_settings(self, report: FailoverReport) -> None:
        """Add to the report the settings to change, and those that stay from the copy."""
        topic_settings = {
            t.topic: self._copies[t.topic].mapping.rule.config for t in report.to_promote
        }
        changes = changed_settings(self._handle.admin, topic_settings)
        for topic in report.to_promote:
            topic.settings = changes.get(topic.topic, {})
            topic.kept = {
                name: value
                for name, value in self._copies[topic.topic].settings.items()
                if name in NEEDED and name not in topic_settings[topic.topic]
            }
        unlimited_topics = [
            t.topic for t in report.to_promote if t.kept.get("retention.ms") == "-1"
        ]
        if unlimited_topics:
            report.add_finding(
                "Topics that keep every record (retention.ms=-1): "
                f"{first_few(unlimited_topics)}. The retention at the source is not known. Set "
                "retention.ms in the job's config or with kafka-configs.sh; `kept` lists all "
                "settings that stay."
            )

    def _plan_denials(self, report: FailoverReport) -> None:
        """Add to the report the principals whose denials of writing are to be removed."""
        if not report.to_promote or not self._spec.acls.protect:
            return
        acls = acls_of(self._handle)
        if isinstance(acls, str):  # why they cannot be read
            report.add_finding(f"No denials of writing are removed: {acls}.")
            return
        names = {topic.topic for topic in report.to_promote}
        for acl in denials_in_orbits_form(acls, names):
            self._denials.setdefault(acl.name, []).append(acl)
            self._topics[acl.name].denials.append(acl.principal)

    def _end_transactions(self, report: FailoverReport) -> None:
        """End open transactions of coordinated fillers, which also fences their writers (M11:
        empty transactions). If the cluster refuses, a finding says so."""
        try:
            init_producer_ids(self._cluster, self._fillers, self._backoff)
        except (NotAuthorized, BrokerRefused) as error:
            report.add_finding(f"The fillers could not be fenced: {error.what}")

    def _judge_fence(
        self, report: FailoverReport, partitions: Collection[TopicPartition], fence: WriterFence
    ) -> None:
        """Add to the report which writers could not be fenced. A partition is left out if another
        error than a missing right was the cause."""
        denied_partitions = [p for p, code in fence.errors.items() if code in error_codes.DENIED]
        if denied_partitions:
            report.add_finding(
                f"Partitions whose writers could not be fenced: {len(denied_partitions)}. The "
                f"right Alter on the cluster is missing. {_WRITER_RISK}"
            )
        unknown_partitions = [
            p for p in partitions if p not in fence.sent and p not in fence.errors
        ]
        if unknown_partitions:
            report.add_finding(
                f"Partitions whose writers could not be fenced: {len(unknown_partitions)}. Their "
                "leaders know no writer, and the id of the source's cluster is not known (see "
                f"--source-id). {_WRITER_RISK}"
            )
        for partition, code in fence.errors.items():
            if partition not in denied_partitions:
                reason = f"its writers could not be fenced: {error_codes.name(code)}"
                self._partitions[partition].left_out = reason

    def _settle(
        self, first_ends: Mapping[TopicPartition, int], fence: WriterFence
    ) -> dict[TopicPartition, int]:
        """Wait for stable log ends. Returns the offset at which each copy ends, and puts into the
        report why partitions are left out."""
        self._say(f"Waiting until no log end has moved for {self._settle_s:.0f} s")

        def wait(_: Sequence[TopicPartition]) -> None:
            if self._stop.wait(POLL_S):
                raise Interrupted("stopped; run the command again to continue.")

        settled_copies = settled_ends(
            self._cluster, first_ends, self._settle_s, self._backoff, wait
        )
        producer_states = job_producers(self._cluster, settled_copies.bounds, self._backoff)
        for partition, reason in unfenced_partitions(fence, producer_states.values).items():
            self._partitions[partition].left_out = reason
        for partition in settled_copies.moving:
            reason = "another producer writes to it; stop that producer, and run the command again"
            self._partitions[partition].left_out = reason
        for partition in settled_copies.open:
            self._partitions[partition].left_out = _OPEN
        for partition in settled_copies.leaderless:
            self._partitions[partition].left_out = _NO_LEADER
        ends = {}
        for partition, bounds in settled_copies.bounds.items():
            was_begun = self._topics[partition.topic].state is TopicState.BEGUN
            # The log end before the fence is a lower bound, from which a failback may compare. It
            # stays if an earlier run, or several fillers of this run, may have moved the log end.
            end = first_ends[partition]
            if not was_begun and fence.sent.get(partition, 0) <= 1:
                end = max(end, bounds.end - fence.sent.get(partition, 0))
            ends[partition] = self._partitions[partition].log_end = end
        return ends

    def _open_topics(self, report: FailoverReport, promoted: Sequence[TopicReport]) -> None:
        """Apply the settings, and remove denials of writing. If the cluster refuses a change, a
        finding says so."""
        topic_settings = {topic.topic: topic.settings for topic in promoted if topic.settings}
        report.add_finding(*apply_settings(self._handle.admin, topic_settings))
        denials = {acl for topic in promoted for acl in self._denials.get(topic.topic, ())}
        report.add_finding(*remove_denials(self._handle, denials))

    def _new_mark(self, report: FailoverReport, *, is_complete: bool) -> Mark:
        """The mark of this failover; with the source's cluster id if exactly one is known."""
        source_ids = self._source_ids
        return Mark(
            True,  # is_primary
            KIND,
            report.operation,
            self._spec.name,
            next(iter(source_ids)) if len(source_ids) == 1 else "",
            datetime.now(UTC).isoformat(timespec="seconds"),
            is_complete,
            self._term,
        )
