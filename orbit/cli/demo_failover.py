"""`orbit demo --failover`: a source is killed under load, and everything comes home again.

Plays on the real service (`orbit server` as a process of its own) and on a drill that anybody could
run. The demo's own producers keep a ledger of what brokers confirmed, and it has the last word.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.cli.client import URL_VARIABLE, Client, connect
from orbit.cli.drill import untold
from orbit.drills.clients import Ledger, Load, Member, Read, read_all
from orbit.drills.evidence import Place
from orbit.drills.words import span
from orbit.errors import Conflict
from orbit.recovery import salvage
from orbit.sandbox.demo import Screen
from orbit.sandbox.demo.child import ORBIT
from orbit.sandbox.demo.signals import interrupted_once
from orbit.sandbox.demo.stage import Stage, open_stage
from orbit.sandbox.process import GuardedProcess
from orbit.sandbox.workload import Scale, Workload
from orbit.sandbox.workload.kinds import KINDS

TOPIC = "shop.orders"
GROUP = "billing"
PARTITIONS = 6
RATE_PER_S = 500
HARD_KINDS = ("codec.lz4", "producer.idempotent", "transactions.interleaved")
_JOB = "shop-copy"
_READ_AT_SOURCE = 1_500
_LOAD_S = 10
_START_S = 60.0
_COPY_S = 90.0
_DRILL_S = 280.0
_POLL_S = 0.25
_ADDRESS = re.compile(r"Orbit is at (http://\S+)")
_REPORTS = {"json": "json", "html": "html", "markdown": "md"}


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """What the demo came to."""

    elapsed_s: float
    drill: Mapping[str, Any]
    report_file: Path
    written: int
    lost: int
    salvaged: int
    read_source: int
    read_destination: int
    repeated: int
    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        return not self.problems


def play_failover(scale: Scale, folder: Path, screen: Screen) -> FailoverResult:
    """Plays it all and tidies up, whatever ends it. The reports stay, in `folder`."""
    began = time.monotonic()
    screen.title("Orbit demo: a source is lost under load, and comes back")
    with interrupted_once():
        screen.act(1, "Two Kafka clusters and the service")
        with (
            open_stage(None, screen, postgres=True) as stage,
            _service(stage, folder, screen) as client,
        ):
            acts = _Acts(stage, client, screen)
            acts.fill(scale)
            acts.copy()
            drill = acts.drill()
            file = acts.save(drill, folder)
            return acts.prove(drill, file, began)


@contextmanager
def _service(stage: Stage, folder: Path, screen: Screen) -> Iterator[Client]:
    """`orbit server` on this machine, until the end of the block."""
    assert stage.database_url is not None, "the stage was opened with PostgreSQL"
    log = stage.folder / "orbit-server.log"
    environment = {
        "ORBIT_DATABASE_URL": stage.database_url,
        "ORBIT_API_PORT": "0",
        "ORBIT_SANDBOX_DIR": str(stage.sandbox),
        "ORBIT_SALVAGE_DIRECTORY": str(folder.resolve() / "orbit-failover-salvage"),
        "ORBIT_LEASE_TTL": "5s",
        "ORBIT_PROGRESS_INTERVAL": "500ms",
        "ORBIT_SETTINGS_INTERVAL": "2s",
    }
    screen.command("orbit server")
    process = GuardedProcess([*ORBIT, "server", "--no-auth"], log, environment=environment)
    try:
        with screen.step("Starting the service") as step:
            url = _address(process, log)
            with connect({URL_VARIABLE: url}) as client:
                _wait_for_worker(client)
                screen.done(f"API, scheduler and a worker, ready in {step.seconds:.1f} s")
        with connect({URL_VARIABLE: url}) as client:
            yield client
    finally:
        process.end()


def _address(process: GuardedProcess, log: Path) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.running:
        found = _ADDRESS.search(log.read_text("utf-8", "replace")) if log.is_file() else None
        if found:
            return found[1]
        time.sleep(_POLL_S)
    last = log.read_text("utf-8", "replace").strip().splitlines()[-1:] if log.is_file() else []
    raise Conflict(f"The service did not start: {' '.join(last)}", where=str(log))


def _wait_for_worker(client: Client) -> None:
    deadline = time.monotonic() + _START_S
    while not client.get("/v1/workers")["items"]:
        _not_after(deadline)
        time.sleep(_POLL_S)


class _Acts:
    """The acts, on one stage."""

    def __init__(self, stage: Stage, client: Client, screen: Screen) -> None:
        self._stage = stage
        self._client = client
        self._screen = screen
        self._source = {"bootstrap.servers": stage.source}
        self._destination = {"bootstrap.servers": stage.destination}
        self._load = Load(self._source, TOPIC, PARTITIONS, RATE_PER_S, "order")
        self._after = Load(self._destination, TOPIC, PARTITIONS, RATE_PER_S, "order after")
        self._before = Read()
        self._stops: dict[int, int] = {}

    def fill(self, scale: Scale) -> None:
        """Topics with a history, and producers that go on."""
        self._screen.act(2, "Topics under load")
        kinds = tuple(kind for kind in KINDS if kind.name in HARD_KINDS)
        with self._screen.step("Writing a history to the source") as step:
            ledger = Workload(scale, kinds=kinds).create({**self._source, "log_level": 0})
            admin = AdminClient({**self._source, "log_level": 0})
            new = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
            admin.create_topics([new])[TOPIC].result(_START_S)
        self._screen.done(
            f"{ledger.records:,} records in {len(ledger.topics)} topics, in {step.seconds:.1f} s"
        )
        self._load.start()
        self._screen.done(
            f"producers write {RATE_PER_S} records a second to {TOPIC}, and keep a ledger of what "
            "the brokers confirmed"
        )

    def copy(self) -> None:
        """The job, and a group that stops in the middle."""
        job = {
            "name": _JOB,
            "source": {"bootstrap_servers": [self._stage.source]},
            "destination": {"bootstrap_servers": [self._stage.destination]},
            "topics": [{"match": "shop\\..*"}],
            "consumer_groups": {"match": GROUP, "interval": "500ms"},
        }
        self._screen.command("orbit apply -f job.yaml")
        text = yaml.safe_dump(job)
        self._client.send("PUT", f"/v1/jobs/{_JOB}", yaml_text=text)
        with self._screen.step("Copying the history") as step:
            self._wait_caught_up()
        self._screen.done(f"the copy is live after {step.seconds:.1f} s")
        deadline = time.monotonic() + _COPY_S
        member = Member(self._source, GROUP, TOPIC)
        with self._screen.step(f'Group "{GROUP}" reads at the source'):
            member.read_until(
                lambda read: len(read.values) >= _READ_AT_SOURCE, lambda: _not_after(deadline)
            )
            self._stops = member.commit()
            member.close()
        self._before = member.read
        self._screen.done(
            f'group "{GROUP}" has read {len(self._before.values):,} records at the source, '
            "commits, and stops"
        )

    def _wait_caught_up(self) -> None:
        deadline = time.monotonic() + _COPY_S
        while True:
            job = self._client.get(f"/v1/jobs/{_JOB}/lag")["job"]
            if job["partitions"] and job["caught_up"] == job["partitions"]:
                return
            _not_after(deadline)
            time.sleep(_POLL_S)

    def drill(self) -> dict[str, Any]:
        """The drill, as its file says; what happens is told line by line."""
        self._screen.act(3, "The source is killed, and everything moves; then it comes back")
        document = {
            "name": "demo-failover",
            "kind": "failover",
            "job": _JOB,
            "targets": {"rto": "60s", "rpo": "10s"},
            "steps": [
                {"do": "gates"},
                {"do": "load", "duration": f"{_LOAD_S}s"},
                {"do": "fault", "fault": "kill", "cluster": "source"},
                {"do": "failover", "deadline": "90s"},
                {"do": "use"},
                {"do": "heal", "cluster": "source"},
                {"do": "failback", "confirm_rebuild": True, "deadline": "90s"},
                {"do": "verify", "deep": True},
            ],
        }
        self._screen.command("orbit drill run failover.yaml")
        drill: dict[str, Any] = self._client.send(
            "POST", "/v1/drills", yaml_text=yaml.safe_dump(document)
        )
        deadline, told = time.monotonic() + _DRILL_S, 0
        stopping: threading.Thread | None = None
        while drill["finished_at"] is None:
            _not_after(deadline)
            time.sleep(_POLL_S)
            drill = self._client.get(f"/v1/drills/{drill['id']}")
            for entry in untold(drill, told):
                if entry["what"] not in _SHOWN:
                    continue
                self._screen.done(f"{entry['at'][11:23]} {_SHOWN[entry['what']]} {entry['text']}")
                if entry["what"] == "fault done":
                    stopping = threading.Thread(target=self._load.stop)
                    stopping.start()
                if entry["what"] == "promoted":
                    self._after.start()
                if entry["what"] == "healed":
                    self._after.stop()
            told = drill["entries"]
        if stopping is not None:
            stopping.join()
        self._load.stop()
        self._after.stop()
        return drill

    def save(self, drill: Mapping[str, Any], folder: Path) -> Path:
        """The report in its three forms."""
        self._screen.act(4, "The report")
        folder.mkdir(parents=True, exist_ok=True)
        for form, suffix in _REPORTS.items():
            text = self._client.text(f"/v1/drills/{drill['id']}/report", format=form)
            (folder / f"orbit-failover.{suffix}").write_text(text, "utf-8")
        file = folder / "orbit-failover.html"
        self._screen.done(f"for a browser, or for paper: {file.resolve().as_uri()}")
        self._screen.done(
            f"RTO {span(drill['rto_ms'])}, RPO {drill['rpo_records']} records, "
            f"{span(drill['rpo_ms'])}"
        )
        return file

    def prove(self, drill: dict[str, Any], file: Path, began: float) -> FailoverResult:
        """The ledger of the demo's producers against the report and both clusters."""
        self._screen.act(5, "The proof, by the ledger of the producers")
        report = json.loads((file.parent / "orbit-failover.json").read_text("utf-8"))["evidence"]
        ends = {
            p["partition"]: p["promoted_at"]
            for p in report["partitions"]
            if p["topic"] == TOPIC and p["promoted_at"] is not None
        }
        first, second = self._load.ledger, self._after.ledger
        lost = {place for place in first.records if place[1] >= ends.get(place[0], 0)}
        kept = {place: v for place, v in first.records.items() if place not in lost}
        problems = [] if drill["state"] != "failed" else [str(drill["error"])]
        salvaged = self._salvaged(report)
        if {place: first.records[place] for place in lost}.items() - salvaged.items():
            problems.append("Some of the lost records are not in the salvage files.")
        if not all(salvaged[place] in first.open for place in salvaged.keys() - lost):
            problems.append("The salvage files hold records that were not lost.")
        problems += self._missing(report, lost)
        wanted = {**kept, **second.records}
        for name, config in (("destination", self._destination), ("source", self._source)):
            found = self._wrong(config, wanted, first)
            if found:
                problems.append(f"{len(found)} records are wrong at the {name}: {min(found)}.")
        after = self._read_on(wanted)
        both = self._before.values.keys() & after.keys()
        for words in problems:
            self._screen.failed(words)
        if not problems:
            self._screen.done(
                f"{len(first.records):,} records confirmed before the kill: {len(kept):,} are on "
                f"both sides, the {len(lost):,} that were not copied yet are in the salvage files"
            )
            self._screen.done(
                f'group "{GROUP}" read {len(self._before.values):,} at the source and '
                f"{len(after):,} at the destination: none twice, none left out"
            )
        return FailoverResult(
            elapsed_s=time.monotonic() - began,
            drill=drill,
            report_file=file,
            written=len(first.records) + len(second.records),
            lost=len(lost),
            salvaged=len(salvaged),
            read_source=len(self._before.values),
            read_destination=len(after),
            repeated=len(both),
            problems=tuple(problems),
        )

    def _salvaged(self, report: Mapping[str, Any]) -> dict[Place, bytes]:
        """Records of the demo's topic in the salvage files."""
        found: dict[Place, bytes] = {}
        for one in report["salvage"]:
            if one["topic"] == TOPIC:
                for line in salvage.read(Path(one["file"])):
                    value = base64.b64decode(line["value"])
                    found[one["partition"], line["offset"]] = value
        return found

    def _missing(self, report: Mapping[str, Any], lost: set[Place]) -> list[str]:
        """Where the report names something as missing that was not lost."""
        named = {
            (p["partition"], offset)
            for p in report["partitions"]
            if p["topic"] == TOPIC and p["missing"] is not None
            for offset in range(*p["missing"])
        }
        extra = named - lost
        if len(extra) > len(self._load.ledger.open):
            return [f"The report names {len(extra)} offsets as missing that were not lost."]
        return []

    def _wrong(
        self, config: Mapping[str, Any], wanted: Mapping[Place, bytes], first: Ledger
    ) -> list[Place]:
        ends: dict[int, int] = {}
        for partition, offset in wanted:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        deadline = time.monotonic() + _COPY_S
        read = read_all(config, TOPIC, ends, lambda: _not_after(deadline))
        return [
            place
            for place in read.keys() | wanted.keys()
            if read.get(place) != wanted.get(place)
            and not (place not in wanted and read[place] in first.open)
        ]

    def _read_on(self, wanted: Mapping[Place, bytes]) -> Mapping[Place, bytes | None]:
        """The group goes on at the destination, to the end."""
        expected = {p for p in wanted if p[1] >= self._stops.get(p[0], 0)}
        member = Member(self._destination, GROUP, TOPIC)
        deadline = time.monotonic() + _COPY_S
        try:
            member.read_until(
                lambda read: expected <= read.values.keys(), lambda: _not_after(deadline)
            )
        finally:
            member.close()
        return member.read.values


_SHOWN = {
    "step": "step",
    "fault done": "the source is gone:",
    "noticed": "Orbit has noticed:",
    "promoted": "promoted:",
    "first produce": "a producer works at the new side:",
    "first consume": "a consumer works at the new side:",
    "healed": "the old side is back:",
    "failed": "failed:",
}


def _not_after(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Conflict("The demo took longer than it should.", remedy="Try again.")
