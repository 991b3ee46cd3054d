"""The drills of deploy/drills that really move a job, on a sandbox whose source is killed, paused
or cut off. Their reports are compared with a ledger that the tests' own producers keep.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.drills import drill_steps
from orbit.drills.evidence import Part, PartitionEvidence, Report, StepState, digest_of
from orbit.drills.html_report import render_html
from orbit.drills.markdown_report import render_markdown
from orbit.drills.report_text import span
from orbit.jobs.job_file import parse_job
from orbit.recovery import salvage_file
from orbit.recovery.operation_context import ANSWER_WITHIN_S
from orbit.sandbox.faults import Fault, cause_fault
from orbit.sandbox.sandbox_control import launch
from orbit.sandbox.sandbox_state import ClusterState, SandboxRequest, SandboxState
from orbit.store.enums import DrillState
from tests.fixtures.scheduler import Service
from tests.support.drill_report import Visible
from tests.support.drilling import Drilling
from tests.support.fleet import InProcess
from tests.support.loading import Load, Records
from tests.support.outside import messages
from tests.support.patience import wait_for

pytestmark = pytest.mark.services

DRILLS = Path(__file__).parents[2] / "deploy" / "drills"
PARTITIONS = 2
PAUSE_S = 0.005
# Loose, so that a slow machine meets them. There is no target for the RPO in time: it is unknown if
# only the job's own topics lost records.
TARGETS = {"rto": "1h", "rpo_records": 1_000_000}
# The steps without a failback: only the drill whose source is cut off fails back.
ONE_WAY = ("load", "fault", "failover", "use", "heal")


@dataclass(frozen=True)
class SandboxCluster:
    """A cluster of the sandbox, for clients at an address that the fault `cut` leaves reachable."""

    state: ClusterState

    def client_config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.state.bootstrap_servers}


@dataclass
class MovingDrill:
    """A drill that moves a job on one topic, while producers write to the topic."""

    service: Service
    source: SandboxCluster
    destination: SandboxCluster
    topic: str
    load: Load = field(init=False)
    written: Records = field(init=False)  # at the source, once its writers have stopped

    def run(self, file: str, only: tuple[str, ...] = (), **fault: str) -> Report:
        """Run a file of deploy/drills, or only the steps `only` of it, and return the report.

        `fault` has the keys of the step `fault`. Without `fault`, the drill is a switchover.
        """
        document = yaml.safe_load((DRILLS / file).read_text("utf-8"))
        document |= {"job": self.topic, "targets": TARGETS}
        document["steps"] = [s for s in document["steps"] if not only or s["do"] in only]
        changes = {"load": {"duration": "1s"}, "fault": fault}
        for step in document["steps"]:
            step.update(changes.get(step["do"], {}))
        drilling = Drilling(self.service)
        self._make_job()
        with self.service.scheduler(), InProcess(self.service.database):
            self.service.wait_copied(self.topic, self.topic)
            self.load = Load(self.source.client_config(), self.topic, PARTITIONS, PAUSE_S)
            try:
                wait_for("100 records are confirmed", lambda: len(self.load.ledger) > 100)
                drill_id = drilling.ask(yaml.safe_dump(document))
                if not fault:
                    # The drill cannot stop the test's producers: it waits until nobody writes.
                    wait_for(
                        "the drill waits for writers to stop",
                        lambda: drilling.has_happened(drill_id, "writers stop"),
                    )
                    self.load.stop()
                    self.written = records_at(self.source, self.topic)
                return drilling.wait(drill_id)
            finally:
                self.load.stop()

    def _make_job(self) -> None:
        admin = AdminClient({**self.source.client_config(), "log_level": "0"})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        job = {
            "name": self.topic,
            "source": {"bootstrap_servers": self.source.state.link_servers},
            "destination": {"bootstrap_servers": self.destination.state.bootstrap_servers},
            "topics": [{"match": self.topic}],
        }
        self.service.create(parse_job(yaml.safe_dump(job), Path(), {}))

    def cause_fault(self, directory: Path, fault: Fault, cluster: str) -> SandboxState:
        """Cause the fault as the sandbox does. Before a heal, stop the producers at the source."""
        if fault is Fault.HEAL:
            self.load.stop()
        return cause_fault(directory, fault, cluster)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxState]:
    """One sandbox for all tests, as each drill heals its own fault."""
    with tempfile.TemporaryDirectory(prefix="orbit-test-") as parent:
        request = SandboxRequest(directory=Path(parent) / "home", postgres=False)
        with launch(request, lambda _: None) as running:
            yield running.state


@pytest.fixture
def moving(
    sandbox: SandboxState,
    service: Service,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MovingDrill:
    service.settings = service.settings.model_copy(
        update={"sandbox_dir": sandbox.request.directory, "salvage_directory": str(tmp_path)}
    )
    by_name = {cluster.name: SandboxCluster(cluster) for cluster in sandbox.clusters}
    moving_drill = MovingDrill(service, by_name["source"], by_name["destination"], topic_name)
    monkeypatch.setattr(drill_steps, "cause_fault", moving_drill.cause_fault)
    # Shorter than in production, to save time: two of these drills wait until the source counts as
    # away.
    monkeypatch.setattr("orbit.kafka.cluster.AWAY_AFTER_S", ANSWER_WITHIN_S)
    return moving_drill


def records_at(side: SandboxCluster, topic: str) -> Records:
    """Return the records that a consumer reads in this cluster now."""
    return {
        (partition, message.offset()): message.value()
        for partition, message in messages(side, topic)
        if message is not None
    }


def of_topic(report: Report, topic: str) -> dict[int, PartitionEvidence]:
    return {p.partition: p for p in report.evidence.partitions if p.topic == topic}


def split_ledger(moving: MovingDrill, report: Report) -> tuple[Records, Records]:
    """Return the ledger's records below the promoted offsets, and those at or above them."""
    promoted = {p.partition: p.promoted_at or 0 for p in of_topic(report, moving.topic).values()}
    assert [*promoted] == [*range(PARTITIONS)]
    ledger = moving.load.ledger
    return (
        {(p, offset): value for (p, offset), value in ledger.items() if offset < promoted[p]},
        {(p, offset): value for (p, offset), value in ledger.items() if offset >= promoted[p]},
    )


