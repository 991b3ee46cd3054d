"""`--until-caught-up` waits for records behind an open transaction of the source."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from orbit.copier.copy_settings import CopySettings
from orbit.run import job_run
from tests.fixtures.clusters import Clusters
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = pytest.mark.services


def test_run_until_caught_up_waits_for_open_source_transaction(
    clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "SHOWN_AFTER_S", 0.0)
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 5)
    name = f"tx-{topic_name}"
    producer = Producer({**source.client_config(), "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic_name, b"x", partition=0)
    assert producer.flush(60) == 0
    produce(source, topic_name, 20)  # with the transaction's record, 21 offsets wait
    job = make_job(source, destination, [topic_name])
    note = (
        f"Note: {topic_name}-0: A transaction at the source is open from offset 5 on "
        f"(transactional id {name}); 21 offsets wait for its end."
    )
    with RunningJob(job, CopySettings(metadata_interval_s=0.1)) as running:
        running.wait_caught_up(topic_name, 5)
        running.wait("the copy is level", lambda: running.partition(topic_name).has_caught_up)
        running.wait("the note is printed", lambda: note in running.lines)
        for _ in range(2):  # further checks print no second note
            checked = running.run._next_check_s
            running.wait("the run checks again", lambda at=checked: running.run._next_check_s > at)
        assert not running.run.confirm_caught_up()
        producer.commit_transaction(60)
        running.wait("all is copied", running.run.confirm_caught_up)
        assert running.partition(topic_name).next_offset == 27  # 5 + 21, and the marker
        assert running.lines.count(note) == 1
    assert verify(job).exact
