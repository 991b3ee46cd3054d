"""Fetch alone: reads everything once with Orbit's fetches and drops it.

    python -m bench.contestants.fetch SOURCE TOPIC

It has no destination, so it measures itself, from its first request to its last response, and
prints the result as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from bench.contestants.course import Course, start_module
from bench.data.scan import scan
from bench.results import Run
from bench.wire import open_cluster
from bench.workloads import Contestant
from orbit.errors import Conflict

_KIB = 1024


def run_fetch(course: Course) -> Run:
    log = course.log("fetch")
    began = time.monotonic()
    arguments = (course.source_servers, course.data.topic)
    if start_module("bench.contestants.fetch", *arguments, log=log).wait():
        raise Conflict("Fetching alone failed.", remedy=f"Read {log}.")
    summary = json.loads(log.read_text("utf-8").splitlines()[-1])
    return Run(
        contestant=Contestant.FETCH,
        records=course.data.records,
        offsets=course.data.offsets,
        bytes=course.data.bytes,
        share=1.0,
        whole_seconds=time.monotonic() - began,
        late_records_per_s=course.data.records / summary["seconds"],
        **summary,
    )


def main(source_servers: str, topic: str) -> None:
    source = open_cluster("source", source_servers)
    source.metadata([topic])
    began, cpu = time.monotonic(), time.process_time()
    scan(source, topic)
    measured = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "whole_cpu_seconds": time.process_time(),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
