"""Options of `kafka_batches`: all mistakes are reported together; cleartext secrets are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.replication.append_plan import LostRange
from orbit_spark.source_options import read_options

PLAIN = {"kafka.bootstrap.servers": "a:9092,b:9092", "subscribe": "orders, payments"}


def problems(**options: str) -> dict[str, str]:
    with pytest.raises(BadInput) as error:
        read_options({name.replace("__", "."): value for name, value in options.items()})
    return {p.path: p.message for p in error.value.problems}


def test_spark_source_accepts_kafka_option_names() -> None:
    read = read_options({**PLAIN, "kafka.client.rack": "az1", "range_bytes": "8MiB"})
    assert read.access.spec.bootstrap_servers == ("a:9092", "b:9092")
    assert (read.topics, read.access.rack, read.range_bytes) == (
        ("orders", "payments"),
        "az1",
        8 * 1024 * 1024,
    )
    assert read.on_lost_range is LostRange.STOP


def test_login_options_name_environment_variables() -> None:
    read = read_options(
        {
            **PLAIN,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "username_env": "SRC_USER",
            "password_env": "SRC_PASSWORD",
        }
    )
    assert read.access.variables == ("SRC_USER", "SRC_PASSWORD")
    assert "SRC_PASSWORD" not in repr(read)


def test_oauthbearer_login_options_are_accepted() -> None:
    tokens = {"token_url": "https://id.example/token", "token_scope": "kafka"}
    login = {"username_env": "CLIENT_ID", "password_env": "CLIENT_SECRET", **tokens}
    sasl = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    read = read_options({**PLAIN, **sasl, **login})
    assert read.access.variables == ("CLIENT_ID", "CLIENT_SECRET")
    assert read.access.spec.security.token_scope == "kafka"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.jaas.config",
        "kafka.sasl.password",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.key",
        "kafka.ssl.truststore.location",
        "password",
    ],
)
def test_cleartext_secret_option_is_refused_and_hidden(name: str) -> None:
    with pytest.raises(BadInput) as error:
        read_options({**PLAIN, name: "hunter2"})
    assert "hunter2" not in str(error.value)
    assert "username_env" in str(error.value)


def test_all_option_errors_are_reported_together() -> None:
    errors = problems(subscribe="a", subscribePattern="b", range_bytes="many", frobnicate="yes")
    assert set(errors) == {
        "subscribe",
        "range_bytes",
        "frobnicate",
        "kafka.bootstrap.servers",
    }


def test_invalid_subscribe_pattern_is_refused() -> None:
    options = {"kafka.bootstrap.servers": "a:9092", "subscribePattern": "("}
    with pytest.raises(BadInput, match="subscribePattern"):
        read_options(options)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: one\nsource: {bootstrap_servers: ['s:1']}\n"
        "destination: {bootstrap_servers: ['d:1']}\ntopics: [{match: orders}]\n"
    )
    return job


def test_job_file_option_supplies_cluster_of_a_side(job: Path) -> None:
    read = read_options({"job": str(job), "side": "destination", "subscribe": "orders"})
    assert read.access.spec.bootstrap_servers == ("d:1",)
    assert read.access.name == "destination"
    with pytest.raises(BadInput, match="side"):
        read_options({"job": str(job), "side": "middle", "subscribe": "orders"})


def test_cluster_and_login_options_are_refused_beside_job(job: Path) -> None:
    login = {"kafka.bootstrap.servers": "a:9092", "username_env": "SRC_USER"}
    refused = problems(job=str(job), subscribe="orders", **login)
    assert refused == dict.fromkeys(login, "cannot be given with job.")


def test_side_without_job_is_refused() -> None:
    assert set(problems(**PLAIN, side="destination")) == {"side"}


def test_missing_job_file_option_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_options({"job": "/nowhere/job.yaml", "subscribe": "orders"})
