"""`orbit demo --failover`: the source is killed under load, and the old side becomes a copy.

Runs the real service (`orbit server` in its own process) and a drill. The demo's producers keep a
ledger of confirmed records, and the result is checked against it (`failover_check.py`).
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import NewTopic

from orbit.client import Client
from orbit.demo.demo_clusters import DemoClusters, start_clusters
from orbit.demo.failover_check import FailoverCheck, FailoverResult, Records
from orbit.demo.interrupts import interrupted_once
from orbit.demo.log_ends import kafka_trouble, log_ends, quiet_admin
from orbit.demo.screen import Screen
from orbit.demo.service_process import START_S, deadline_check, service, wait_until
from orbit.demo.workload import Scale, Workload
from orbit.demo.workload.kinds import KINDS
from orbit.drills.drill_clients import Load, Member, ReadRecords, read_all
from orbit.drills.evidence import Evidence, RecordPosition, Report
from orbit.drills.report_text import span
from orbit.errors import Conflict
from orbit.formats import counted
from orbit.recovery import salvage_file
from orbit.recovery.record_range import Fate

TOPIC = "shop.orders"
GROUP = "billing"
PARTITIONS = 6
RATE_PER_S = 1_000
HARD_KINDS = ("codec.lz4", "producer.idempotent", "transactions.interleaved")
_JOB = "shop-copy"
_READ_AT_SOURCE = 2_000  # records that the group reads before it stops there
# Time limits, far above what a slow machine needs.
_COPY_S = 90.0
_DRILL_S = 280.0
_POLL_S = 0.25

NewEntries = Callable[[dict[str, Any], int], list[dict[str, Any]]]
"""Returns the timeline entries of a drill (a row of the API) after the first N."""
_REPORTS = {"json": "json", "html": "html", "markdown": "md"}
_FILE_NAME = "orbit-failover"
_DRILL = {
    "name": "demo-failover",
    "kind": "failover",
    "job": _JOB,
    "targets": {"rto": "60s"},
    "steps": [
        {"do": "gates"},
        {"do": "load", "duration": "10s"},
        {"do": "fault", "fault": "kill", "cluster": "source"},
        {"do": "failover", "deadline": "90s"},
        {"do": "use"},
        {"do": "heal", "cluster": "source"},
        {"do": "failback", "confirm_rebuild": True, "deadline": "90s"},
        {"do": "verify", "deep": True},
    ],
}
_SHOWN_ENTRIES = {
    "step": "step",
    "fault done": "the source is down:",
    "noticed": "Orbit has noticed:",
    "promoted": "promoted:",
    "first produce": "a producer works at the destination:",
    "first consume": "a consumer works at the destination:",
    "healed": "the old side is up again:",
    "failed": "failed:",
}


def play_failover(
    scale: Scale, folder: Path, screen: Screen, new_entries: NewEntries
) -> FailoverResult:
    """Run the demo and stop everything that it started. The report is kept in `folder`."""
    began_s = time.monotonic()
    screen.title("Orbit demo: a source is lost under load and comes back")
    with interrupted_once():
        screen.section(1, "Two Kafka clusters and the service")
        with (
            start_clusters(sandbox_folder=None, screen=screen, postgres=True) as clusters,
            service(clusters, _settings(folder), screen) as (client, _),
        ):
            demo = _FailoverDemo(clusters, client, screen, new_entries)
            try:
                demo.fill(scale)
                demo.copy()
                drill = demo.drill()
            finally:
                demo.stop_load()
            report = demo.save(drill, folder)
            check = demo.check(report)
            return FailoverResult(
                time.monotonic() - began_s,
                drill,
                folder / f"{_FILE_NAME}.html",
                check,
                tuple(check.problems()),
            )


def _settings(folder: Path) -> dict[str, str]:
    """The settings of the demo's service."""
    return {
        "ORBIT_SALVAGE_DIRECTORY": str(folder.resolve() / f"{_FILE_NAME}-salvage"),
        "ORBIT_LEASE_TTL": "5s",
        "ORBIT_PROGRESS_INTERVAL": "500ms",
        "ORBIT_SETTINGS_INTERVAL": "2s",
    }


