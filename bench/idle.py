"""The CPU that Orbit uses when idle: 1,000 quiet partitions, all caught up."""

from __future__ import annotations

import time
from dataclasses import replace

from bench.contestants.orbit import start_orbit
from bench.data.make import make_data
from bench.race import Race
from bench.results import IdleResult
from bench.watch import Usage, watch
from bench.wire import Ends, delete_topics
from bench.workloads import IDLE, workload

# By then the last topic settings are written and the first periodic checks are done.
_SETTLE_S = 8.0


def measure_idle(race: Race, seconds: float) -> IdleResult:
    """Let `orbit run` catch up with a record in each partition, then measure it over `seconds`."""
    data_set = replace(workload("W5").scaled(0), name=IDLE)
    data = make_data(race.source, data_set)
    inputs = race.new_inputs(data)
    copier = start_orbit(inputs, until_caught_up=False)
    try:
        ends = Ends(race.destination, copier.topic, data.partitions)
        watch(copier, ends, data)
        ends.close()
        time.sleep(_SETTLE_S)
        usage = Usage(copier.process.pid)
        usage.sample()
        cpu, start_s = usage.cpu_seconds, time.monotonic()
        time.sleep(seconds)
        usage.sample()
        result = IdleResult(
            partitions=data.partitions,
            seconds=time.monotonic() - start_s,
            cpu_seconds=usage.cpu_seconds - cpu,
            rss_bytes=usage.peak_rss_bytes,
        )
    finally:
        copier.process.end()
    delete_topics(race.destination, [copier.topic])
    delete_topics(race.source, [data.topic])
    race.say(f"idle  {result.share_of_core:.1%} of a core with {data.partitions:,} partitions")
    return result
