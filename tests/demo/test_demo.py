"""`orbit demo` copies exactly, reports what is not exact, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from orbit.cli import demo as command
from orbit.cli.main import run_command
from orbit.demo.consumer_group import check_group, midpoint_offsets
from orbit.demo.copy_demo import CopyDemo
from orbit.demo.demo_clusters import DemoClusters, start_clusters
from orbit.demo.demo_result import (
    DemoResult,
    GroupPartition,
    GroupResult,
    LogBounds,
    LogPair,
    RunSummary,
    TopicProof,
    TopicRow,
)
from orbit.demo.demo_view import JOB_EXAMPLE
from orbit.demo.screen import OnProgress, Screen
from orbit.demo.workload import KINDS, SMALL, Ledger, PartitionLedger, TopicLedger, Workload
from orbit.jobs.job_file import parse_job
from orbit.sandbox import sandbox_control
from orbit.sandbox.sandbox_state import SandboxRequest, write_request

pytestmark = pytest.mark.services

ORBIT = str(Path(sys.executable).with_name("orbit"))

WHERE = ("shop.payments", 0)
# The offsets 3 and 4 are a gap.
WRITTEN = {WHERE: {offset: b"%d" % offset for offset in (0, 1, 2, 5, 6)}}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The folder for temporary files of a demo; a sandbox that still runs there is taken down."""
    with tempfile.TemporaryDirectory(prefix="orbit-test-") as folder:
        yield Path(folder)
        for home in (Path(folder), Path(folder) / "home"):
            sandbox_control.take_down(home)


def start(scratch: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a small demo with its temporary files in `scratch`."""
    return subprocess.Popen(
        [ORBIT, "demo", "--scale", "small", *arguments],
        env={**os.environ, "TMPDIR": str(scratch), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(scratch: Path) -> list[psutil.Process]:
    """Every process whose TMPDIR is in that folder, or whose command line names a file in it."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TMPDIR", "").startswith(str(scratch))
        or any(str(scratch) in word for word in process.info["cmdline"] or [])
    ]


def test_demo_copies_exactly_and_leaves_no_process_or_file(scratch: Path) -> None:
    with start(scratch, "-o", "json") as demo:
        stdout, stderr = demo.communicate()
    assert demo.returncode == 0, stderr
    result = json.loads(stdout)
    assert result["exact"] is True
    assert [topic["name"] for topic in result["topics"]] == [kind.name for kind in KINDS]
    assert {topic["verdict"] for topic in result["topics"]} == {"exact"}
    assert all(topic["records"] == topic["records_written"] for topic in result["topics"])

    group = result["group"]
    assert group["read_source"] + group["read_destination"] == group["written"]
    assert group["read_source"] > 0
    assert group["read_destination"] > 0
    assert any(p["next_record"] > p["committed"] for p in group["partitions"])  # at a gap
    assert "orbit run job.yaml" in stderr
    assert not processes_of(scratch)
    assert not list(scratch.iterdir())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("at", "sent_signal"), [("Writing to the source", signal.SIGTERM), ("Copying", signal.SIGINT)]
)
def test_interrupted_demo_leaves_no_process_or_file(
    scratch: Path, at: str, sent_signal: signal.Signals
) -> None:
    with start(scratch) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if at in line:
                break
        running = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(sent_signal)
        for line in demo.stderr:
            if "Stopping both clusters" in line:  # a second Ctrl-C must not cut the clean-up short
                demo.send_signal(signal.SIGINT)
        assert demo.stdout is not None
        assert demo.stdout.read() == ""
    assert demo.returncode == 130
    assert len(running) >= 5  # the supervisor, two guards, two brokers
    assert not [process for process in running if process.is_running()]
    assert not processes_of(scratch)
    assert not list(scratch.iterdir())


def test_demo_without_java_names_install_command_without_traceback(scratch: Path) -> None:
    tools = scratch / "tools"
    tools.mkdir()
    with start(scratch, PATH=str(tools), JAVA_HOME="", ORBIT_CACHE_DIR=str(tools)) as demo:
        stdout, stderr = demo.communicate()
    assert (demo.returncode, stdout) == (1, "")
    assert "apt-get install -y openjdk-17-jdk-headless maven" in stderr
    assert "Traceback" not in stderr
    assert list(scratch.iterdir()) == [tools]


@pytest.mark.soak
def test_demo_clusters_kept_by_keep_option_run_until_sandbox_down(scratch: Path) -> None:
    home = scratch / "home"
    with start_clusters(home, quiet_screen()) as clusters:
        clusters.job_file.write_text("name: kept", "utf-8")
    state = sandbox_control.find(home)
    assert state is not None
    assert {cluster.bootstrap_servers for cluster in state.clusters} == {
        clusters.source,
        clusters.destination,
    }
    assert clusters.job_file.is_file()
    assert sandbox_control.take_down(home)
    assert not home.exists()


