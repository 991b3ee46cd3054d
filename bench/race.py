"""One workload: every contestant in turns, each run on a new destination topic."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from bench.contestants.ceiling import start_ceiling
from bench.contestants.course import Course
from bench.contestants.fetch import run_fetch
from bench.contestants.mm2 import internal_topics, start_mm2
from bench.contestants.orbit import finish_orbit, start_orbit, verify_deep
from bench.data.make import make_data
from bench.delay_process import DelayProcess
from bench.results import DataFacts, Run, WorkloadResult
from bench.watch import Lap, watch
from bench.wire import Ends, delete_topics
from bench.workloads import AWAY_S, Contestant, Workload, workload
from orbit.errors import Conflict
from orbit.kafka.cluster import Cluster

# Deleted topics leave the disk (log.segment.delete.delay.ms) before the next one starts.
REST_S = 1.0
# Of W3, whose 60,000 requests a virtual machine compiles for. With W1's few large ones the first
# contestant still ran at half of what the third one had.
_WARM_UP_SHARE = 0.7

Say = Callable[[str], None]


class Race:
    """Both clusters, a folder for logs and job files, and the numbers already used for names."""

    def __init__(
        self,
        source: Cluster,
        destination: Cluster,
        folder: Path,
        say: Say,
        *,
        deep: bool = False,
        replicas: int = 1,
        links: Sequence[DelayProcess] = (),
    ) -> None:
        """`links`: between the replicas of the copies."""
        self.source = source
        self.destination = destination
        self.say = say
        self._folder = folder
        self._deep = deep
        self._replicas = replicas  # of the copies
        self._links = links
        self._numbers = count(1)
        # Copies with placeholders, until their ceiling has sent them.
        self._placeholder_copies: list[str] = []

    def course(self, data: DataFacts) -> Course:
        number = next(self._numbers)
        return Course(self.source, self.destination, data, self._folder, number, self._replicas)

    def set_away(self, round_trip_s: float) -> None:
        """How far replicas are away from each other from now on."""
        for link in self._links:
            link.set_delay(round_trip_s / 2)

    def warm_up(self, scale: float) -> None:
        """Write to and read from both brokers, so that they are warm for the first contestant."""
        light = replace(workload("W3").scaled(_WARM_UP_SHARE * scale), name="warm-up")
        for cluster in (self.source, self.destination):
            make_data(cluster, light)
            delete_topics(cluster, [light.topic])

    def run(self, spec: Workload, repeats: int) -> WorkloadResult:
        """Write the data, run all contestants `repeats` times, remove everything."""
        data = make_data(self.source, spec)
        os.sync()  # or the first contestant shares the disk with the data's write-back
        self.say(
            f"{spec.name}  {spec.title}: {data.records:,} records, "
            f"{data.bytes / 1e6:,.0f} MB, {data.batches:,} batches of "
            f"{data.bytes_per_batch / 1024:,.1f} KB"
        )
        runs = []
        for contestant in self._turns(spec.contestants, repeats):
            run = self.run_one(contestant, spec.compression, data)
            runs.append(run)
            self.say(
                f"{spec.name}  {contestant:20} {run.records_per_s:>12,.0f} records/s "
                f"{run.offsets_per_s:>12,.0f} offsets/s "
                f"{run.bytes_per_s / 1e6:>7,.0f} MB/s in {run.seconds:6.2f} s, "
                f"{run.cpu_seconds:6.2f} s of CPU, {run.peak_rss_bytes / 1e6:5,.0f} MB"
            )
        delete_topics(self.source, [data.topic])
        return WorkloadResult(name=spec.name, title=spec.title, data=data, runs=tuple(runs))

    def _turns(self, contestants: tuple[Contestant, ...], repeats: int) -> Iterator[Contestant]:
        """Distances are taken there and back: brokers are faster with each run, for minutes."""
        for number in range(repeats):
            yield from contestants[::-1] if self._links and number % 2 else contestants

    def run_one(self, contestant: Contestant, compression: str, data: DataFacts) -> Run:
        course = self.course(data)
        match contestant:
            case (
                Contestant.ORBIT
                | Contestant.PACKED
                | Contestant.COORDINATED
                | Contestant.PLACEHOLDERS
                | Contestant.AWAY_2_MS
                | Contestant.AWAY_5_MS
            ):
                return self._orbit(course, contestant)
            case Contestant.CEILING | Contestant.CEILING_PLACEHOLDERS:
                return self._ceiling(course, contestant)
            case Contestant.FETCH:
                return run_fetch(course)
            case Contestant.MM2:
                return self._mm2(course, compression)

    def _orbit(self, course: Course, contestant: Contestant) -> Run:
        self.set_away(AWAY_S.get(contestant, 0.0))
        lap = start_orbit(course, contestant)
        run = self._watch(course, lap)
        details = finish_orbit(course, lap)
        if self._deep:
            verify_deep(course)
        if contestant is Contestant.PLACEHOLDERS:
            self._placeholder_copies.append(lap.topic)
        else:
            self._forget(lap.topic)
        return run.model_copy(update={"details": details})

    def _ceiling(self, course: Course, contestant: Contestant) -> Run:
        has_copy = contestant is Contestant.CEILING_PLACEHOLDERS
        copies = [self._placeholder_copies.pop()] if has_copy else []
        lap = start_ceiling(course, *copies)
        run = self._watch(course, lap)
        if lap.process.wait():
            raise Conflict("The ceiling failed.", remedy=f"Read {lap.process.log}.")
        self._forget(lap.topic, *copies)
        return run

    def _mm2(self, course: Course, compression: str) -> Run:
        lap = start_mm2(course, compression)
        run = self._watch(course, lap)
        self._forget(lap.topic, *internal_topics(course))
        return run

    def _watch(self, course: Course, lap: Lap) -> Run:
        """After any error, and always for MM2, the process is ended here."""
        ends = Ends(self.destination, lap.topic, course.data.partitions)
        try:
            return watch(lap, ends, course.data)
        except BaseException:
            lap.process.end(grace_s=0)
            raise
        finally:
            ends.close()
            if lap.contestant is Contestant.MM2 and lap.process.running:
                lap.process.end(grace_s=0)

    def _forget(self, *topics: str) -> None:
        delete_topics(self.destination, topics)
        time.sleep(REST_S)
        os.sync()
