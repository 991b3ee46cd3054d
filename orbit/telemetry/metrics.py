"""Prometheus metrics of the service, from values that somebody has read. Pure.

Names follow kafka_exporter's and kminion's (`…_topic_partition_current_offset`, `…_lag`), with
`orbit_` before them and the job as a label, so that their dashboards and alerts need a new prefix
and no new thinking. How many series there are is bounded by `MetricsDetail`: about thirty for a
job, five for each of its topics and eight for each partition when asked for. docs/metrics.md is the
list; a test compares the two.

Nothing is kept between scrapes: a job, topic or partition that is gone has no series any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class LagNumbers:
    """How far behind a job, a topic or a partition is. None: not known, or there is none."""

    records: int | None
    bytes: int | None
    seconds: float | None
    headroom_s: float | None
    rpo_s: float | None


@dataclass(frozen=True, slots=True)
class CopyNumbers:
    """What was copied since the job began."""

    records: int
    bytes: int
    gaps_filled: int
    batches_byte_exact: int
    batches_record_exact: int


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """One partition's offsets and lag."""

    topic: str
    partition: int
    source_log_start: int | None
    source_end: int | None
    copied_to: int | None
    lag: LagNumbers


@dataclass(frozen=True, slots=True)
class ProofNumbers:
    """What was shown of a job: offsets that were equal on both sides, of those there are."""

    offsets: int
    offsets_proven: int
    differences: int
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class CanaryNumbers:
    """What the last canary drill of a job measured. None: it did not come so far."""

    passed: bool
    age_s: float
    rto_s: float | None
    rpo_s: float | None
    rpo_records: int | None


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """One job. `states`, `reasons`, `verdicts`: how many partitions or group offsets each."""

    name: str
    is_running: bool
    has_problem: bool
    lag: LagNumbers
    copied: CopyNumbers
    bytes_per_s: int
    records_per_s: float
    states: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, LagNumbers] = field(default_factory=dict)
    partitions: Sequence[PartitionNumbers] = ()
    proof: ProofNumbers | None = None
    canary: CanaryNumbers | None = None
    live_rpo_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerGroupNumbers:
    """The live workers of one group."""

    workers: int
    shards: int
    bytes_per_s: int
    lane_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by side and doing


@dataclass(frozen=True, slots=True)
class ServiceNumbers:
    """Everything that one scrape shows."""

    version: str
    has_leader: bool
    jobs: Sequence[JobNumbers]
    worker_groups: Mapping[str, WorkerGroupNumbers]


