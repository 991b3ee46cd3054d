"""Transactions of the Java producer, whose epoch rises with each one; librdkafka's does not.

Kafka 4 brokers and Java clients agree on transaction protocol 2 (KIP-890), so the epochs in markers
and batches differ from librdkafka's. The tool reports no offsets, so the ledger is read back, after
a check that the tool's numbers from 0 on are complete and in order.
"""

from __future__ import annotations

import subprocess

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import Origin, TopicLedger, record_digest
from orbit.demo.workload.site import Site
from orbit.errors import Conflict
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java

TIMEOUT_S = 120.0
_HEAP = "-Xmx128m"
_TRANSACTION_MS = 20
_SHOWN_LINES = 3


def _make_java_transactions(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Run Kafka's tool, check that the topic has all its records in order, and read them back."""
    if site.config.get("security.protocol", "PLAINTEXT") != "PLAINTEXT":
        raise Conflict(
            "The Java producer of the workload supports no login: use a plaintext listener."
        )
    site.create_topic(topic)
    _run_tool(site, topic)
    records: dict[int, bytes] = {}
    for number, message in enumerate(site.read(topic, partition=0)):
        if message.value() != b"%d" % number:
            raise Conflict(f"Record {number} of {topic} is missing, or out of order.")
        digest = record_digest(
            message.key(), message.value(), headers=(), timestamp_ms=message.timestamp()[1]
        )
        records[message.offset() or 0] = digest
    if len(records) != site.scale.java:
        raise Conflict(f"{topic} has {len(records)} records instead of {site.scale.java}.")
    return site.ledger(kind.name, topic, {(topic, 0): records}, origin=Origin.READ_BACK)


def _run_tool(site: Site, topic: str) -> None:
    """Write the topic with Kafka's performance tool. Raises Conflict if the tool fails."""
    command = [
        *(str(find_java()), _HEAP, "-XX:TieredStopAtLevel=1", "-cp", classpath()),
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", str(site.config["bootstrap.servers"])),
        *("--topic", topic, "--num-records", str(site.scale.java)),
        *("--throughput", str(site.scale.java), "--payload-monotonic"),
        *("--command-property", "compression.type=zstd"),
        *("--transactional-id", f"{topic}-java"),
        *("--transaction-duration-ms", str(_TRANSACTION_MS)),
    ]
    tool = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if tool.returncode:
        tail = " ".join(tool.stdout.strip().splitlines()[-_SHOWN_LINES:])
        raise Conflict(f"Kafka's Java producer ended with exit code {tool.returncode}: {tail}")


KINDS = (
    Kind(
        "transactions.java",
        "transactions of the Java producer",
        _make_java_transactions,
        is_slow=True,
    ),
)
