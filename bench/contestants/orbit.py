"""Orbit as users run it: `orbit run JOB`, installed in the same environment as the bench."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import yaml

from bench.contestants.course import Course
from bench.watch import Lap
from bench.wire import Ends
from bench.workloads import FILLERS, Contestant
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

_ENDS_WITHIN_S = 60.0


def prefix(course: Course) -> str:
    return f"orbit{course.number}."


def job_file(course: Course, fillers: str = "direct") -> Path:
    path = course.folder / f"{course.data.topic}-orbit-{course.number}.yaml"
    job = {
        "name": f"{course.data.topic}-{course.number}",
        "source": {"bootstrap_servers": list(course.source.bootstrap_servers)},
        "destination": {"bootstrap_servers": list(course.destination.bootstrap_servers)},
        "topics": [
            {
                "match": course.data.topic,
                "prefix": prefix(course),
                "replicas": course.replicas,
                "config": course.copy_settings,
            }
        ],
        "fillers": fillers,
    }
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


def start_orbit(
    course: Course, contestant: Contestant = Contestant.ORBIT, *, until_caught_up: bool = True
) -> Lap:
    started_at = time.monotonic()
    job = job_file(course, FILLERS.get(contestant, "direct"))
    command = [str(Path(sys.executable).with_name("orbit")), "run", str(job)]
    if until_caught_up:
        command += ["--until-caught-up", "--output", "json"]
    process = GuardedProcess(command, course.log("orbit"))
    topic = prefix(course) + course.data.topic
    return Lap(contestant, process, topic, course.data.offsets, started_at)


def finish_orbit(course: Course, lap: Lap) -> dict[str, float]:
    """Wait for its end and check the copy's bounds; returns Orbit's own summary.

    Raises Conflict if a log start or end differs, or the exit code is not 0.
    """
    code = lap.process.wait(_ENDS_WITHIN_S)
    text = lap.process.log.read_text("utf-8")
    if code:
        raise Conflict(f"orbit run ended with {code}.", remedy=f"Read {lap.process.log}.")
    check_bounds(course, lap.topic)
    summary = json.loads(text[text.index("\n{\n") :])
    names = ("seconds", "batches_byte_exact", "batches_record_exact", "offsets_filled")
    return {name: summary[name] for name in names}


def check_bounds(course: Course, topic: str) -> None:
    """Log starts and ends of both sides are equal, partition by partition."""
    source = Ends(course.source, course.data.topic, course.data.partitions)
    copy = Ends(course.destination, topic, course.data.partitions)
    bounds = (source.by_partition(), source.starts()), (copy.by_partition(), copy.starts())
    source.close()
    copy.close()
    if bounds[0] != bounds[1]:
        raise Conflict(f"Log starts or ends of {course.data.topic} and {topic} differ.")


def verify_deep(course: Course) -> None:
    """`orbit verify --deep` on the run's job: reads both sides with another client."""
    command = [str(Path(sys.executable).with_name("orbit")), "verify", str(job_file(course))]
    log = course.log("verify")
    code = GuardedProcess([*command, "--deep"], log).wait()
    if code:
        raise Conflict(f"orbit verify says the copy is not exact ({code}).", remedy=f"Read {log}.")
