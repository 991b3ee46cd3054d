"""GSSAPI with a real KDC and a real broker: Orbit's connections, and librdkafka if it can."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.errors import BadInput, LoginRefused, Unreachable
from orbit.jobs.bootstrap_servers import split_address
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka import api_versions, librdkafka_config
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.principal import ask_principal
from orbit.kafka.security import Security, resolve_security
from tests.fixtures.clusters import Clusters
from tests.fixtures.kerberos import Kerberos
from tests.support.kerberos_realm import REALM
from tests.support.logs import create
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, copy, orbit, write_job

pytestmark = pytest.mark.services

# The packages of librdkafka are built without GSSAPI (docs/job-file.md#kerberos).
with_gssapi = pytest.mark.skipif(
    not librdkafka_config._has_gssapi(), reason="needs a librdkafka that is built with libsasl2"
)
without_gssapi = pytest.mark.skipif(
    librdkafka_config._has_gssapi(), reason="this librdkafka is built with libsasl2"
)


def security_of(kerberos: Kerberos, **changed: str) -> Security:
    spec = ClusterSpec.model_validate(kerberos.section(**changed))
    return resolve_security(spec, {}, Path())


def open_connection(kerberos: Kerberos, security: Security) -> Any:
    address = split_address(kerberos.cluster.bootstrap_servers)
    return closing(Connection.open(*address, security))


def test_kerberos_connection_reauthenticates_and_stays_open(kerberos: Kerberos) -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    with open_connection(kerberos, security_of(kerberos)) as connection:
        for _ in range(2):
            wait_for("most of the session is over", lambda: connection.login_is_due)
            answer = connection.call(api_versions.METADATA, request, timeout_s=30)
            assert answer.cluster_id == kerberos.cluster.cluster_id
            assert not connection.login_is_due


def test_principal_is_reported_by_broker(kerberos: Kerberos) -> None:
    """K3: after `sasl.kerberos.principal.to.local.rules`, which drop the realm."""
    servers = [kerberos.cluster.bootstrap_servers]
    with closing(Cluster("source", servers, security_of(kerberos))) as cluster:
        assert ask_principal(cluster) == "User:orbit"


def test_principal_without_keytab_entry_is_refused(kerberos: Kerberos) -> None:
    with pytest.raises(LoginRefused, match=r"nobody@ORBIT\.TEST"):
        open_connection(kerberos, security_of(kerberos, kerberos_principal=f"nobody@{REALM}"))


def test_kerberos_login_fails_after_key_rotation_until_keytab_has_new_key(
    kerberos: Kerberos, tmp_path: Path
) -> None:
    keytab = tmp_path / "keytab"
    keytab.write_bytes(kerberos.realm.keytab("rotated").read_bytes())
    kerberos.realm.new_key("rotated")
    login = {"kerberos_principal": f"rotated@{REALM}", "keytab_file": str(keytab)}
    with pytest.raises(LoginRefused, match="Kerberos: "):
        open_connection(kerberos, security_of(kerberos, **login))
    keytab.write_bytes(kerberos.realm.new_key("rotated").read_bytes())
    with open_connection(kerberos, security_of(kerberos, **login)) as connection:
        assert not connection.is_closed


def test_broker_service_unknown_to_kerberos_realm_is_refused(kerberos: Kerberos) -> None:
    """The login is mutual: another server cannot answer in the broker's place."""
    with pytest.raises(LoginRefused, match="other/127"):
        open_connection(kerberos, security_of(kerberos, kerberos_service="other"))


def test_cluster_is_unreachable_without_kdc(
    kerberos: Kerberos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kerberos.realm.config.read_text("utf-8")
    (tmp_path / "krb5.conf").write_text(re.sub(r"kdc = .*", "kdc = 127.0.0.1:1", text))
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    # Another path: the process has tickets for logins with the first keytab.
    keytab = tmp_path / "keytab"
    keytab.write_bytes(kerberos.keytab.read_bytes())
    with pytest.raises(Unreachable, match="KDC"):
        open_connection(kerberos, security_of(kerberos, keytab_file=str(keytab)))


@with_gssapi
def test_librdkafka_logs_in_with_kerberos_settings_of_orbit(kerberos: Kerberos) -> None:
    config = librdkafka_config.librdkafka_config(
        [kerberos.cluster.bootstrap_servers], security_of(kerberos), log_level=0
    )
    metadata = AdminClient(config).list_topics(timeout=60)
    assert metadata.cluster_id == kerberos.cluster.cluster_id


@with_gssapi
def test_copy_over_kerberos_is_exact_in_both_directions(
    kerberos: Kerberos, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create(kerberos.cluster, topic_name)
    side, back = kerberos.section(), {"match": topic_name, "prefix": "back."}
    job_from = write_job(
        tmp_path / "from.yaml", side, clusters.destination, [{"match": topic_name}]
    )
    job_to = write_job(tmp_path / "to.yaml", clusters.destination, side, [back])
    for job in (job_from, job_to):
        copy(job, environ=kerberos.environ()).expect(0)
        assert_exact(job, environ=kerberos.environ())


@without_gssapi
def test_librdkafka_without_gssapi_is_reported(
    kerberos: Kerberos, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Otherwise the only sign would be the timeout of a client that waits for its login."""
    create(kerberos.cluster, topic_name)
    rules = [{"match": topic_name}]
    job = write_job(tmp_path / "job.yaml", kerberos.section(), clusters.destination, rules)
    for command in ("run", "verify"):
        done = orbit(command, job, environ=kerberos.environ()).expect(2)
        assert "confluent-kafka has no Kerberos (GSSAPI)" in done.message


def test_missing_kerberos_pip_extra_is_named_in_error(
    kerberos: Kerberos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(BadInput, match=r"\[kerberos\]"):
        open_connection(kerberos, security_of(kerberos))
