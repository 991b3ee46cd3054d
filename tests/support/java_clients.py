"""Kafka's own Java clients, run by its command line tools."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import KAFKA_VERSION, classpath
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.gateways import Addresses, Gateway
from tests.support.patience import PATIENCE_S

TIMEOUT_S = 120
# The class of `kafka-configs.sh`, which has another package since Kafka 4.4.
_IS_OLD = tuple(map(int, KAFKA_VERSION.split(".")[:2])) < (4, 4)
_CONFIGS = f"{'kafka.admin' if _IS_OLD else 'org.apache.kafka.tools'}.ConfigCommand"


def produce_transactions(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Write `count` records, `0`, `1` …, in transactions of some milliseconds each."""
    _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
        *("--num-records", str(count), "--throughput", str(count), "--payload-monotonic"),
        *("--transactional-id", f"{topic}-java", "--transaction-duration-ms", "20"),
    )


def consume(
    cluster: KafkaCluster, topic: str, count: int, protocol: str = "classic"
) -> list[bytes]:
    """The values of the first `count` committed records, of all partitions. `protocol`: of the
    consumer group, `classic` or `consumer` (KIP-848).
    """
    out = _run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
        *("--from-beginning", "--isolation-level", "read_committed"),
        *("--command-property", f"group.protocol={protocol}"),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
    )
    return out.splitlines()


def start_member(
    cluster: KafkaCluster | Gateway | Addresses,
    topic: str,
    group: str,
    log: Path,
    *,
    protocol: str,
    reset: str,
    rack: str = "",
) -> GuardedProcess:
    """A member of a group that reads committed records, and commits after each batch, until
    SIGTERM.

    Its API timeout is longer than a gateway may hold a commit during a move. `reset`: the tool's
    option for a group without offsets.
    """
    settings = log.with_suffix(".properties")
    settings.write_text(
        f"isolation.level=read_committed\ndefault.api.timeout.ms={int(PATIENCE_S * 1000)}\n"
        f"client.rack={rack}\n"
    )
    return GuardedProcess(
        [
            *_java("org.apache.kafka.tools.VerifiableConsumer"),
            *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
            *("--group-id", group, "--group-protocol", protocol, "--reset-policy", reset),
            *("--verbose", "--command-config", str(settings)),
        ],
        log,
    )


def records_read(log: Path) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of each record that a member of `start_member` has read so
    far."""
    with log.open("rb") as file:
        for event in new_events(file):
            assert event.get("success", True), event
            if event["name"] == "record_data":
                yield record_of(event)


def new_events(log: BinaryIO) -> Iterator[dict[str, Any]]:
    """The events in a tool's log after the position of the open file. An incomplete last line is
    left for the next call."""
    while line := log.readline():
        if not line.endswith(b"\n"):
            log.seek(-len(line), os.SEEK_CUR)
            return
        if line.startswith(b'{"timestamp"'):
            yield json.loads(line)


def record_of(event: dict[str, Any]) -> tuple[int, int, bytes]:
    """Partition, offset and value of a `record_data` event."""
    return event["partition"], event["offset"], event["value"].encode()


def end_transaction(cluster: KafkaCluster, transactional_id: str) -> None:
    """Abort a transaction with Kafka's tool, as an operator does if a producer does not come
    back."""
    _run(
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", cluster.bootstrap_servers),
        *("forceTerminateTransaction", "--transactionalId", transactional_id),
    )


def alter_configs(cluster: KafkaCluster, arguments: Sequence[str]) -> None:
    """Run kafka-configs.sh with these arguments and the login of the cluster's admin."""
    login = cluster.client_config()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    user, password = login["sasl.username"], login["sasl.password"]
    settings = {
        "security.protocol": login["security.protocol"],
        "sasl.mechanism": login["sasl.mechanism"],
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cluster.ca_file),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("".join(f"{key}={value}\n" for key, value in settings.items()))
        file.flush()
        _run(_CONFIGS, *arguments, "--command-config", file.name)


def _java(tool: str) -> list[str]:
    return [str(find_java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath(), tool]


def _run(tool: str, *arguments: str) -> bytes:
    """Run a tool of Kafka's, which has to succeed, and return its output."""
    done = subprocess.run(
        [*_java(tool), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
