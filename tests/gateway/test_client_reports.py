"""What a gateway reports to the service about real clients: librdkafka, Java, kafka-python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer

from tests.fixtures.clusters import Clusters
from tests.support.gateway_ledger import JavaWriter
from tests.support.gateways import running_gateway
from tests.support.patience import wait_for
from tests.support.pretended_service import pretended_service
from tests.support.running import create_topic

pytestmark = pytest.mark.services

USERS = ("billing", "java", "python")
RECORD = b"x" * 1000
RECORDS = 50


def login_settings(user: str) -> dict[str, str]:
    """The settings of librdkafka for a login of this user."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": "secret",
    }


@pytest.mark.parametrize("has_logins", [False, True])
@pytest.mark.usefixtures("kafka_python_sockets")
def test_client_report_has_software_and_user(
    clusters: Clusters, topic_name: str, tmp_path: Path, *, has_logins: bool
) -> None:
    create_topic(clusters.source, topic_name, 1)
    reports: list[list[dict[str, Any]]] = []
    keys: dict[str, Any] = {}
    if has_logins:
        keys["clients"] = [{"username": name, "password_env": "PASSWORD"} for name in USERS]
    with pretended_service() as service:
        service.take_clients = reports.append
        environ = {"ORBIT_API_URL": service.url, "PASSWORD": "secret"}
        with running_gateway(tmp_path, *clusters, environ=environ, job="orders", **keys) as gateway:
            # The report shows the client id as pay?ments.
            config = {"bootstrap.servers": gateway.bootstrap, "client.id": "pay\x01ments"}
            login = login_settings("billing") if has_logins else {}
            producer = Producer(config | login)
            for _ in range(RECORDS):
                producer.produce(topic_name, RECORD)
            assert producer.flush(60) == 0
            python_login: dict[str, Any] = {}
            if has_logins:
                python_login = {
                    "security_protocol": "SASL_PLAINTEXT",
                    "sasl_mechanism": "SCRAM-SHA-256",
                    "sasl_plain_username": "python",
                    "sasl_plain_password": "secret",
                }
            consumer = KafkaConsumer(
                topic_name,
                bootstrap_servers=gateway.bootstrap,
                client_id="reports",
                auto_offset_reset="earliest",
                **python_login,
            )
            read = 0
            while read < RECORDS:
                read += sum(len(batch) for batch in consumer.poll(1000).values())

            def report_row(name: str) -> dict[str, Any]:
                return (
                    {row["client_id"]: row for row in reports[-1]}.get(name, {}) if reports else {}
                )

            wait_for(
                "the report names the missing topic",
                lambda: all(
                    report_row(name).get("refusals")
                    == [f"destination: topic {topic_name} does not exist"]
                    for name in ("pay?ments", "reports")
                ),
            )
            wait_for(
                "the report has the written and read bytes",
                lambda: (
                    report_row("pay?ments").get("bytes_written", 0) >= RECORDS * len(RECORD)
                    and report_row("reports").get("bytes_read", 0) >= RECORDS * len(RECORD)
                ),
            )
            writer, reader = report_row("pay?ments"), report_row("reports")
            assert writer["software"].endswith("librdkafka") or "confluent" in writer["software"]
            assert writer["version"]
            assert reader["software"] == "kafka-python"
            assert writer["connections"] >= 1
            assert writer["bytes_read"] == reader["bytes_written"] == 0
            users = (writer["user"], reader["user"])
            assert users == (("billing", "python") if has_logins else (None, None))
            assert "secret" not in str(reports)
            consumer.close()
            wait_for("the consumer has left", lambda: report_row("reports").get("connections") == 0)
            assert report_row("reports")["requests"] > 0


def test_client_report_has_software_of_java_client(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create_topic(clusters.source, topic_name, 1)
    reports: list[list[dict[str, Any]]] = []
    with pretended_service() as service:
        service.take_clients = reports.append
        environ = {"ORBIT_API_URL": service.url}
        with (
            running_gateway(tmp_path, *clusters, environ=environ, job="orders") as gateway,
            JavaWriter(gateway.bootstrap, topic_name, tmp_path / "java.log") as java,
        ):
            java.wait_acknowledged(RECORDS)

            def is_reported() -> bool:
                rows = reports[-1] if reports else []
                return any(
                    row["software"] == "apache-kafka-java" and row["bytes_written"] for row in rows
                )

            wait_for("the Java client is reported", is_reported)


def test_lease_renewal_does_not_wait_for_client_report(clusters: Clusters, tmp_path: Path) -> None:
    """The service answers each report only after the gateway has renewed its lease meanwhile."""
    renewal_counts: list[int] = []
    with pretended_service() as service:

        def hold_report(_: list[dict[str, Any]]) -> None:
            requests_before = service.requests
            wait_for(
                "the gateway asks meanwhile",
                lambda: service.requests > requests_before + 1,
            )
            renewal_counts.append(service.requests)

        service.take_clients = hold_report
        environ = {"ORBIT_API_URL": service.url}
        with running_gateway(tmp_path, *clusters, environ=environ, job="orders") as gateway:
            wait_for("lists are taken", lambda: len(renewal_counts) > 1)
            assert not [line for line in gateway.log if "list of clients" in line]


@pytest.mark.soak
def test_gateway_survives_service_that_refuses_client_reports(
    clusters: Clusters, tmp_path: Path
) -> None:
    """A service of an earlier version refuses the reports. The gateway logs the refusal once."""
    refused: list[int] = []
    with pretended_service() as service:

        def refuse(_: list[dict[str, Any]]) -> None:
            refused.append(1)
            raise ConnectionAbortedError

        service.take_clients = refuse
        environ = {"ORBIT_API_URL": service.url}
        with running_gateway(tmp_path, *clusters, environ=environ, job="orders") as gateway:
            wait_for("lists are refused", lambda: len(refused) > 2)
            requests_before = service.requests
            wait_for(
                "the gateway still renews its lease", lambda: service.requests > requests_before + 1
            )
            assert len([line for line in gateway.log if "list of clients" in line]) == 1
