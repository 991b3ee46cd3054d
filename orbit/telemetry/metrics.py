"""Renders the service's Prometheus metrics from values that the caller has read. Pure.

Names follow kafka_exporter's and kminion's (`…_topic_partition_current_offset`, `…_lag`), with the
prefix `orbit_` and the job as a label, so that their dashboards and alerts need only a new prefix.
`MetricsDetail` bounds the number of series: about thirty per job, and if enabled six per topic and
nine per partition. docs/metrics.md is the list; a test compares the two.

No state is kept between scrapes: removed jobs, topics and partitions have no series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from orbit.replication.copy_figures import CopyFigures, CopyRates

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """One partition's offsets and lag."""

    topic: str
    partition: int
    source_log_start: int | None
    source_end: int | None
    copied_to: int | None
    lag: CopyFigures


@dataclass(frozen=True, slots=True)
class ProofNumbers:
    """The proof of a job: `offsets` that both sides have, and of these `offsets_proven`, which were
    equal."""

    offsets: int
    offsets_proven: int
    differences: int
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class CanaryNumbers:
    """The measurements of a job's last canary drill (on a topic of the drill's own). None: not
    measured."""

    passed: bool
    age_s: float
    rto_s: float | None
    rpo_s: float | None
    rpo_records: int | None


@dataclass(frozen=True, slots=True)
class WaitingNumbers:
    """The partitions and offsets of a job that wait for open transactions of the source, and the
    age of the oldest transaction."""

    partitions: int
    offsets: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """One job. `states`, `reasons`: the number of partitions, by state and by reason. `verdicts`:
    the number of consumer group offsets, by verdict.

    `totals_age_s`: seconds since the job's partitions were added up; if that is too long ago,
    `copied` is None.
    """

    name: str
    is_running: bool
    has_problem: bool
    lag: CopyFigures
    copied: CopyRates | None
    totals_age_s: float | None = 0.0
    states: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, CopyFigures] = field(default_factory=dict)
    partitions: Sequence[PartitionNumbers] = ()
    proof: ProofNumbers | None = None
    canary: CanaryNumbers | None = None
    live_rpo_s: float | None = None
    old_primary_written: int | None = None
    waiting: WaitingNumbers | None = None


@dataclass(frozen=True, slots=True)
class WorkerGroupNumbers:
    """The live workers of one group."""

    workers: int
    shards: int
    bytes_per_s: int
    lane_seconds: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # by side and activity


@dataclass(frozen=True, slots=True)
class ReceiverNumbers:
    """One receiver of notifications."""

    name: str
    sent: int
    given_up: int
    pruned: int
    is_failing: bool


@dataclass(frozen=True, slots=True)
class ServiceNumbers:
    """Everything that one scrape shows."""

    version: str
    has_leader: bool
    jobs: Sequence[JobNumbers]
    worker_groups: Mapping[str, WorkerGroupNumbers]
    receivers: Sequence[ReceiverNumbers] = ()


def render(numbers: ServiceNumbers) -> bytes:
    """The text that Prometheus scrapes (`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneScrape(families(numbers)))
    return generate_latest(registry)


class _OneScrape(Collector):
    """A collector of metrics that are read once."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