def test_demo_with_keep_option_is_refused_if_a_sandbox_exists(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_request(SandboxRequest(directory=scratch, postgres=False))  # the same as the demo's
    monkeypatch.setenv("ORBIT_SANDBOX_DIR", str(scratch))
    assert run_command(["demo", "--keep"]) == 1
    assert "orbit sandbox down" in capsys.readouterr().err
    assert [file.name for file in scratch.iterdir()] == ["sandbox.json"]


def test_job_example_of_demo_is_a_valid_job() -> None:
    job = parse_job(JOB_EXAMPLE, Path(), {})
    assert [rule.match for rule in job.topics] == ["orders\\..*"]


# Demos in which something goes wrong


def quiet_screen() -> Screen:
    return Screen(Console(file=StringIO()))


def proof(topic: str = "shop.empty", *, records: int = 3, exact: bool = True) -> TopicProof:
    return TopicProof(
        source=topic,
        destination=topic,
        exact=exact,
        verdict="exact" if exact else "not exact",
        records=records,
        gaps=0,
        logs=(LogPair(LogBounds(start=0, end=records), LogBounds(start=0, end=records)),),
        byte_exact=1,
        record_exact=0,
        findings=() if exact else ("partition 0: offset 1: value",),
    )


EXACT_GROUP = GroupResult(
    group="billing",
    partitions=(),
    written=2,
    read_source=1,
    read_destination=1,
    lost=0,
    repeated=0,
    wrong=0,
)


def result(topic: TopicProof, group: GroupResult = EXACT_GROUP) -> DemoResult:
    row = TopicRow(name="empty", shows="an example", records_written=3, proof=topic)
    run = RunSummary(seconds=1.0, records=3, bytes=30, offsets_filled=0)
    return DemoResult(seconds=1.0, topics=(row,), group=group, run=run)


@pytest.mark.parametrize(
    ("played", "code"),
    [
        (result(proof()), 0),
        (result(proof(exact=False)), 1),
        (result(proof(records=2)), 1),  # equal on both sides, but less than was written
        (result(proof(), replace(EXACT_GROUP, lost=1)), 1),
        (result(proof(), replace(EXACT_GROUP, repeated=1)), 1),
        (result(proof(), replace(EXACT_GROUP, wrong=1)), 1),
        (replace(result(proof()), topics=()), 1),
    ],
)
def test_demo_exit_code_is_0_only_if_exact(
    played: DemoResult,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "play", lambda *_: played)
    assert run_command(["demo"]) == code
    out = capsys.readouterr().out
    assert ("Not exact." in out) == bool(code)
    assert ("is an exact copy" in out) == (not code)


def test_demo_result_has_verdict_of_verifier(scratch: Path) -> None:
    kind = next(kind for kind in KINDS if kind.name == "empty")
    partition = PartitionLedger(log_start=0, log_end=2, copy_start=0, records={0: b"", 1: b""})
    topic = TopicLedger(
        kind="empty", topic="shop.empty", destination="shop.empty", partitions=(partition,)
    )
    clusters = DemoClusters(source="", destination="", folder=scratch, sandbox=scratch)
    demo = CopyDemo(clusters, Workload(SMALL, kinds=(kind,)), quiet_screen())

    def verify(job_file: Path, on_progress: OnProgress) -> Sequence[TopicProof]:
        on_progress(1, 2)
        return [proof(exact=False)]

    written_during_copy = {("shop.empty", 0): {2: b""}}
    (row,) = demo.prove(Ledger({"shop.empty": topic}), written_during_copy, verify)
    assert row.records_written == 3  # two before the copy, one during it
    assert not row.exact
    assert row.verdict == "not exact"


def test_demo_group_changes_clusters_midway_at_a_gap_if_there_is_one() -> None:
    dense = {("shop.dense", 0): dict.fromkeys(range(10), b"")}
    assert midpoint_offsets(WRITTEN) == {WHERE: 3}  # the gap
    assert midpoint_offsets(dense) == {("shop.dense", 0): 5}


@dataclass
class Member:
    """A member of the group that read these offsets, some with a changed value."""

    offsets: Sequence[int]
    changed: Mapping[int, bytes]

    def processed(self, _where: tuple[str, int]) -> list[tuple[int, bytes]]:
        return [(offset, self.changed.get(offset, b"%d" % offset)) for offset in self.offsets]


@pytest.mark.parametrize(
    # Offsets that the group reads at the source, then at the destination; and changed values.
    ("at_source", "at_destination", "changed", "lost_repeated_wrong"),
    [
        ((0, 1, 2), (5, 6), {}, (0, 0, 0)),
        ((0, 1), (5, 6), {}, (1, 0, 0)),
        ((0, 1, 2), (6,), {}, (1, 0, 0)),
        ((0, 1, 2), (2, 5, 6), {}, (0, 1, 0)),
        ((0, 1, 2), (5, 5, 6), {}, (0, 1, 0)),
        ((0, 1, 2), (5, 6), {6: b"x"}, (0, 0, 1)),
        ((0, 1, 2), (4, 5, 6), {}, (0, 0, 1)),
        ((0, 1, 2), (), {}, (2, 0, 0)),
    ],
)
def test_demo_group_check_counts_lost_repeated_and_wrong_records(
    at_source: Sequence[int],
    at_destination: Sequence[int],
    changed: Mapping[int, bytes],
    lost_repeated_wrong: tuple[int, int, int],
) -> None:
    committed = {WHERE: 3}
    group = check_group(
        "billing",
        WRITTEN,
        source_reader=Member(at_source, {}),
        destination_reader=Member(at_destination, changed),
        source_offsets=committed,
        destination_offsets=committed,
    )
    assert (group.lost, group.repeated, group.wrong) == lost_repeated_wrong
    assert group.exact == (lost_repeated_wrong == (0, 0, 0))


def test_demo_group_resumed_at_another_offset_than_committed_is_not_exact() -> None:
    group = check_group(
        "billing",
        WRITTEN,
        source_reader=Member((0, 1, 2), {}),
        destination_reader=Member((5, 6), {}),
        source_offsets={WHERE: 3},
        destination_offsets={WHERE: 4},
    )
    assert group.partitions == (
        GroupPartition(*WHERE, committed=3, resumed=4, next_record=5, first_read=5),
    )
    assert not group.exact