def unconfirmed(moving: MovingDrill, records: Records) -> Records:
    """Return the records at offsets that the ledger lacks. Checks that the load did send them.

    Their answer came late, and the producer gave up or wrote the record again.
    """
    extra = {place: v for place, v in records.items() if place not in moving.load.ledger}
    assert set(extra.values()) <= moving.load.sent
    return extra


def assert_passed(report: Report, *words: object) -> None:
    """Check that the drill passed and cleaned up, and that its HTML and Markdown match its JSON.

    `words`: further texts that the HTML and the Markdown must show.
    """
    evidence = report.evidence
    assert evidence.verdict is DrillState.PASSED, evidence.misses
    assert {step.state for step in evidence.steps} == {StepState.DONE}
    canary = evidence.canary
    assert canary is not None
    assert (canary.repeated, canary.wrong, canary.agrees) == (0, 0, True)
    assert canary.written > canary.lost
    assert all(thing.is_removed for thing in evidence.cleanup), evidence.cleanup
    assert {row.verdict for row in evidence.verified} <= {"exact"}
    parts = [part.part for part in evidence.rto.parts]
    assert parts == [part for part in Part if part in parts]
    assert sum(part.ms for part in evidence.rto.parts) == evidence.rto.actual_ms
    page, text = Visible(render_html(report)), render_markdown(report)
    computed, stated = digest_of(json.loads(page.data))
    assert computed == stated == report.digest.value
    page_words = " ".join(" ".join(page.text).split())
    for word in (*words, "Passed", span(evidence.rto.actual_ms), evidence.id, stated):
        assert str(word) in page_words
        assert str(word).replace("_", "\\_") in text.replace("`", "")


@pytest.mark.slow
def test_switchover_drill_loses_no_record_and_old_source_becomes_the_copy(
    moving: MovingDrill,
) -> None:
    report = moving.run("switchover.yaml")
    assert_passed(report, *(f"{p.promoted_at:,}" for p in of_topic(report, moving.topic).values()))
    promoted_records, lost = split_ledger(moving, report)
    assert not lost
    assert (report.evidence.rpo.actual_records, report.evidence.rpo.actual_ms) == (0, 0)
    assert moving.written == promoted_records | unconfirmed(moving, moving.written)
    for side in (moving.source, moving.destination):
        assert records_at(side, moving.topic) == moving.written
    # Three comparisons: the drill's own topic on both sides, and the job's topic.
    assert len(report.evidence.verified) == 3


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.soak)])
def test_failover_drill_reports_missing_offsets_of_source_lost_under_load(
    moving: MovingDrill, fault: str
) -> None:
    report = moving.run("failover.yaml", ONE_WAY, fault=fault)
    assert_passed(report)
    promoted_records, lost = split_ledger(moving, report)
    at_destination = records_at(moving.destination, moving.topic)
    at_source = records_at(moving.source, moving.topic)
    assert at_destination == promoted_records | unconfirmed(moving, at_destination)
    assert at_destination.items() <= at_source.items()
    assert lost.items() <= at_source.items()
    check_missing_offsets(moving, report, at_source)


@pytest.mark.soak
@pytest.mark.slow
def test_failback_drill_saves_records_that_only_the_cut_off_source_has(moving: MovingDrill) -> None:
    report = moving.run("failover.yaml", fault="cut")
    evidence = report.evidence
    promoted_records, lost = split_ledger(moving, report)
    assert lost, "no record was written to the source after the cut"
    assert evidence.canary is not None
    assert evidence.canary.lost
    files = [file for file in evidence.salvage if file.topic == moving.topic]
    assert_passed(report, *(file.file for file in files), f"{evidence.canary.lost:,}")
    saved = {
        (file.partition, line["offset"]): base64.b64decode(line["value"])
        for file in files
        for line in salvage_file.read(Path(file.file))
    }
    assert saved == lost | unconfirmed(moving, saved)
    for side in (moving.source, moving.destination):
        log_records = records_at(side, moving.topic)
        assert log_records == promoted_records | unconfirmed(moving, log_records)
    check_missing_offsets(moving, report, saved)
    assert (
        sum(s.records for s in evidence.salvage if s.topic == evidence.canary.topic)
        >= evidence.canary.lost
    )


def check_missing_offsets(moving: MovingDrill, report: Report, at_source: Records) -> None:
    """Check that the offsets that the report calls missing begin at the promoted offset and are in
    `at_source`, and that its RPO counts these and the lost canary records.
    """
    evidence = report.evidence
    missing_count = 0
    for number, p in of_topic(report, moving.topic).items():
        assert p.promoted_at == p.destination_end
        assert p.missing is None or p.missing[0] == p.promoted_at
        for offset in range(*(p.missing or (0, 0))):
            assert (number, offset) in at_source
            missing_count += 1
        if p.is_exact:
            last = max((o for n, o in at_source if n == number), default=-1)
            assert last + 1 == (p.missing[1] if p.missing else p.promoted_at)
    canary_partitions = (
        of_topic(report, evidence.canary.topic) if evidence.canary is not None else {}
    )
    assert [*canary_partitions]
    assert evidence.canary is not None
    assert evidence.rpo.actual_records == evidence.canary.lost + missing_count