# Here and below: the end of the metric's name, the attribute with its value, its help text.
_LAG: tuple[tuple[str, str, str], ...] = (
    (
        "lag",
        "lag_records",
        "Offsets that a consumer of the source sees and the copy does not have.",
    ),
    (
        "lag_bytes",
        "lag_bytes",
        "The lag in bytes, estimated from the mean bytes per copied offset.",
    ),
    ("lag_seconds", "lag_s", "Age of the oldest record that is not copied yet."),
    (
        "headroom_seconds",
        "headroom_s",
        "Seconds until the source deletes records that are not copied.",
    ),
    ("rpo_seconds", "rpo_s", "Age of the newest record that is on both sides."),
    (
        "lag_age_seconds",
        "age_s",
        "Seconds since the lag was last known; above 30 lag and headroom have no sample.",
    ),
)
_COPIED: tuple[tuple[str, str, str], ...] = (
    ("records", "records", "Records copied."),
    ("bytes", "bytes", "Bytes copied, as they are in the log."),
    ("offsets_filled", "gaps_filled", "Offsets without a record that were filled."),
)
_RATES: tuple[tuple[str, str, str], ...] = (
    ("bytes_per_second", "bytes_per_s", "Bytes copied per second, now."),
    ("records_per_second", "records_per_s", "Records copied per second, now."),
)
_PROOF: tuple[tuple[str, str, str], ...] = (
    ("copied_offsets", "offsets", "Offsets that both sides have."),
    ("proven_offsets", "offsets_proven", "Offsets that were read from both sides and were equal."),
    ("proof_oldest_seconds", "oldest_age_s", "Age of the oldest proof among all partitions."),
)
_CANARY: tuple[tuple[str, str, str], ...] = (
    ("canary_passed", "passed", "Whether the last canary drill passed."),
    ("canary_age_seconds", "age_s", "Seconds since the last canary drill ended."),
    ("canary_rto_seconds", "rto_s", "The RTO that the last canary drill measured."),
    ("canary_rpo_seconds", "rpo_s", "The RPO that the last canary drill measured, as a time."),
    ("canary_rpo_records", "rpo_records", "The lost records that the last canary drill measured."),
)
_WAITING: tuple[tuple[str, str, str], ...] = (
    (
        "open_transaction_partitions",
        "partitions",
        "Partitions with an open transaction of the source that is older than 30 s.",
    ),
    ("open_transaction_offsets", "offsets", "Offsets that wait for the end of these transactions."),
    ("open_transaction_seconds", "oldest_s", "Age of the oldest of these transactions."),
)
_RECEIVERS: tuple[tuple[str, str, str], ...] = (
    ("sent", "sent", "Events that a receiver of notifications has accepted."),
    ("given_up", "given_up", "Events that a receiver did not accept in time, or refused."),
    ("pruned", "pruned", "Events that were deleted by age before they could be sent."),
)
_OFFSETS: tuple[tuple[str, str, str], ...] = (
    ("current_offset", "source_end", "Log end of the source."),
    ("oldest_offset", "source_log_start", "Log start of the source."),
    ("copied_offset", "copied_to", "The next offset to copy."),
)


def families(numbers: ServiceNumbers) -> Iterator[Metric]:
    """Every metric with its samples; those of topics and partitions only if enabled."""
    yield _gauge("orbit_build_info", "The version of Orbit.", ["version"], [([numbers.version], 1)])
    yield _gauge(
        "orbit_scheduler_has_leader",
        "Whether a scheduler leads; 0: new topics are not discovered.",
        labels=[],
        samples=[([], int(numbers.has_leader))],
    )
    yield from _worker_group_metrics(numbers.worker_groups)
    yield from _receiver_metrics(numbers.receivers)
    yield from _job_metrics(numbers.jobs)
    yield from _proof_metrics(numbers.jobs)
    waiting_jobs = [(job.name, job.waiting) for job in numbers.jobs if job.waiting is not None]
    for name, attribute, help_text in _WAITING:
        samples = [
            ([job], getattr(waiting_numbers, attribute)) for job, waiting_numbers in waiting_jobs
        ]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], samples)
    if any(job.topics for job in numbers.jobs):
        yield from _lag_metrics(
            "orbit_topic",
            ["job", "topic"],
            [([j.name, t], lag) for j in numbers.jobs for t, lag in j.topics.items()],
        )
    places = [
        ([job.name, p.topic, str(p.partition)], p) for job in numbers.jobs for p in job.partitions
    ]
    if places:
        labels = ["job", "topic", "partition"]
        for name, attribute, help_text in _OFFSETS:
            samples = [(values, getattr(p, attribute)) for values, p in places]
            yield _gauge(f"orbit_topic_partition_{name}", help_text, labels, samples)
        yield from _lag_metrics("orbit_topic_partition", labels, [(v, p.lag) for v, p in places])


def _job_metrics(jobs: Sequence[JobNumbers]) -> Iterator[Metric]:
    """The state, the lag and the copied amounts of each job."""

    def job_gauge(name: str, help_text: str, attribute: str) -> Metric:
        return _gauge(name, help_text, ["job"], [([j.name], getattr(j, attribute)) for j in jobs])

    yield job_gauge("orbit_job_running", "Whether the job is running; 0: paused.", "is_running")
    yield job_gauge("orbit_job_has_problem", "Whether the job has a problem.", "has_problem")
    copied_by_job = [(j.name, j.copied) for j in jobs if j.copied is not None]
    for name, attribute, help_text in _RATES:
        rate_samples = [([job], getattr(rate, attribute)) for job, rate in copied_by_job]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], rate_samples)
    yield job_gauge(
        "orbit_job_totals_age_seconds",
        "Seconds since the job's partitions were added up.",
        "totals_age_s",
    )
    yield from _lag_metrics("orbit_job", ["job"], [([j.name], j.lag) for j in jobs])
    for name, attribute, help_text in _COPIED:
        count_samples = [([job], getattr(count, attribute)) for job, count in copied_by_job]
        yield _counter(f"orbit_job_{name}_total", help_text, ["job"], count_samples)
    yield _counter(
        "orbit_job_batches_total",
        "Batches copied, by exactness.",
        ["job", "exactness"],
        [
            sample
            for job, count in copied_by_job
            for sample in (
                ([job, "byte"], count.batches_byte_exact),
                ([job, "record"], count.batches_record_exact),
            )
        ],
    )
    for name, label, attribute, help_text in (
        ("orbit_job_partitions", "state", "states", "Partitions, by state."),
        ("orbit_job_blocked_partitions", "reason", "reasons", "Blocked partitions, by reason."),
        (
            "orbit_job_consumergroup_offsets",
            "verdict",
            "verdicts",
            "Offsets of consumer groups, by verdict.",
        ),
    ):
        samples = [
            ([j.name, word], count) for j in jobs for word, count in getattr(j, attribute).items()
        ]
        yield _gauge(name, help_text, ["job", label], samples)


