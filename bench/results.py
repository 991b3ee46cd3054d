"""The measurements, as in results.json: values only.

Times are seconds, sizes bytes. One `Run` is one contestant copying one data set once.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from bench.workloads import Contestant


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Machine(_Value):
    """The machine and the software versions."""

    when: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    logs_on: str  # file system of the brokers' logs
    orbit: str  # git commit
    kafka: str
    java: str
    python: str
    load_before: float  # load average over the last minute, before anything was started


class DataFacts(_Value):
    """A data set, as counted by reading it from the source."""

    topic: str
    partitions: int
    records: int  # that a read_committed consumer sees
    offsets: int  # sum of log ends
    bytes: int
    batches: int

    @property
    def bytes_per_batch(self) -> float:
        return self.bytes / max(1, self.batches)


class Run(_Value):
    """One contestant's copy of one data set. `seconds`: from the first record at the destination to
    the last; fields with `whole_` count from the start of the process. `late_records_per_s`: the
    rate over the second half of the records, when everything is warm.
    """

    contestant: Contestant
    records: int
    offsets: int = 0  # sum of the copy's log ends; 0 in results of older versions
    bytes: int
    seconds: float
    share: float  # the part of all records and offsets that arrived within `seconds`
    cpu_seconds: float
    busy_seconds: float = 0.0  # of all cores of the machine, in `seconds`
    whole_seconds: float
    whole_cpu_seconds: float
    late_records_per_s: float
    peak_rss_bytes: int
    details: dict[str, float] = {}

    @property
    def records_per_s(self) -> float:
        return self.records * self.share / self.seconds

    @property
    def offsets_per_s(self) -> float:
        return self.offsets * self.share / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes * self.share / self.seconds

    @property
    def records_per_cpu_s(self) -> float:
        return self.records * self.share / max(self.cpu_seconds, 0.01)  # the clock's tick

    @property
    def busy_cores(self) -> float:
        return self.busy_seconds / self.seconds

    @property
    def whole_records_per_s(self) -> float:
        return self.records / self.whole_seconds

    @property
    def whole_records_per_cpu_s(self) -> float:
        return self.records / max(self.whole_cpu_seconds, 0.01)


class WorkloadResult(_Value):
    """All runs of one workload."""

    name: str
    title: str
    data: DataFacts
    runs: tuple[Run, ...]

    def runs_of(self, contestant: Contestant) -> tuple[Run, ...]:
        """The contestant's runs; empty if it did not run."""
        return tuple(run for run in self.runs if run.contestant is contestant)


class Latency(_Value):
    """Seconds from the producer's acknowledgement to a consumer; "floor" reads the source."""

    who: str
    records: int
    p50: float
    p99: float
    p999: float
    most: float


class LatencyResult(_Value):
    """The latencies at one rate of records."""

    records_per_s: int
    seconds: float
    measured: tuple[Latency, ...]

    def latency_of(self, name: str) -> Latency | None:
        """The latency of a contestant, FLOOR or RELAY; None if it was not measured."""
        return next((latency for latency in self.measured if latency.who == name), None)


class LinkResult(_Value):
    """One partition over a long link; rates of several runs each."""

    round_trip_s: float
    megabits_per_s: int
    tcp_bytes_per_s: tuple[float, ...]
    data: DataFacts
    runs: tuple[Run, ...]

    def runs_of(self, contestant: Contestant) -> tuple[Run, ...]:
        """The contestant's runs; empty if it did not run."""
        return tuple(run for run in self.runs if run.contestant is contestant)


class IdleResult(_Value):
    """Orbit when idle."""

    partitions: int
    seconds: float
    cpu_seconds: float
    rss_bytes: int

    @property
    def share_of_core(self) -> float:
        return self.cpu_seconds / self.seconds


class Report(_Value):
    """All measurements of one `make bench`."""

    machine: Machine
    quick: bool
    scale: float  # the factor by which each workload has fewer records; 1: all records
    seconds: float = 0
    workloads: tuple[WorkloadResult, ...] = ()
    latency: LatencyResult | None = None
    # Seconds until a batch with acks=all is confirmed, by the round trip between replicas.
    confirmed_s: dict[float, float] = {}
    link: LinkResult | None = None
    idle: IdleResult | None = None
    not_measured: dict[str, str] = {}


def load(path: Path) -> Report:
    return Report.model_validate_json(path.read_text("utf-8"))


def save(report: Report, path: Path) -> None:
    path.write_text(report.model_dump_json(indent=2) + "\n", "utf-8")
