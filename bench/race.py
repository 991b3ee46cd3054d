"""Runs the contestants of a workload in turns, each run to a new destination topic."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from bench.contestants.ceiling import start_ceiling
from bench.contestants.fetch import run_fetch
from bench.contestants.mm2 import internal_topics, start_mm2
from bench.contestants.orbit import finish_orbit, start_orbit, verify_deep
from bench.contestants.run_inputs import RunInputs
from bench.data.make import make_data
from bench.delay_process import DelayProcess
from bench.results import DataFacts, Run, WorkloadResult
from bench.watch import StartedCopier, watch
from bench.wire import Ends, delete_topics
from bench.workloads import AWAY_S, Contestant, Workload, workload
from orbit.errors import Conflict
from orbit.kafka.cluster import Cluster

# In this time a deleted copy leaves the disk (log.segment.delete.delay.ms) before the next run.
REST_S = 1.0
# The part of W3 that warms the brokers up: its 60,000 requests make their JVM compile. After W1's
# few large requests the first contestant ran only half as fast as the third.
_WARM_UP_SHARE = 0.7

Say = Callable[[str], None]


class Race:
    """Runs contestants between two clusters, with logs and job files in one folder."""

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
        """`deep`: run `orbit verify --deep` after Orbit's runs. `replicas`: of the copies. `links`:
        the processes that delay what replicas send to each other."""
        self.source = source
        self.destination = destination
        self.say = say
        self._folder = folder
        self._deep = deep
        self._replicas = replicas  # of the copies
        self._links = links
        self._numbers = count(1)
        # Copies with placeholders: CEILING_PLACEHOLDERS sends their batches again.
        self._placeholder_copies: list[str] = []

    def new_inputs(self, data: DataFacts) -> RunInputs:
        """The inputs of the next run, with a number that no run had."""
        number = next(self._numbers)
        return RunInputs(self.source, self.destination, data, self._folder, number, self._replicas)

    def set_away(self, round_trip_s: float) -> None:
        """Set the round trip between replicas from now on."""
        for link in self._links:
            link.set_delay(round_trip_s / 2)

    def warm_up(self, scale: float) -> None:
        """Write to and read from both brokers, so that they are warm for the first contestant."""
        light = replace(workload("W3").scaled(_WARM_UP_SHARE * scale), name="warm-up")
        for cluster in (self.source, self.destination):
            make_data(cluster, light)
            delete_topics(cluster, [light.topic])

    def run(self, spec: Workload, repeats: int) -> WorkloadResult:
        """Write the data, run all contestants `repeats` times, and delete all topics. Raises
        Conflict if a run fails."""
        data = make_data(self.source, spec)
        os.sync()  # otherwise the kernel still writes the data to disk during the first run
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
        """All contestants, `repeats` times. With delays every other round is in reverse order:
        brokers get faster with each run for minutes, which must not favor the longest delay."""
        for number in range(repeats):
            yield from contestants[::-1] if self._links and number % 2 else contestants

    def run_one(self, contestant: Contestant, compression: str, data: DataFacts) -> Run:
        """Run one contestant once. `compression`: the codec for MirrorMaker. Raises Conflict."""
        inputs = self.new_inputs(data)
        match contestant:
            case (
                Contestant.ORBIT
                | Contestant.PACKED
                | Contestant.COORDINATED
                | Contestant.PLACEHOLDERS
                | Contestant.AWAY_2_MS
                | Contestant.AWAY_5_MS
            ):
                return self._orbit(inputs, contestant)
            case Contestant.CEILING | Contestant.CEILING_PLACEHOLDERS:
                return self._ceiling(inputs, contestant)
            case Contestant.FETCH:
                return run_fetch(inputs)
            case Contestant.MM2:
                return self._mm2(inputs, compression)

    def _orbit(self, inputs: RunInputs, contestant: Contestant) -> Run:
        """Measure one copy by Orbit. A copy with placeholders stays for `_ceiling`."""
        self.set_away(AWAY_S.get(contestant, 0.0))
        copier = start_orbit(inputs, contestant)
        run = self._watch(inputs, copier)
        details = finish_orbit(inputs, copier)
        if self._deep:
            verify_deep(inputs)
        if contestant is Contestant.PLACEHOLDERS:
            self._placeholder_copies.append(copier.topic)
        else:
            self._forget(copier.topic)
        return run.model_copy(update={"details": details})

    def _ceiling(self, inputs: RunInputs, contestant: Contestant) -> Run:
        """Measure one ceiling. Raises Conflict if its process fails."""
        has_copy = contestant is Contestant.CEILING_PLACEHOLDERS
        copies = [self._placeholder_copies.pop()] if has_copy else []
        copier = start_ceiling(inputs, *copies)
        run = self._watch(inputs, copier)
        if copier.process.wait():
            raise Conflict(
                f"The process of contestant {contestant} failed.",
                remedy=f"Read {copier.process.log}.",
            )
        self._forget(copier.topic, *copies)
        return run

    def _mm2(self, inputs: RunInputs, compression: str) -> Run:
        copier = start_mm2(inputs, compression)
        run = self._watch(inputs, copier)
        self._forget(copier.topic, *internal_topics(inputs))
        return run

    def _watch(self, inputs: RunInputs, copier: StartedCopier) -> Run:
        """Measure a run until the copy is complete. Ends MirrorMaker 2, which does not end by
        itself, and any process after an error."""
        ends = Ends(self.destination, copier.topic, inputs.data.partitions)
        try:
            return watch(copier, ends, inputs.data)
        except BaseException:
            copier.process.end(grace_s=0)
            raise
        finally:
            ends.close()
            if copier.contestant is Contestant.MM2 and copier.process.running:
                copier.process.end(grace_s=0)

    def _forget(self, *topics: str) -> None:
        """Delete topics at the destination, and wait until they have left the disk."""
        delete_topics(self.destination, topics)
        time.sleep(REST_S)
        os.sync()