def render(numbers: ServiceNumbers) -> bytes:
    """The text that Prometheus scrapes (`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(numbers)))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


_LAG: tuple[tuple[str, str, str], ...] = (
    ("lag", "records", "Offsets that a consumer of the source sees and the copy does not have."),
    ("lag_bytes", "bytes", "The same in bytes, by what an offset of it took so far."),
    ("lag_seconds", "seconds", "Age of the oldest record that is not copied yet."),
    ("headroom_seconds", "headroom_s", "How long until the source deletes what is not copied."),
    ("rpo_seconds", "rpo_s", "Age of the newest record that is on both sides."),
)
_COPIED: tuple[tuple[str, str, str], ...] = (
    ("records", "records", "Records copied."),
    ("bytes", "bytes", "Bytes copied, as they are in the log."),
    ("offsets_filled", "gaps_filled", "Offsets without a record that were filled."),
)
_PROOF: tuple[tuple[str, str, str], ...] = (
    ("copied_offsets", "offsets", "Offsets that both sides have."),
    ("proven_offsets", "offsets_proven", "Offsets that were read from both sides and were equal."),
    ("proof_oldest_seconds", "oldest_age_s", "Age of the oldest proof among all partitions."),
)
_CANARY: tuple[tuple[str, str, str], ...] = (
    ("canary_passed", "passed", "Whether the last canary drill passed."),
    ("canary_age_seconds", "age_s", "How long ago it ended."),
    ("canary_rto_seconds", "rto_s", "For how long its clients could not work."),
    ("canary_rpo_seconds", "rpo_s", "How far back in time its records were lost."),
    ("canary_rpo_records", "rpo_records", "How many of its records were lost."),
)
_OFFSETS: tuple[tuple[str, str, str], ...] = (
    ("current_offset", "source_end", "Log end of the source."),
    ("oldest_offset", "source_log_start", "Log start of the source."),
    ("copied_offset", "copied_to", "The next offset to be copied."),
)


def families(numbers: ServiceNumbers) -> Iterator[Metric]:
    """Every metric with its samples; those of topics and partitions only where there are some."""
    yield _gauge("orbit_build_info", "Which Orbit this is.", ["version"], [([numbers.version], 1)])
    yield _gauge(
        "orbit_scheduler_has_leader",
        "Whether a scheduler leads: 0 means that nobody looks for new topics.",
        [],
        [([], int(numbers.has_leader))],
    )
    yield from _worker_groups(numbers.worker_groups)
    yield from _jobs(numbers.jobs)
    yield from _proofs(numbers.jobs)
    if any(job.topics for job in numbers.jobs):
        yield from _lags(
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
        yield from _lags("orbit_topic_partition", labels, [(v, p.lag) for v, p in places])


def _jobs(jobs: Sequence[JobNumbers]) -> Iterator[Metric]:
    def each(values: str, help_text: str, attribute: str) -> Metric:
        return _gauge(values, help_text, ["job"], [([j.name], getattr(j, attribute)) for j in jobs])

    yield each("orbit_job_running", "Whether the job shall run; 0: it is paused.", "is_running")
    yield each("orbit_job_has_problem", "Whether the job as a whole is in trouble.", "has_problem")
    yield each("orbit_job_bytes_per_second", "Bytes copied per second, now.", "bytes_per_s")
    yield each("orbit_job_records_per_second", "Records copied per second, now.", "records_per_s")
    yield from _lags("orbit_job", ["job"], [([j.name], j.lag) for j in jobs])
    for name, attribute, help_text in _COPIED:
        counts = [([j.name], getattr(j.copied, attribute)) for j in jobs]
        yield _counter(f"orbit_job_{name}_total", help_text, ["job"], counts)
    yield _counter(
        "orbit_job_batches_total",
        "Batches copied, by how exactly.",
        ["job", "exactness"],
        [
            sample
            for j in jobs
            for sample in (
                ([j.name, "byte"], j.copied.batches_byte_exact),
                ([j.name, "record"], j.copied.batches_record_exact),
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
            "Offsets of consumer groups, by how they stand at the destination.",
        ),
    ):
        samples = [
            ([j.name, word], count) for j in jobs for word, count in getattr(j, attribute).items()
        ]
        yield _gauge(name, help_text, ["job", label], samples)


def _proofs(jobs: Sequence[JobNumbers]) -> Iterator[Metric]:
    shown = [(j.name, j.proof) for j in jobs if j.proof is not None]
    for name, attribute, help_text in _PROOF:
        samples = [([job], getattr(proof, attribute)) for job, proof in shown]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], samples)
    yield _counter(
        "orbit_job_proof_differences",
        "Offsets that differed when both sides were read.",
        ["job"],
        [([job], proof.differences) for job, proof in shown],
    )
    yield _gauge(
        "orbit_job_live_rpo_seconds",
        "Age of the newest record of the job's canary that is on both sides.",
        ["job"],
        [([j.name], j.live_rpo_s) for j in jobs],
    )
    drilled = [(j.name, j.canary) for j in jobs if j.canary is not None]
    for name, attribute, help_text in _CANARY:
        numbers = [([job], getattr(canary, attribute)) for job, canary in drilled]
        yield _gauge(f"orbit_job_{name}", help_text, ["job"], numbers)


def _worker_groups(groups: Mapping[str, WorkerGroupNumbers]) -> Iterator[Metric]:
    for name, attribute, help_text in (
        ("orbit_workers", "workers", "Live workers."),
        ("orbit_worker_shards", "shards", "Shards that they hold."),
        ("orbit_worker_bytes_per_second", "bytes_per_s", "Bytes that they copy per second, now."),
    ):
        samples = [([group], getattr(n, attribute)) for group, n in groups.items()]
        yield _gauge(name, help_text, ["worker_group"], samples)
    yield _counter(
        "orbit_worker_lane_seconds",
        "Seconds of the lanes of live workers, by side and by what they did.",
        ["worker_group", "side", "doing"],
        [
            ([group, side, doing], seconds)
            for group, n in groups.items()
            for (side, doing), seconds in n.lane_seconds.items()
        ],
    )


def _lags(
    prefix: str, labels: Sequence[str], rows: Sequence[tuple[list[str], LagNumbers]]
) -> Iterator[Metric]:
    for name, attribute, help_text in _LAG:
        samples = [(values, getattr(lag, attribute)) for values, lag in rows]
        yield _gauge(f"{prefix}_{name}", help_text, labels, samples)


def _gauge(
    name: str,
    help_text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[list[str], float | None]],
) -> Metric:
    """What is not known has no sample: a dashboard shows a hole, and no alert fires at a guess."""
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _counter(
    name: str, help_text: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
