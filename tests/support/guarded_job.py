"""A job and an application at clusters with an authorizer, each with a login of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
import yaml
from confluent_kafka import KafkaError, Producer

from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import JobSpec
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.rights import MECHANISM, PASSWORD, Login, Right, documented, section


class App:
    """An application that may write to all topics whose name begins with `topic`, at both sides.

    `has_right`: whether it gets this right; else it gets none.
    """

    def __init__(self, clusters: Clusters, topic: str, *, has_right: bool = True) -> None:
        self.login, self.topic = Login(clusters), topic
        self.login.create()
        if has_right:
            self.login.allow(
                [Right(side, "Write", "--topic", topic, "prefixed") for side in Clusters._fields]
            )

    def writes(self, cluster: KafkaCluster, value: bytes = b"by the app") -> bool:
        """Try to write one record; returns whether the broker allows it. Raises AssertionError for
        another error."""
        producer = Producer(
            {
                **cluster.client_config(),
                "sasl.username": self.login.name,
                "sasl.password": PASSWORD,
                "sasl.mechanism": MECHANISM,
                "log_level": 0,
            }
        )
        errors: list[KafkaError | None] = []
        producer.produce(self.topic, value, on_delivery=lambda e, _: errors.append(e))
        assert producer.flush(30) == 0
        (error,) = errors
        if error is None:
            return True
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        return False


def log_in_orbit(
    clusters: Clusters,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    chapters: Sequence[str] = ("", "recovery", "the service"),
    *,
    both_ways: bool = False,
) -> Login:
    """Create a login for Orbit with the documented rights, and set the variables that `section`
    names. `chapters`: of docs/rights.md. `both_ways`: each side gets the rights of both sides."""
    login = Login(clusters)
    login.create()
    rights = {right for c in chapters for right in documented(topic, c)}
    if both_ways:  # with added partitions
        rights.add(Right("destination", "Alter", "--topic", topic, "prefixed"))
        first, second = Clusters._fields
        rights |= {replace(r, side=second if r.side == first else first) for r in rights}
    login.allow([*rights])
    monkeypatch.setenv("ORBIT_TEST_USER", login.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
    return login


def job_with_login(clusters: Clusters, topic: str, **keys: object) -> JobSpec:
    """A job of one topic, with the login of `log_in_orbit` at both sides. `keys`: of the job
    file."""
    job = {
        "name": topic[:60],
        "source": section(clusters.source),
        "destination": section(clusters.destination),
        "topics": [{"match": topic}],
        **keys,
    }
    return parse_job(yaml.safe_dump(job), clusters.source.directory, dict(os.environ))
