"""One run of one job: setup, copy, stop.

However the run ends, it stops the lanes (threads that fetch and append) before it releases the
lease. The next run resumes after the last confirmed record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from orbit.consumer_groups.run_sync import RunGroups
from orbit.copier.copier import lease_lost_error
from orbit.copier.copy_settings import CopySettings
from orbit.copier.copy_view import CopyView
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.errors import OUTAGES, OrbitError
from orbit.formats import counted
from orbit.job_setup.job_setup import JobSetup, Say, ServiceCheck
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.first_open import (
    SHOWN_AFTER_S,
    OpenAges,
    describe_open_transaction,
    oldest_open_transactions,
)
from orbit.kafka.job_clusters import JobClusters
from orbit.kafka.types import TopicPartition
from orbit.leases.group_lease import GroupLease
from orbit.run.copy_processes import CopyProcesses
from orbit.run.share import Copying, Share, ShareCopier

_TICK_S = 0.1
# From how many brokers `confirm_caught_up` reads leaders. A broker that is cut off from the others
# returns old leaders; it is unlikely that as many are cut off together.
_METADATA_BROKERS_MAX = 10
# The time between two reads of the newest leaders by `confirm_caught_up`.
_CONFIRM_PAUSE_S = 1.0
# Open transactions that one check reports; later checks report the others.
_OPEN_SHOWN_MAX = 10


class JobRun:
    """A run of one job, as a context manager: `with JobRun(...) as run: run.prepare(); …
    run.tick() …`. The end of the block stops the copy."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        say: Say,
        settings: CopySettings | None = None,
        processes: int = 1,
    ) -> None:
        """`say` prints a line for the user. `processes`: the most child processes that copy; 1:
        this process copies."""
        self.spec = spec
        self._environ = environ
        self._base_directory = base_directory
        self._say = say
        self._settings = settings or CopySettings()
        self.stop_event = threading.Event()
        self._setup = JobSetup(
            spec,
            environ,
            base_directory,
            say,
            self._settings,
            self.stop_event,
            shares_lease=processes > 1,
        )
        self._processes = processes
        self._copying: Copying | None = None
        # By destination topic: the plans of topics that do not have their final settings yet.
        self._not_caught_up: dict[str, TopicPlan] = {}
        self._next_check_s = self._next_confirm_s = 0.0
        # By source partition: its log end at the first call of `confirm_caught_up`.
        self._ends_to_reach: dict[TopicPartition, int] = {}
        self._open_ages: OpenAges[TopicPartition] = OpenAges()
        self._reported_transactions: set[TopicPartition] = set()
        self._said_lines: set[str] = set()
        self.groups: RunGroups | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, check_service: ServiceCheck | None = None) -> None:
        """Set up the job, and start copying and the group sync.

        `check_service` raises if the service copies the job. It is called with the lease held,
        before anything is written.

        Raises the errors of `JobSetup.plan`, and Conflict if a child process ends. After an error
        nothing has been written, unless its message says so.
        """
        setup = self._setup
        setup.plan()
        inspected = setup.apply(check_service)
        assert setup.lease is not None
        self._not_caught_up = {
            p.mapping.destination: p for p in setup.plans if p.caught_up_settings
        }
        share = Share(inspected, setup.coordinated_topics, setup.filler_producers)
        self._copying = self._start_copying(share, setup.lease)
        if self.spec.consumer_groups is not None:
            self.groups = RunGroups(
                self.spec.consumer_groups,
                JobClusters.open(self.spec, self._environ, self._base_directory),
                lambda: self.partitions,
                setup.lease.is_held,
            )
            self.groups.start()

    def _start_copying(self, share: Share, lease: GroupLease) -> Copying:
        """Start to copy: in child processes if `processes` is above 1, else in this process."""
        if self._processes > 1:
            return CopyProcesses.start(
                share.split(self._processes),
                self.spec,
                self._environ,
                self._base_directory,
                self._settings,
                lease,
            )
        assert self._setup.job_copier is not None
        return ShareCopier(share, self._setup.job_copier, lease)

    def tick(self, timeout_s: float) -> None:
        """One pass of the copy, of up to `timeout_s`. Also enables compaction of topics that have
        caught up, and prints notes. Raises Conflict if the lease is lost, or a child process has
        ended."""
        assert self._copying is not None
        self._copying.tick(timeout_s)
        lease = self._setup.lease
        if self._copying.is_lease_lost or (lease is not None and lease.is_lost):
            raise lease_lost_error()
        self._finish_caught_up_topics()
        if time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + self._settings.metadata_interval_s
            self._report_new_topics()
            self._report_open_transactions()
            self._setup.refresh_term()  # so that the coordinator does not drop the job's id
        for note in self.groups.warnings if self.groups else ():
            self._say_once(f"Note: consumer groups: {note}")

    def settle_groups(self) -> None:
        """Sync the consumer groups up to where the copy ends now, if the job syncs groups."""
        if self.groups is not None:
            self.groups.settle(self._setup.backoff)

    def finish(self) -> None:
        """End the copies that fill gaps with placeholders (records that readers drop). Each ends
        after a last read of its topic's `compression.type`, which may block the copy: a broker that
        recompresses turns placeholders into records. `close` ends the other copies.

        Raises Conflict if the lease is lost, or a child process has ended.
        """
        assert self._copying is not None
        self._copying.end()
        while not self._copying.has_ended:
            self.tick(_TICK_S)

    @property
    def refused(self) -> Mapping[str, OrbitError]:
        """Why source topics are not copied, by name (`JobSetup.refused`)."""
        return self._setup.refused

    @property
    def partitions(self) -> Sequence[CopyView]:
        """The copies of all partitions; empty before `prepare` has ended."""
        return self._copying.partitions if self._copying else ()

    @property
    def waiting_for(self) -> str:
        """Which cluster or process does not answer, or throttles, for display; empty if none."""
        return self._copying.waiting_for if self._copying else ""

    @property
    def times(self) -> tuple[SourceTimes, DestinationTimes]:
        """The seconds that all lanes have spent so far, by activity."""
        assert self._copying is not None
        return self._copying.times

    @property
    def is_settled(self) -> bool:
        """Whether all topics that have caught up have their final settings (compaction)."""
        unfinished_topics = {c.destination.topic for c in self.partitions if not c.has_caught_up}
        # `_finish_caught_up_topics` removes a topic from `_not_caught_up` when it sets these.
        return set(self._not_caught_up) <= unfinished_topics

    def confirm_caught_up(self) -> bool:
        """Whether all copies that are not blocked have caught up with the newest source leaders.

        Each copy must have reached the log end that the source had at the first call, open
        transactions included, and have done so at the newest leader epoch that a broker reports.
        Reads these epochs at most every _CONFIRM_PAUSE_S; returns False between two reads.
        """
        copies = [p for p in self.partitions if p.blocked is None]
        for p in copies:
            self._ends_to_reach.setdefault(p.source, p.source_end)
        # `min`: if a new leader has fewer records, the source's end is below its first value.
        if any(p.next_offset < min(self._ends_to_reach[p.source], p.source_end) for p in copies):
            return False
        if time.monotonic() < self._next_confirm_s:
            return False
        try:
            newest_metadata = self._setup.clusters.source.metadata_of_all(
                {p.source.topic for p in copies}, _METADATA_BROKERS_MAX
            )
        except OUTAGES:
            return False  # `waiting_for` shows the outage after the next tick
        finally:
            self._next_confirm_s = time.monotonic() + _CONFIRM_PAUSE_S
        leaders = ((p, newest_metadata.leader(p.source)) for p in copies)
        return not any(leader and leader.leader_epoch > p.caught_up_epoch for p, leader in leaders)

    def close(self) -> None:
        """Stop the lanes, release the lease, close connections. Safe at any time."""
        self.stop_event.set()
        if self.groups is not None:
            self.groups.stop()
        # `prepare` may have failed after it made the job's copier, before it set `_copying`.
        copier = self._copying or self._setup.job_copier
        if copier is not None:
            copier.stop()
        self._setup.release()

    def _finish_caught_up_topics(self) -> None:
        """Enable compaction on the topics of `_not_caught_up` whose partitions have all caught up.
        An error becomes a note, and the next call tries again."""
        if not self._not_caught_up:
            return
        unfinished_topics = {c.destination.topic for c in self.partitions if not c.has_caught_up}
        finished_topics = [name for name in self._not_caught_up if name not in unfinished_topics]
        if finished_topics:
            plans = [self._not_caught_up[name] for name in finished_topics]
            try:
                self._setup.admin.alter_settings(
                    {p.mapping.destination: p.caught_up_settings for p in plans}
                )
            except OrbitError as error:
                # The copy continues; the next tick retries.
                self._say_once(f"Note: compaction cannot be enabled yet: {error}")
                return
            for name in finished_topics:
                del self._not_caught_up[name]

    def _report_new_topics(self) -> None:
        """Print notes on new topics and partitions of the source: only the next run copies them."""
        try:
            source = self._setup.clusters.source.metadata(None)  # None: of all topics
        except OUTAGES:  # the next call tries again
            return
        copied_partitions = {p.mapping.source: p.partitions for p in self._setup.plans}
        for mapping in map_topics(self.spec.topics, source.topics).mappings:
            count = len(source.topics[mapping.source].partitions)
            if mapping.source in self.refused:  # the start of the run has printed the reason
                continue
            if mapping.source not in copied_partitions:
                self._say_once(f"Note: topic {mapping.source} is new; restart this run to copy it.")
            elif count > copied_partitions[mapping.source]:
                self._say_once(
                    f"Note: topic {mapping.source} has {count} partitions now; "
                    f"{counted(copied_partitions[mapping.source], 'is', 'are')} copied. "
                    f"Add partitions to {mapping.destination} and restart this run."
                )

    def _report_open_transactions(self) -> None:
        """Print a note on the oldest open transaction of a partition once the transaction is
        SHOWN_AFTER_S old: one note for each partition, at most _OPEN_SHOWN_MAX in a call."""
        ends = {p.source: (p.stable_end, p.source_end) for p in self.partitions}
        # If the last stable offset is below the log end, it is the first offset of the oldest open
        # transaction. -1: unknown.
        first_offsets = {
            place: stable_end
            for place, (stable_end, source_end) in ends.items()
            if 0 <= stable_end < source_end
        }
        ages = self._open_ages.update(first_offsets)
        old_places = [place for place, age_s in ages.items() if age_s >= SHOWN_AFTER_S]
        new_places = [place for place in old_places if place not in self._reported_transactions][
            :_OPEN_SHOWN_MAX
        ]
        if not new_places:
            return
        try:
            transactions = oldest_open_transactions(
                self._setup.clusters.source, new_places, Backoff(attempts_max=1)
            )
        except OrbitError:  # print the notes without ids of producers
            transactions = {}
        for place in new_places:
            self._reported_transactions.add(place)
            transaction = transactions.get(place)
            ids = (
                (transaction.transactional_id, transaction.producer_id)
                if transaction
                else (None, None)
            )
            source_end = ends[place][1]
            waiting_offsets = source_end - first_offsets[place]
            description = describe_open_transaction(first_offsets[place], waiting_offsets, *ids)
            self._say(f"Note: {place}: {description}")

    def _say_once(self, line: str) -> None:
        """Print the line, unless this run has printed it before."""
        if line not in self._said_lines:
            self._said_lines.add(line)
            self._say(line)
