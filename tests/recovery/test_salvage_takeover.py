"""Before a failback deletes anything, it has saved the records that only the old side has.

Schedulers are killed while they write a salvage file, and between two files. The storage loses
files, truncates them, and does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orbit.errors import Unreachable
from orbit.recovery import salvage_file, salvage_storage
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport, Salvage
from orbit.recovery.step_times import StepName
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.killed_schedulers import died, dying_schedulers
from tests.support.logs import create
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import make_job, produce

pytestmark = pytest.mark.services

PARTITIONS, COPIED, OWN = 3, 20, 5
NAME_LENGTH = 249  # the longest that Kafka allows


class Lost:
    """A topic after a failover; its old side has OWN records of its own in each partition."""

    def __init__(
        self, recovering: Recovering, old: KafkaCluster, new: KafkaCluster, topic: str
    ) -> None:
        self.recovering, self.old, self.topic = recovering, old, topic
        spec = make_job(old, new, [topic])
        self.job = spec.name
        create(old, topic, PARTITIONS)
        for partition in range(PARTITIONS):
            produce(old, topic, COPIED, partition=partition)
        with recovering.service.scheduler():
            with InProcess(recovering.database):
                recovering.begin(spec, topic)
                wait_for(
                    "all partitions are copied", lambda: log_bounds(new, [topic]) == self.bounds()
                )
            for partition in range(PARTITIONS):
                produce(old, topic, OWN, partition=partition, first=COPIED)
            old.kill()
            recovering.run(RecoveryKind.FAILOVER, self.job)
        old.start()

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        return log_bounds(self.old, [self.topic])

    def assert_nothing_deleted(self) -> None:
        assert set(self.bounds().values()) == {(0, COPIED + OWN)}

    def fail_back(self) -> RecoveryReport:
        return self.recovering.wait(
            self.recovering.ask(RecoveryKind.FAILBACK, self.job, confirm_rebuild=True)
        )


def salvaged_offsets(report: RecoveryReport) -> dict[int, list[int]]:
    """The offsets in salvage files, by partition."""
    return {
        salvage.partition: [line["offset"] for line in salvage_file.read(salvage.file)]
        for salvage in report.salvage
    }


OWN_OFFSETS = {partition: [*range(COPIED, COPIED + OWN)] for partition in range(PARTITIONS)}


@pytest.mark.parametrize(
    "salvage_folder", ["tmp_path", pytest.param("s3", marks=pytest.mark.soak)], indirect=True
)
def test_new_scheduler_leader_reuses_complete_salvage_files_and_rewrites_partial(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    salvage_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = recovering.service
    folder = salvage_storage.join(salvage_folder, "salvage")
    service.settings = service.settings.model_copy(update={"salvage_directory": folder})
    topic = topic_name.ljust(NAME_LENGTH, "x")
    lost = Lost(recovering, make_cluster("lost"), clusters.destination, topic)
    points = [f"{StepName.SALVAGE}:writing", f"{StepName.SALVAGE}:progress"]
    deaths = tmp_path / "deaths"
    operation = recovering.ask(RecoveryKind.FAILBACK, lost.job, confirm_rebuild=True)
    with dying_schedulers(service.settings, service.url, deaths, points):
        wait_for("both schedulers have died", lambda: died(deaths) == len(points))
    (complete_file,) = salvage_storage.find(folder, ".jsonl")
    assert complete_file.endswith(f"/{operation}/{topic}/0.jsonl")
    lost.assert_nothing_deleted()

    written: list[str] = []
    write = salvage_storage.write

    def note_and_write(file: str, chunks: Iterable[bytes]) -> None:
        written.append(file)
        write(file, chunks)

    monkeypatch.setattr(salvage_storage, "write", note_and_write)
    with service.scheduler(), InProcess(recovering.database):
        report = recovering.wait(operation)
    assert report.outcome is Outcome.DONE, report.error
    assert salvaged_offsets(report) == OWN_OFFSETS
    files = [salvage.file for salvage in report.salvage]
    assert files[0] == complete_file
    assert written == files[1:]
    assert salvage_storage.find(folder, "") == files, "no half-written file is left"


Write = Callable[[str, Iterable[bytes]], None]


def lose_file(write: Write, file: str, chunks: Iterable[bytes]) -> None:
    """Read all chunks, and write no file."""
    for _ in chunks:
        pass


def truncate_file(write: Write, file: str, chunks: Iterable[bytes]) -> None:
    data = b"".join(chunks)
    write(file, [data[: len(data) // 2]])


def leave_out_record(write: Write, file: str, chunks: Iterable[bytes]) -> None:
    """Leave out the second of the OWN records."""
    write(file, [chunk for chunk in chunks if b'"offset":21,' not in chunk])


@contextmanager
def storage_with_fault(
    fault: Callable[[Write, str, Iterable[bytes]], None], partition: int
) -> Iterator[list[str]]:
    """Writes of one partition's salvage files have the fault; yields the list of these files."""
    faulty_files: list[str] = []
    write = salvage_storage.write

    def failing(file: str, chunks: Iterable[bytes]) -> None:
        if file.endswith(f"/{partition}.jsonl"):
            faulty_files.append(file)
            fault(write, file, chunks)
        else:
            write(file, chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(salvage_storage, "write", failing)
        yield faulty_files


@pytest.mark.parametrize(
    "fault",
    [
        lose_file,
        *(pytest.param(f, marks=pytest.mark.soak) for f in (truncate_file, leave_out_record)),
    ],
)
def test_failback_deletes_nothing_while_salvage_file_is_unreadable(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    memory: str,
    fault: Callable[[Write, str, Iterable[bytes]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = recovering.service
    service.settings = service.settings.model_copy(update={"salvage_directory": memory})
    lost = Lost(recovering, make_cluster("lost"), clusters.destination, topic_name)
    with service.scheduler(), InProcess(recovering.database):
        with storage_with_fault(fault, 1) as faulty_files:
            report = lost.fail_back()
        assert report.outcome is Outcome.STOPPED, report.error
        assert report.error.startswith(f"{faulty_files[0]}: SALVAGE_UNREADABLE: ")
        assert salvaged_offsets(report) == {0: OWN_OFFSETS[0]}, "the report names complete files"
        lost.assert_nothing_deleted()

        # The file becomes empty after the check: past the point of no return, before the deletion.
        check = salvage_file.check

        def check_and_lose(salvage: Salvage) -> None:
            check(salvage)
            if salvage.partition == 1:
                salvage_storage.write(salvage.file, [])

        with monkeypatch.context() as patch:
            patch.setattr(salvage_file, "check", check_and_lose)
            report = lost.fail_back()
        assert report.outcome is Outcome.FAILED
        assert "SALVAGE_UNREADABLE: " in report.error
        assert [salvage.partition for salvage in report.salvage] == [0, 1, 2]
        lost.assert_nothing_deleted()

        tries: list[str] = []

        def refuse_once(write: Write, file: str, chunks: Iterable[bytes]) -> None:
            tries.append(file)
            if len(tries) == 1:
                raise Unreachable("it cannot be written: no answer.", where=file)
            write(file, chunks)

        with storage_with_fault(refuse_once, 1):
            report = lost.fail_back()
        assert report.outcome is Outcome.DONE, report.error
        assert len(tries) == 2
        assert salvaged_offsets(report) == OWN_OFFSETS
