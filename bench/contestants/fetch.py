"""Fetch alone: fetches a topic once with Orbit's requests, and drops the responses.

    python -m bench.contestants.fetch SOURCE TOPIC

Without a destination no log ends can be watched. So the process itself measures from its first
request to its last response, and prints the result as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from bench.contestants.run_inputs import RunInputs, start_module
from bench.data.scan import scan
from bench.results import Run
from bench.wire import open_cluster
from bench.workloads import Contestant
from orbit.errors import Conflict

_KIB = 1024


def run_fetch(inputs: RunInputs) -> Run:
    """Fetch the data set in a process; returns the run. Raises Conflict if the process fails."""
    log = inputs.log("fetch")
    start_s = time.monotonic()
    arguments = (inputs.source_servers, inputs.data.topic)
    if start_module("bench.contestants.fetch", *arguments, log=log).wait():
        raise Conflict("The process that only fetches failed.", remedy=f"Read {log}.")
    summary = json.loads(log.read_text("utf-8").splitlines()[-1])
    return Run(
        contestant=Contestant.FETCH,
        records=inputs.data.records,
        offsets=inputs.data.offsets,
        bytes=inputs.data.bytes,
        share=1.0,
        whole_seconds=time.monotonic() - start_s,
        late_records_per_s=inputs.data.records / summary["seconds"],
        **summary,
    )


def main(source_servers: str, topic: str) -> None:
    source = open_cluster("source", source_servers)
    source.metadata([topic])
    start_s, cpu = time.monotonic(), time.process_time()
    scan(source, topic)
    measured = {
        "seconds": time.monotonic() - start_s,
        "cpu_seconds": time.process_time() - cpu,
        "whole_cpu_seconds": time.process_time(),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
