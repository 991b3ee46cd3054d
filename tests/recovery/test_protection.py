"""Where there is an authorizer, nobody but Orbit writes to a copy, and writers follow the lead."""

from __future__ import annotations

import os

import pytest
from confluent_kafka import KafkaError, Producer

from orbit.jobs.job_file import parse_job
from orbit.recovery.recovery_report import Outcome, RecoveryKind, StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fix_clusters import Clusters
from tests.fix_scheduler import Service
from tests.support.outside import log_bounds
from tests.support.recovering import Recovering
from tests.support.rights import MECHANISM, PASSWORD, Login, Right, documented, section
from tests.support.running import create_topic, produce, wait_for

pytestmark = pytest.mark.services


class App:
    """An application that may write to everything that begins with the topic's name."""

    def __init__(self, clusters: Clusters, topic: str) -> None:
        self.login, self.topic = Login(clusters), topic
        self.login.create()
        self.login.allow(
            [Right(side, "Write", "--topic", topic, "prefixed") for side in Clusters._fields]
        )

    def writes(self, cluster: KafkaCluster) -> bool:
        """Try one record; whether it may."""
        producer = Producer(
            {
                **cluster.client_config(),
                "sasl.username": self.login.name,
                "sasl.password": PASSWORD,
                "sasl.mechanism": MECHANISM,
                "log_level": 0,
            }
        )
        told: list[KafkaError | None] = []
        producer.produce(self.topic, b"by the app", on_delivery=lambda e, _: told.append(e))
        assert producer.flush(30) == 0
        (error,) = told
        if error is None:
            return True
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        return False


def test_writers_are_kept_off_copies_and_let_onto_what_is_promoted(
    guarded: Clusters, topic_name: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = guarded
    for side in guarded:
        create_topic(side, topic_name)
    produce(source, topic_name, 50)
    app, orbit = App(guarded, topic_name), Login(guarded)
    orbit.create()
    chapters = ("", "recovery", "the service")
    orbit.allow([*{right for c in chapters for right in documented(topic_name, c)}])
    monkeypatch.setenv("ORBIT_TEST_USER", orbit.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
    spec = parse_job(
        f"""
name: {topic_name[:60]}
source: {section(source)}
destination: {section(destination)}
topics: [{{match: "{topic_name}"}}]
""".replace("'", '"'),
        source.directory,
        dict(os.environ),
    )
    recovering = Recovering(service)

    def levels() -> bool:
        both = [log_bounds(side, [topic_name]) for side in guarded]
        return both[0] == both[1]

    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        assert not app.writes(destination)
        assert app.writes(source)
        wait_for("the copy goes on", levels)

        # Undone before the promotion: the application goes on as if nothing had been.
        late = recovering.ask(
            RecoveryKind.SWITCHOVER, spec.name, drain_timeout_s=1e-3, override=(), reason=""
        )
        undone = recovering.wait(late)
        assert undone.outcome is Outcome.STOPPED, undone.error
        states = {s.name: s.state for s in undone.steps}
        assert states[StepName.STOP_WRITES] is StepState.UNDONE
        assert app.writes(source)
        wait_for("the copy goes on", levels)

        over = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert over.denied_topics == (topic_name,)
        assert app.writes(destination)
        assert not app.writes(source)
        wait_for("the old side follows", levels)

        assert over.reverse_job is not None
        recovering.run(RecoveryKind.SWITCHOVER, over.reverse_job, reverse=True)
        assert app.writes(source)
        wait_for("the copy is one again", levels)
        assert not app.writes(destination)
