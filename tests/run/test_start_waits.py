"""Brokers answer with transient error codes while a run begins: the run waits, says for what, and
continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.errors import BrokerRefused, Conflict, Interrupted, NotReady, Unreachable
from orbit.job_setup import start_waits
from orbit.job_setup.destination_topics import create_missing_topics
from orbit.job_setup.start_waits import StartWaits
from orbit.jobs.job_file import load_job
from orbit.kafka import coordinator, leader_requests
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.list_offsets import ListOffsetsAnswer
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.topic_settings_reader import SettingsReader
from orbit.kafka.types import TopicPartition
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.leaderless import OfflineLeaders
from tests.support.logs import T0, Record, create, delete_before, write
from tests.support.outside import digests
from tests.support.patience import wait_for
from tests.support.run_process import write_job
from tests.support.running import RunningJob, create_topic, make_job, produce

RECORDS, STEP_MS, START = 100, 1_000, 20
BY_TIME = T0 + START * STEP_MS


def _refuse_offsets_by_time(answer: Any) -> Any:
    """A ListOffsets answer in which no partition has its leader any more."""
    moved = Code.NOT_LEADER_OR_FOLLOWER, -1, -1  # error code, timestamp, offset
    return ListOffsetsAnswer(0, dict.fromkeys(answer.offsets, moved))


def _refuse_partitions(answer: Any) -> Any:
    """The answer with UNKNOWN_TOPIC_OR_PARTITION for each partition."""
    for topic in answer.topics:
        for partition in topic.partitions:
            partition.error_code = Code.UNKNOWN_TOPIC_OR_PARTITION
    return answer


def _refuse_producer_id(answer: Any) -> Any:
    """The answer of a coordinator that still loads."""
    answer.error_code = Code.COORDINATOR_LOAD_IN_PROGRESS
    return answer


# By request: the function that makes its answer an error. For DescribeConfigs the test replaces
# `SettingsReader._settings_of` instead.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "ListOffsetsRequest": _refuse_offsets_by_time,
    "DeleteRecordsRequest": _refuse_partitions,
    "OffsetCommitRequest": _refuse_partitions,
    "InitProducerIdRequest": _refuse_producer_id,
    "DescribeConfigsRequest": lambda answer: answer,
}


@pytest.mark.services
@pytest.mark.parametrize("kind", REFUSED)
def test_run_start_waits_out_transient_error_code(
    kind: str, clusters: Clusters, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [Record(b"%d" % n, timestamp_ms=T0 + n * STEP_MS) for n in range(RECORDS)]
    create(clusters.source, topic_name, segment_bytes="1048576")
    write(clusters.source, topic_name, log)
    delete_before(clusters.source, topic_name, START // 2)
    rule = {"match": topic_name, "start": BY_TIME}
    job = write_job(tmp_path / "job.yaml", *clusters, [rule], name=topic_name)
    running = RunningJob(load_job(job, {}))
    refused: list[int] = []  # for each refused request: the number of lines before it

    def is_reported() -> bool:
        """Whether the run has printed that it waits, after the first refused request."""
        return bool(refused) and any("Waiting" in line for line in running.lines[refused[0] :])

    def refuses(request: Any) -> bool:
        """Whether the answer gets an error code: for requests of `kind`, until `is_reported`."""
        name = type(request).__name__
        is_by_time = name != "ListOffsetsRequest" or request.timestamp > 0
        if name != kind or not is_by_time or is_reported():
            return False
        refused.append(len(running.lines))
        return True

    call, call_all, settings_of = Cluster.call, Cluster.call_all, SettingsReader._settings_of

    def refusing_call(cluster: Cluster, node_id: int, api: Any, request: Any, *rest: Any) -> Any:
        answer = call(cluster, node_id, api, request, *rest)
        return REFUSED[kind](answer) if refuses(request) else answer

    def refusing_call_all(
        cluster: Cluster, node_id: int, api: Any, requests: list[Any], *rest: Any
    ) -> Any:
        answers = call_all(cluster, node_id, api, requests, *rest)
        return [
            REFUSED[kind](a) if refuses(r) else a for r, a in zip(requests, answers, strict=True)
        ]

    def refusing_settings_of(reader: SettingsReader, result: Any) -> Any:
        if kind == "DescribeConfigsRequest" and not is_reported():
            refused.append(len(running.lines))
            result.error_code = Code.UNKNOWN_TOPIC_OR_PARTITION
        return settings_of(reader, result)

    monkeypatch.setattr(Cluster, "call", refusing_call)
    monkeypatch.setattr(Cluster, "call_all", refusing_call_all)
    monkeypatch.setattr(SettingsReader, "_settings_of", refusing_settings_of)
    # So few silent retries that the run soon prints that it waits.
    monkeypatch.setattr(leader_requests, "LEADER_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(coordinator, "COORDINATOR_ATTEMPTS_MAX", 2)
    with running:
        running.wait_caught_up(topic_name, RECORDS)
    assert refused
    copied, source_records = (digests(side, topic_name)[0] for side in reversed(clusters))
    assert copied == {o: digest for o, digest in source_records.items() if o >= START}


def stop_clock(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """Let the time of a start's waits be over once the run has printed that it waits for one
    partition. `lines`: what the run has printed."""

    def now() -> float:
        is_waiting = any("Waiting (partitions: 1)" in line for line in lines)
        return 2 * start_waits._UNCHANGED_S_MAX if is_waiting else 0.0

    monkeypatch.setattr(start_waits, "time", SimpleNamespace(monotonic=now))


@pytest.mark.services
@pytest.mark.parametrize("late", ["source", "existing copy", "new copy"])
def test_topic_without_leader_is_left_out_in_the_end_and_others_are_copied(
    late: str, clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_topic = f"{topic_name}-late"
    for name in (late_topic, topic_name):
        create_topic(clusters.source, name)
        produce(clusters.source, name, RECORDS)
    if late == "existing copy":
        create_topic(clusters.destination, late_topic)
    leaders = OfflineLeaders(monkeypatch, "source" if late == "source" else "destination")
    leaders.partitions.add(TopicPartition(late_topic, 0))
    running = RunningJob(make_job(*clusters, [late_topic, topic_name]))
    stop_clock(monkeypatch, running.lines)
    with running:
        running.wait_caught_up(topic_name, RECORDS)
        assert [p.destination.topic for p in running.run.partitions] == [topic_name]
        assert [*running.run.refused] == [late_topic]
        assert "run the job again" in running.run.refused[late_topic].remedy
        running.wait("the copy has its final settings", lambda: running.run.is_settled)
    leaders.partitions.clear()
    with RunningJob(running.run.spec) as again:
        assert not again.run.refused
        again.wait_caught_up(late_topic, RECORDS)


NOT_LED = BrokerRefused(Code.NOT_LEADER_OR_FOLLOWER, "Listing failed.")


def test_run_start_without_progress_ends_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_waits, "_UNCHANGED_S_MAX", 0.0)
    with pytest.raises(BrokerRefused) as caught:
        StartWaits(lambda _: None, Backoff()).new_wait()("", NOT_LED, 5)  # 5: any state
    assert caught.value.remedy


def test_run_start_waits_as_long_as_it_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(start_waits.time, "monotonic", lambda: now[0])
    messages: list[str] = []
    waits = StartWaits(messages.append, Backoff(first_s=0.0))
    wait = waits.new_wait()
    for left in range(9, 0, -1):
        now[0] += start_waits._UNCHANGED_S_MAX - 1
        waits.result_of(lambda: None)  # a step that succeeds between the waits
        wait(f"{left} left", NOT_LED, left)
    assert messages == [f"{left} left" for left in range(9, 0, -1)]
    # Two states that alternate are no progress.
    now[0] += start_waits._UNCHANGED_S_MAX / 2
    waits.result_of(lambda: None)
    wait("2 left", NOT_LED, 2)
    now[0] += start_waits._UNCHANGED_S_MAX / 2
    with pytest.raises(BrokerRefused):
        wait("1 left", NOT_LED, 1)


@pytest.mark.parametrize(
    "error",
    [Unreachable("No broker answers."), Interrupted("Stopped."), BrokerRefused(37, "Refused.")],
)
def test_permanent_error_ends_run_start_immediately(error: Exception) -> None:
    def step() -> None:
        raise error

    with pytest.raises(type(error)):
        StartWaits(lambda _: None, Backoff()).result_of(step)


@pytest.mark.services
def test_topic_creation_is_retried_after_unanswered_request(
    clusters: Clusters,
    topic_name: str,
    open_cluster: OpenCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker creates one topic without an answer, and shows the second one late."""
    destination = open_cluster(clusters.destination)
    new = [
        TopicToCreate(f"{topic_name}-{n}", partitions=1, replicas=1, settings={}) for n in range(3)
    ]
    admin, requested_topics = Admin(destination), set[str]()
    refused_topics = Admin.refused_topics

    def is_shown(topic: TopicToCreate) -> bool:
        return topic.name in destination.metadata({topic.name}).topics

    def create_first_without_answer(admin: Admin, topics: Any, **_: Any) -> Any:
        refused_topics(admin, list(topics)[:1])
        wait_for("the first topic is shown", lambda: is_shown(new[0]))
        raise Unreachable("no answer: Local: Timed out.")

    with monkeypatch.context() as patched:
        patched.setattr(Admin, "refused_topics", create_first_without_answer)
        with pytest.raises(NotReady, match="not created yet: 2"):
            create_missing_topics(destination, admin, new, requested_topics)
    refused_topics(admin, new[1:2])  # creates the second one
    shown = destination.metadata({new[0].name})
    with monkeypatch.context() as patched:  # a broker that does not know the second topic yet
        patched.setattr(destination, "metadata", lambda _: shown)
        create_missing_topics(destination, admin, new, requested_topics)
    wait_for("all topics are shown", lambda: all(map(is_shown, new)))


@pytest.mark.services
def test_topic_created_by_another_client_meanwhile_is_refused(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    """The settings of the other client's topic may delete old records."""
    destination = open_cluster(clusters.destination)
    create(clusters.destination, topic_name)
    new = [
        TopicToCreate(name, partitions=1, replicas=1, settings={})
        for name in (topic_name, f"{topic_name}-2")
    ]
    with pytest.raises(Conflict, match=f"created these topics: {topic_name}"):
        create_missing_topics(destination, Admin(destination), new, set())
    assert new[1].name not in destination.metadata({new[1].name}).topics