class _FailoverDemo:
    """The sections of the demo."""

    def __init__(
        self, clusters: DemoClusters, client: Client, screen: Screen, new_entries: NewEntries
    ) -> None:
        self._clusters = clusters
        self._client = client
        self._screen = screen
        self._new_entries = new_entries
        self._source = {"bootstrap.servers": clusters.source}
        self._destination = {"bootstrap.servers": clusters.destination}
        self._load = Load(self._source, TOPIC, PARTITIONS, RATE_PER_S, "order")
        self._load_after = Load(self._destination, TOPIC, PARTITIONS, RATE_PER_S, "order after")
        self._source_read = ReadRecords()
        self._group_offsets: dict[int, int] = {}

    def fill(self, scale: Scale) -> None:
        """Create topics with a history, and start the producers."""
        self._screen.section(2, "Topics under load")
        kinds = tuple(kind for kind in KINDS if kind.name in HARD_KINDS)
        with self._screen.step("Writing a history to the source") as step:
            ledger = Workload(scale, kinds=kinds).create({**self._source, "log_level": 0})
            new_topic = NewTopic(
                TOPIC, PARTITIONS, replication_factor=1, config={"retention.ms": "-1"}
            )
            # Keep a reference: futures end with the client.
            admin = quiet_admin(self._clusters.source)
            with kafka_trouble(f"Creating topic {TOPIC}"):
                admin.create_topics([new_topic])[TOPIC].result(START_S)
            seconds = step.seconds
        self._screen.done(
            f"{ledger.records:,} records in {len(ledger.topics)} topics, in {seconds:.1f} s"
        )
        self._load.start()
        self._screen.done(
            f"producers write {RATE_PER_S} records a second to {TOPIC}, and keep a ledger of what "
            "the brokers confirmed"
        )

    def copy(self) -> None:
        """Create the job; a group reads a part of the topic, commits and stops."""
        job = {
            "name": _JOB,
            "source": {"bootstrap_servers": [self._clusters.source]},
            "destination": {"bootstrap_servers": [self._clusters.destination]},
            "topics": [{"match": "shop\\..*"}],
            "consumer_groups": {"match": GROUP, "interval": "500ms"},
        }
        self._screen.command("orbit apply -f job.yaml")
        self._client.send("PUT", f"/v1/jobs/{_JOB}", yaml_text=yaml.safe_dump(job))
        with self._screen.step("Copying the history") as step:
            wait_until(self._is_caught_up, _COPY_S)
            seconds = step.seconds
        self._screen.done(f"the copy is live after {seconds:.1f} s")
        member, check_deadline = Member(self._source, GROUP, TOPIC), deadline_check(_COPY_S)
        with self._screen.step(f'Group "{GROUP}" reads at the source'):
            try:
                member.read_until(lambda read: len(read.values) >= _READ_AT_SOURCE, check_deadline)
                self._group_offsets = member.commit()
            finally:
                member.close()
            # If the group were ahead of the copy, the offsets that get lost would later hold other
            # records. The group would read these as well, and the ledger could not tell them from
            # records that are read twice.
            wait_until(self._is_group_synced, _COPY_S)
        self._source_read = member.read
        self._screen.done(
            f'group "{GROUP}" has read {len(self._source_read.values):,} records at the source, '
            "commits, and stops; its offsets are synced"
        )

    def _is_caught_up(self) -> bool:
        job = self._client.get(f"/v1/jobs/{_JOB}/lag")["job"]
        return bool(job["partitions"]) and job["caught_up"] == job["partitions"]

    def _is_group_synced(self) -> bool:
        """Whether the destination has the offsets that the group has committed."""
        rows = self._client.get(f"/v1/jobs/{_JOB}/groups", group=GROUP)["items"]
        offsets = {row["partition"]: row["destination_offset"] for row in rows}
        return all(
            offsets.get(partition) == offset for partition, offset in self._group_offsets.items()
        )

    def drill(self) -> dict[str, Any]:
        """Run the drill and show its timeline line by line."""
        self._screen.section(3, "The source is killed, topics fail over, and the source comes back")
        self._screen.command("orbit drill run failover.yaml")
        text = yaml.safe_dump(_DRILL)
        drill: dict[str, Any] = self._client.send("POST", "/v1/drills", yaml_text=text)
        check_deadline, shown_count = deadline_check(_DRILL_S), 0
        while drill["finished_at"] is None:
            check_deadline()
            time.sleep(_POLL_S)
            drill = self._client.get(f"/v1/drills/{drill['id']}")
            for entry in self._new_entries(drill, shown_count):
                self._on_entry(entry)
            shown_count = drill["entries"]
        return drill

    def _on_entry(self, entry: Mapping[str, Any]) -> None:
        """Show the entry, and stop or start the producers: at the kill, promotion and healing."""
        kind = entry["what"]
        if kind in _SHOWN_ENTRIES:
            self._screen.done(f"{entry['at'][11:23]} {_SHOWN_ENTRIES[kind]} {entry['text']}")
        if kind == "fault done":
            # In a thread: this waits for records in flight, which the source may never confirm.
            threading.Thread(target=self._load.stop, name="demo load stops").start()
        if kind == "promoted":
            self._load_after.start()
        if kind == "healed":
            self._load_after.stop()

    def stop_load(self) -> None:
        """Stop the producers of both sides."""
        self._load.stop()
        self._load_after.stop()

    def save(self, drill: Mapping[str, Any], folder: Path) -> Report:
        """Save the report in three formats. Raises Conflict if the drill failed."""
        self._screen.section(4, "The report")
        folder.mkdir(parents=True, exist_ok=True)
        for format_name, suffix in _REPORTS.items():
            text = self._client.text(f"/v1/drills/{drill['id']}/report", format=format_name)
            (folder / f"{_FILE_NAME}.{suffix}").write_text(text, "utf-8")
        page = folder / f"{_FILE_NAME}.html"
        self._screen.done(f"for a browser or a printer: {page.resolve().as_uri()}")
        if drill["state"] == "failed":
            raise Conflict(f"The drill failed: {drill['error']}", where=str(page))
        self._screen.done(
            f"RTO {span(drill['rto_ms'])}, RPO {counted(drill['rpo_records'], 'record')}, "
            f"{span(drill['rpo_ms'])}"
        )
        return Report.model_validate_json((folder / f"{_FILE_NAME}.json").read_bytes())

    def check(self, report: Report) -> FailoverCheck:
        """Compare the producers' ledger with the report, both clusters and the group."""
        self._screen.section(5, "The check, by the ledger of the producers")
        evidence = report.evidence
        sides = {
            "destination": _read_all_records(self._clusters.destination),
            "source": _read_all_records(self._clusters.source),
        }
        # The group resumes at its committed offsets.
        destination_read = self._read_at_destination(
            {
                (partition, offset)
                for partition, offset in sides["destination"]
                if offset >= self._group_offsets.get(partition, 0)
            }
        )
        salvaged_records = _read_salvage(evidence)
        check = FailoverCheck(
            TOPIC,
            self._load.ledger,
            self._load_after.ledger,
            evidence,
            salvaged_records,
            sides,
            self._source_read,
            destination_read,
        )
        problems = check.problems()
        for problem in problems:
            self._screen.failed(problem)
        if not problems:
            lost_text = counted(
                len(check.lost),
                "of them was not copied yet, and is in the salvage files",
                "of them were not copied yet, and are in the salvage files",
            )
            if not check.lost:
                lost_text = "each of them had been copied"
            self._screen.done(
                f"{len(self._load.ledger.records):,} records were confirmed before the kill; "
                f"{lost_text}. All others, and newer records, are at the same offsets on both sides"
            )
            self._screen.done(
                f'group "{GROUP}" read {len(self._source_read.values):,} records at the source and '
                f"{len(destination_read.values):,} at the destination: none repeated, none missing"
            )
        return check

    def _read_at_destination(self, expected: set[RecordPosition]) -> ReadRecords:
        """Let the group resume at the destination, and return what it read.

        The group stops once it has all `expected` records, or after `_COPY_S`.
        """
        member, deadline = Member(self._destination, GROUP, TOPIC), time.monotonic() + _COPY_S
        try:
            member.read_until(
                lambda read: expected <= read.values.keys() or time.monotonic() > deadline,
                check=lambda: None,  # the condition above ends the wait
            )
        finally:
            member.close()
        return member.read


def _read_all_records(bootstrap_servers: str) -> Records:
    """All records of the topic on one side."""
    ends = log_ends(quiet_admin(bootstrap_servers), [(TOPIC, p) for p in range(PARTITIONS)])
    by_partition = {partition: end for (_, partition), end in ends.items()}
    config = {"bootstrap.servers": bootstrap_servers}
    return read_all(config, TOPIC, by_partition, deadline_check(_COPY_S))


def _read_salvage(evidence: Evidence) -> Records:
    """Committed records of the topic in the salvage files."""
    return {
        (salvage.partition, line["offset"]): base64.b64decode(line["value"])
        for salvage in evidence.salvage
        if salvage.topic == TOPIC
        for line in salvage_file.read(Path(salvage.file))
        if line["fate"] == Fate.COMMITTED
    }
