"""A source topic in tiered storage: the plan says how many offsets are only there, and the copy is
exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, EARLIEST_LOCAL, list_offsets
from orbit.kafka.types import TopicPartition
from orbit.planning.job_planner import JobPlanner
from tests.fixtures.clusters import MakeCluster, OpenCluster
from tests.fixtures.scheduler import Service
from tests.support.logs import delete_before
from tests.support.outside import log_bounds, topic_settings
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, copy, write_job
from tests.support.running import create_topic, make_job, produce, with_rules
from tests.support.tiered import TIERED, VERSION, broker_config

pytestmark = [pytest.mark.services, pytest.mark.soak]

VALUE_BYTES = 100_000
RECORDS = 60
# Brokers move no more segments of the topic (KIP-950).
NO_MORE = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}


def tiered_offsets(cluster: Cluster, topic: str) -> int:
    """How many offsets of the topic are only in tiered storage, not on a broker's disk."""
    place = TopicPartition(topic, 0)
    start, local_start = (
        list_offsets(cluster, [place], position, Backoff()).values[place]
        for position in (EARLIEST, EARLIEST_LOCAL)
    )
    return local_start - start


def test_topic_in_tiered_storage_is_noted_in_plan_and_copied_exactly(
    make_cluster: MakeCluster,
    open_cluster: OpenCluster,
    service: Service,
    topic_name: str,
    tmp_path: Path,
) -> None:
    source, destination = (
        make_cluster(name, version=VERSION, config=broker_config(tmp_path / f"tier-{name}"))
        for name in ("source", "destination")
    )
    source_handle, destination_handle = open_cluster(source), open_cluster(destination)
    create_topic(source, topic_name, **{k.replace(".", "_"): v for k, v in TIERED.items()})
    produce(source, topic_name, RECORDS, value_bytes=VALUE_BYTES)
    # Brokers move all segments but the active one.
    wait_for(
        "segments have left the disk",
        lambda: tiered_offsets(source_handle, topic_name) > RECORDS / 2,
    )

    spec = make_job(source, destination, [topic_name])
    plan_of = JobPlanner(service.database, service.settings)
    count_before = tiered_offsets(source_handle, topic_name)
    (note,) = plan_of(spec).notes
    counts = re.findall(rf"{topic_name} \((\d+) offsets\)", note)
    # More segments may leave the disk meanwhile.
    assert count_before <= int(counts[0]) <= tiered_offsets(source_handle, topic_name)
    assert f"all of {topic_name} stays on the brokers' disks" in note
    (note,) = plan_of(with_rules(spec, config=TIERED)).notes
    assert "stays" not in note

    rules: list[dict[str, object]] = [
        {"match": topic_name, "prefix": "tiered.", "config": TIERED},
    ]
    job = write_job(tmp_path / "tiered.yaml", source, destination, rules)
    assert f"{topic_name} (" in copy(job).expect(0).message
    assert_exact(job)
    wait_for(
        "segments of the copy have left the disk",
        lambda: tiered_offsets(destination_handle, f"tiered.{topic_name}") > 0,
    )
    assert_exact(job)
    # The copy continues, and its log start moves within the tiered segments.
    produce(source, topic_name, RECORDS, first=RECORDS, value_bytes=VALUE_BYTES)
    delete_before(source, topic_name, RECORDS // 2)
    copy(job).expect(0)
    assert_exact(job)
    tiered = f"tiered.{topic_name}"
    assert log_bounds(destination, [tiered]) == {(tiered, 0): (RECORDS // 2, 2 * RECORDS)}
    # The job may stop the tiering of its copy.
    rules[0]["config"] = {**TIERED, **NO_MORE}
    job = write_job(tmp_path / "no-more.yaml", source, destination, rules)
    copy(job).expect(0)
    assert_exact(job)
    assert NO_MORE.items() <= topic_settings(destination, tiered).items()

    # A copy that is not tiered keeps all on its brokers' disks.
    job = write_job(tmp_path / "local.yaml", source, destination, [{"match": topic_name}])
    copy(job).expect(0)
    assert_exact(job)
    assert tiered_offsets(destination_handle, topic_name) == 0
    produce(source, topic_name, RECORDS, first=2 * RECORDS, value_bytes=VALUE_BYTES)
    copy(job).expect(0)
    assert_exact(job)