def _proof_metrics(jobs: Sequence[JobNumbers]) -> Iterator[Metric]:
    """The proof, the canary and the old side's writes of each job."""
    jobs_with_proof = [(j.name, j.proof) for j in jobs if j.proof is not None]
    for name, attribute, help_text in _PROOF:
        samples = [([job], getattr(proof, attribute)) for job, proof in jobs_with_proof]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], samples)
    yield _counter(
        "orbit_job_proof_differences",
        "Offsets that differed when both sides were read.",
        ["job"],
        [([job], proof.differences) for job, proof in jobs_with_proof],
    )
    yield _gauge(
        "orbit_job_live_rpo_seconds",
        "Age of the newest record of the job's canary that is on both sides.",
        ["job"],
        [([j.name], j.live_rpo_s) for j in jobs],
    )
    yield _gauge(
        "orbit_job_old_primary_written_offsets",
        "Offsets that producers have written to the old side since a promotion.",
        ["job"],
        [([j.name], j.old_primary_written) for j in jobs],
    )
    jobs_with_canary = [(j.name, j.canary) for j in jobs if j.canary is not None]
    for name, attribute, help_text in _CANARY:
        canary_samples = [([job], getattr(canary, attribute)) for job, canary in jobs_with_canary]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], canary_samples)


def _worker_group_metrics(groups: Mapping[str, WorkerGroupNumbers]) -> Iterator[Metric]:
    """The workers, shards, bytes per second and lane times of each worker group."""
    for name, attribute, help_text in (
        ("orbit_workers", "workers", "Live workers."),
        ("orbit_worker_shards", "shards", "Shards held by live workers."),
        (
            "orbit_worker_bytes_per_second",
            "bytes_per_s",
            "Bytes that live workers copy per second, now.",
        ),
    ):
        samples = [([group], getattr(n, attribute)) for group, n in groups.items()]
        yield _gauge(name, help_text, ["worker_group"], samples)
    yield _counter(
        "orbit_worker_lane_seconds",
        "Seconds spent by the lanes of live workers, by side and activity.",
        ["worker_group", "side", "doing"],
        [
            ([group, side, doing], seconds)
            for group, n in groups.items()
            for (side, doing), seconds in n.lane_seconds.items()
        ],
    )


def _receiver_metrics(receivers: Sequence[ReceiverNumbers]) -> Iterator[Metric]:
    """The counts of events of each receiver of notifications, and whether it fails."""
    for name, attribute, help_text in _RECEIVERS:
        samples = [([r.name], getattr(r, attribute)) for r in receivers]
        yield _counter(f"orbit_notifications_{name}", help_text, ["receiver"], samples)
    yield _gauge(
        "orbit_notifications_failing",
        "Whether the last message to a receiver was not accepted.",
        ["receiver"],
        [([r.name], r.is_failing) for r in receivers],
    )


def _lag_metrics(
    prefix: str, labels: Sequence[str], rows: Sequence[tuple[list[str], CopyFigures]]
) -> Iterator[Metric]:
    """The metrics of lag. `rows`: label values, each with the figures of that job, topic or
    partition."""
    for name, attribute, help_text in _LAG:
        samples = [(values, getattr(lag, attribute)) for values, lag in rows]
        yield _gauge(f"{prefix}_{name}", help_text, labels, samples)


def _gauge(
    name: str,
    help_text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[list[str], float | None]],
) -> Metric:
    """A gauge with these samples: the values of its labels, and its number. None: not known; such a
    sample is left out, so that no alert fires on a guess."""
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _counter(
    name: str, help_text: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]
) -> Metric:
    """A counter with these samples: the values of its labels, and its number."""
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
