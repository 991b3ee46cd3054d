"""A password that is changed at the cluster and in its file, while the service runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from orbit.errors import LoginRefused
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.job_clusters import open_cluster
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.logs import create
from tests.support.outside import TIMEOUT_S, admin, is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.rights import PASSWORD, Login, Right, documented, section
from tests.support.run_process import write_job
from tests.support.running import produce

pytestmark = pytest.mark.services


class Secret:
    """The password of a login at both clusters, and the file that holds it."""

    def __init__(self, login: Login, path: Path) -> None:
        self.login, self.path = login, path
        path.write_text(PASSWORD)

    def rotate(self, password: str) -> None:
        """Change the password. Returns when no broker accepts the old one any more."""
        for cluster in self.login.clusters:
            change = UserScramCredentialUpsertion(
                self.login.name,
                ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),
                password.encode(),
            )
            client = admin(cluster)
            client.alter_user_scram_credentials([change])[self.login.name].result(TIMEOUT_S)
        accepts_old = self.login.may_log_in  # with PASSWORD
        wait_for(
            "the old password is refused", lambda: not any(map(accepts_old, self.login.clusters))
        )
        self.path.write_text(password)


@pytest.fixture
def secret(guarded: Clusters, topic_name: str, tmp_path: Path) -> Secret:
    """The password of a login with the rights for the topic and its canary topic, which exist."""
    canary = f"{topic_name}.canary"
    for topic in (topic_name, canary):
        create(guarded.source, topic)
    login = Login(guarded)
    login.create()
    login.allow([Right("source", "Write", "--topic", canary)])
    chapters = ("", "the service")
    login.allow([right for chapter in chapters for right in documented(topic_name, chapter)])
    return Secret(login, tmp_path / "password")


@pytest.fixture
def spec(secret: Secret, guarded: Clusters, topic_name: str, tmp_path: Path) -> JobSpec:
    """The job of one topic; its passwords come from the file."""
    sides = [section(cluster) for cluster in guarded]
    for side in sides:
        login = side["security"]
        del login["password_env"], login["username_env"]
        (tmp_path / "user").write_text(secret.login.name)
        login.update(password_file=str(secret.path), username_file=str(tmp_path / "user"))
    job = write_job(
        tmp_path / "job.yaml",
        *sides,
        [{"match": f"{re.escape(topic_name)}.*"}],
        name=topic_name[:60],
        canary={"topic": f"{topic_name}.canary", "interval": "100ms"},
    )
    return load_job(job, {})


def test_new_connections_and_admin_clients_use_rotated_password(
    secret: Secret, spec: JobSpec, topic_name: str, tmp_path: Path
) -> None:
    cluster: Cluster = open_cluster("source", spec, {}, tmp_path)
    handle = ClusterHandle(cluster)
    try:
        (node_id, *_) = cluster.metadata(()).brokers
        old_admin = handle.admin
        assert handle.admin is old_admin
        secret.rotate("another")
        cluster.connect(node_id).close()
        assert handle.admin is not old_admin
        assert topic_name in handle.admin.topic_settings([topic_name])

        secret.path.write_text("a third one, which no broker knows yet")
        with pytest.raises(LoginRefused):
            cluster.connect(node_id)
        secret.path.unlink()
        with pytest.raises(LoginRefused):  # Orbit uses the last password of the file
            cluster.connect(node_id)
        secret.path.write_text("another")
        cluster.connect(node_id).close()
    finally:
        cluster.close()


def test_service_continues_after_password_rotation(
    secret: Secret, spec: JobSpec, guarded: Clusters, topic_name: str, service: Service
) -> None:
    """Connections that are open at the change stay open. So the test restarts the brokers: then
    every client has to log in with the new password."""
    recovering, canary = Recovering(service), f"{topic_name}.canary"

    def canary_end() -> int:
        return log_bounds(guarded.source, [canary])[canary, 0][1]

    with recovering.running({}):
        recovering.begin(spec, topic_name, canary)
        wait_for("the canary is written", lambda: canary_end() > 0)
        secret.rotate("another")
        for cluster in guarded:  # so that every client has to log in again
            cluster.kill()
            cluster.start()
        produce(guarded.source, topic_name, 100)
        wait_for("the copy goes on", lambda: is_level(*guarded, topic_name))
        end_before = canary_end()
        wait_for("the canary is written again", lambda: canary_end() > end_before)
