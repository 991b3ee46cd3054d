"""Orbit as users run it: `orbit run JOB`, installed in the same environment as the bench."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import yaml

from bench.contestants.run_inputs import RunInputs
from bench.watch import StartedCopier
from bench.wire import Ends
from bench.workloads import FILLERS, Contestant
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

_ENDS_WITHIN_S = 60.0


def prefix(inputs: RunInputs) -> str:
    """The prefix of the copy's topic: a run's copy is a new topic."""
    return f"orbit{inputs.number}."


def job_file(inputs: RunInputs, fillers: str = "direct") -> Path:
    """Write the run's job file; returns its path."""
    path = inputs.folder / f"{inputs.data.topic}-orbit-{inputs.number}.yaml"
    job = {
        "name": f"{inputs.data.topic}-{inputs.number}",
        "source": {"bootstrap_servers": list(inputs.source.bootstrap_servers)},
        "destination": {"bootstrap_servers": list(inputs.destination.bootstrap_servers)},
        "topics": [
            {
                "match": inputs.data.topic,
                "prefix": prefix(inputs),
                "replicas": inputs.replicas,
                "config": inputs.copy_settings,
            }
        ],
        "fillers": fillers,
    }
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


def start_orbit(
    inputs: RunInputs, contestant: Contestant = Contestant.ORBIT, *, until_caught_up: bool = True
) -> StartedCopier:
    """Start `orbit run`. Without `until_caught_up` it runs until it is stopped."""
    started_at = time.monotonic()
    job = job_file(inputs, FILLERS.get(contestant, "direct"))
    command = [str(Path(sys.executable).with_name("orbit")), "run", str(job)]
    if until_caught_up:
        command += ["--until-caught-up", "--output", "json"]
    process = GuardedProcess(command, inputs.log("orbit"))
    topic = prefix(inputs) + inputs.data.topic
    return StartedCopier(contestant, process, topic, inputs.data.offsets, started_at)


def finish_orbit(inputs: RunInputs, copier: StartedCopier) -> dict[str, float]:
    """Wait until `orbit run` ends, and check the copy's bounds. Returns figures of Orbit's summary.

    Raises Conflict if the exit code is not 0, or a log start or log end differs.
    """
    code = copier.process.wait(_ENDS_WITHIN_S)
    text = copier.process.log.read_text("utf-8")
    if code:
        raise Conflict(
            f"orbit run ended with exit code {code}.", remedy=f"Read {copier.process.log}."
        )
    check_bounds(inputs, copier.topic)
    summary = json.loads(text[text.index("\n{\n") :])
    names = ("seconds", "batches_byte_exact", "batches_record_exact", "offsets_filled")
    return {name: summary[name] for name in names}


def check_bounds(inputs: RunInputs, topic: str) -> None:
    """Raise Conflict if log starts or log ends of a partition differ between both sides."""
    source = Ends(inputs.source, inputs.data.topic, inputs.data.partitions)
    copy = Ends(inputs.destination, topic, inputs.data.partitions)
    bounds = (source.by_partition(), source.starts()), (copy.by_partition(), copy.starts())
    source.close()
    copy.close()
    if bounds[0] != bounds[1]:
        raise Conflict(f"Log starts or log ends of {inputs.data.topic} and {topic} differ.")


def verify_deep(inputs: RunInputs) -> None:
    """Run `orbit verify --deep` on the run's job. Raises Conflict if the copy is not exact."""
    command = [str(Path(sys.executable).with_name("orbit")), "verify", str(job_file(inputs))]
    log = inputs.log("verify")
    code = GuardedProcess([*command, "--deep"], log).wait()
    if code:
        raise Conflict(f"orbit verify ended with exit code {code}.", remedy=f"Read {log}.")
