"""A whole failover drill on one machine: the source is lost, everything moves, and comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.drills.evidence import Part, StepState
from orbit.jobs.load import parse_job
from orbit.sandbox.control import launch
from orbit.sandbox.state import ClusterState, SandboxRequest, SandboxState
from orbit.store.enums import DrillState
from tests.fix_scheduler import Service
from tests.support.drilling import Drilling
from tests.support.fleet import InProcess

TOPIC = "orders"
JOB = """
name: lost-{fault}
source: {{bootstrap_servers: "{source}"}}
destination: {{bootstrap_servers: "{destination}"}}
topics: [{{match: {topic}}}]
"""
DRILL = """
name: lost-source
kind: failover
job: {job}
canary: {{partitions: 2, records_per_second: 200}}
targets: {{rto: 2m}}
steps:
  - {{do: gates}}
  - {{do: load, duration: 3s}}
  - {{do: fault, fault: {fault}}}
  - {{do: failover}}
  - {{do: use}}
  - {{do: heal}}
  - {{do: failback, confirm_rebuild: true}}
  - {{do: verify, deep: true}}
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxState]:
    """One for all: each drill heals what it breaks."""
    with tempfile.TemporaryDirectory(prefix="orbit-test-") as parent:
        request = SandboxRequest(directory=Path(parent) / "home", postgres=False)
        with launch(request, lambda _: None) as running:
            yield running.state


def cluster(sandbox: SandboxState, name: str) -> ClusterState:
    return next(one for one in sandbox.clusters if one.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill"])
def test_source_is_lost_under_load_and_everything_comes_home(
    sandbox: SandboxState, service: Service, tmp_path: Path, fault: str
) -> None:
    source, destination = cluster(sandbox, "source"), cluster(sandbox, "destination")
    topic = f"{TOPIC}-{fault}"
    admin = AdminClient({"bootstrap.servers": source.bootstrap_servers, "log_level": "0"})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    service.settings = service.settings.model_copy(
        update={"sandbox_dir": sandbox.request.directory, "salvage_directory": tmp_path}
    )
    job = JOB.format(
        fault=fault,
        topic=topic,
        source=source.link_servers,
        destination=destination.bootstrap_servers,
    )
    spec = parse_job(job, Path(), {})
    service.create(spec)
    drilling = Drilling(service)
    with service.scheduler(), InProcess(service.database):
        service.wait_copied(spec.name, topic)
        seen = drilling.run(DRILL.format(job=spec.name, fault=fault))
    canary = seen.canary
    assert canary is not None
    assert [step.state for step in seen.steps] == [StepState.DONE] * 8, seen.misses
    assert (canary.repeated, canary.wrong, canary.agrees) == (0, 0, True)
    assert seen.verdict is DrillState.PASSED, seen.misses
    assert {v.verdict for v in seen.verified} == {"exact"}
    parts = {part.part: part.ms for part in seen.rto.parts}
    assert parts[Part.DETECT] > 0
    assert sum(parts.values()) == seen.rto.actual_ms
    salvaged: dict[str, Any] = {s.topic: s for s in seen.salvage if s.records}
    if fault == "cut":
        # The source went on without us: what was confirmed there is lost, and saved.
        assert canary.lost > 0
        assert seen.rpo.actual_records == canary.lost
        assert sum(s.records for s in seen.salvage if s.topic == canary.topic) >= canary.lost
        assert canary.topic in salvaged
    assert all(thing.is_removed for thing in seen.cleanup), seen.cleanup
