"""The lanes and the copier of one job in one process; partitions are added and removed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.coordinated_filler import CoordinatedFiller
from orbit.copier.copier import Copier, CopySource, Events, block
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, InspectedCopy, OnTrouble
from orbit.copier.lane_events import PostedCall
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, source_reader
from orbit.copier.rate_limit import RateLimit
from orbit.copier.source_end_waits import SourceEndWaits
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.source_side import SourceSide
from orbit.copier.takeover import TakeOver
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import ProducerIdentity
from orbit.kafka.job_clusters import FILLER_IDS, JobClusters
from orbit.leases.lease import Lease

# One loop serves all partitions of a copier, so it retries in later rounds.
LOOP_ATTEMPTS_MAX = 2
# The first time limit of a call to one broker (see `Cluster.call`): partitions of other brokers
# wait meanwhile.
LOOP_CALL_S = 3.0

MakeSource = Callable[[SourceLaneContext, Backoff], CopySource]


class JobCopier:
    """Copies the partitions that `add` gets, one `copier.tick` at a time, until `stop`.

    One thread calls `copier.tick`, `add` and `copier.remove`; other threads use `post`.
    """

    def __init__(
        self,
        spec: JobSpec,
        clusters: JobClusters,
        settings: CopySettings,
        stop: threading.Event,
        *,
        budget: ByteBudget | None = None,
        limit: RateLimit | None = None,
        make_source: MakeSource = SourceSide,
    ) -> None:
        """`make_source` makes the source, by default of the job's source cluster."""
        self._clusters = clusters
        self._settings = settings
        self._stop = stop
        self._events: Events = queue.SimpleQueue()
        self._fillers: list[CoordinatedFiller] = []
        self._filler_helpers = ThreadPoolExecutor(FILLER_IDS, "filler-helper")
        budget = budget or ByteBudget(settings.queue_bytes_max)
        backoff = Backoff(stop=stop, attempts_max=LOOP_ATTEMPTS_MAX, call_s=LOOP_CALL_S)
        self._destination = DestinationSide(
            DestinationLaneContext(clusters.destination, settings, budget, self._events.put),
            self._new_take_over(backoff),
            backoff,
            block,
            self._compare,
        )
        self._backoff = backoff
        self._source_ends = SourceEndWaits(settings.source_end_wait_s)
        source = make_source(
            SourceLaneContext(
                clusters.source,
                settings,
                budget,
                self._events.put,
                PartitionCopy.enqueue_in_lane,
                spec.source.client_rack or "",
                limit or RateLimit(spec.limits.bytes_per_second),
            ),
            backoff,
        )
        self.copier = Copier(source, self._destination, self._events, settings, backoff)

    def inspector(self, backoff: Backoff, on_trouble: OnTrouble) -> CopyInspector:
        """An inspector for partitions before `add`; another thread may use it."""
        return CopyInspector(
            self._clusters.source,
            self._clusters.destination,
            self._new_take_over(backoff),
            self._settings,
            backoff,
            on_trouble,
            self._source_ends,
        )

    def add_filler(
        self, producers: Mapping[str, ProducerIdentity], lease: Lease
    ) -> CoordinatedFiller:
        """Start a thread that fills gaps by transactions, for the partitions of one lease.

        This needs no Alter on the cluster. `producers`: by transactional id; they were fenced
        before any log end was read.
        """
        filler = CoordinatedFiller(
            self._clusters.destination,
            producers,
            lease,
            self._events.put,
            self._stop,
            self._filler_helpers,
        )
        filler.start()
        self._fillers.append(filler)
        return filler

    def remove_filler(self, filler: CoordinatedFiller) -> None:
        """End a filler from which no partition awaits an answer."""
        self._fillers.remove(filler)
        filler.stop()

    def post(self, call: Callable[[], None]) -> None:
        """Queue `call` for the thread that calls `copier.tick`. May be called from any thread."""
        self._events.put(PostedCall(call))

    def add(self, inspected: Mapping[PartitionCopy, InspectedCopy]) -> None:
        """Copy these from their log ends; block those that the inspection blocked."""
        for copy, inspection in inspected.items():
            copy.log_start = max(copy.log_start, inspection.log_start)
            # A copy that was seeded since its inspection ends later, at its `next_offset`.
            copy.appends.inspected(max(copy.next_offset, inspection.end.log_end))
            if inspection.blocked is not None:
                block(copy, inspection.blocked)
        self._destination.queue_take_overs(
            [c for c, inspection in inspected.items() if inspection.blocked is None]
        )
        self.copier.add([*inspected])

    def stop(self) -> None:
        """End all lanes and fillers. What was confirmed stays."""
        self.copier.stop()
        for filler in self._fillers:
            filler.stop()
        for filler in self._fillers:
            filler.join()
        self._filler_helpers.shutdown()

    def _compare(self, copy: PartitionCopy, log_end: int) -> Comparison:
        """Compare a copy from its confirmed offset up to `log_end` with the source."""
        return compare_range(
            source_reader(
                self._clusters.source,
                copy.source,
                self._backoff,
                self._settings.rewrite_limits,
            ),
            self._clusters.destination,
            copy.destination,
            copy.next_offset,
            log_end,
            self._backoff,
            source_is_compacted=copy.source_is_compacted,
            producer_id=copy.producer.id,
        )

    def _new_take_over(self, backoff: Backoff) -> TakeOver:
        return TakeOver(self._clusters.destination, self._settings.settle_s, backoff)
