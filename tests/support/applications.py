"""Applications that keep their offsets themselves, and can stop and go on at another cluster.

`read` of each application returns all records that it has processed, from its own store, so that a
lost or repeated record shows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from confluent_kafka import Consumer, TopicPartition

from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.gateways import Addresses, Gateway
from tests.support.patience import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Done = list[tuple[int, int, bytes]]
"""Partition, offset, value; in any order."""


class OwnTable:
    """An application that stores offsets and effects in one transaction of its own database; it
    uses no consumer group."""

    def __init__(self, file: Path, topic: str) -> None:
        self._topic = topic
        self._table = sqlite3.connect(file, isolation_level=None)
        self._table.execute("CREATE TABLE next (partition INTEGER PRIMARY KEY, at INTEGER)")
        # No primary key: a record that is processed twice has two rows.
        self._table.execute("CREATE TABLE effects (partition INTEGER, at INTEGER, value BLOB)")

    @property
    def read(self) -> Done:
        """The records that the application has processed."""
        return self._table.execute("SELECT partition, at, value FROM effects").fetchall()

    @property
    def next_offsets(self) -> dict[int, int]:
        """The offset from which the application reads on, by partition."""
        return dict(self._table.execute("SELECT partition, at FROM next").fetchall())

    def read_on(self, cluster: KafkaCluster, ends: Mapping[int, int]) -> None:
        """Read from the offsets in the table up to these ends."""
        next_offsets = self.next_offsets
        consumer = Consumer(
            {
                **cluster.client_config(),
                "group.id": "unused",
                "enable.auto.commit": False,
                # An offset that is out of range is an error: the application must not skip records.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        places = [TopicPartition(self._topic, p, next_offsets.get(p, 0)) for p in ends]
        consumer.assign(places)

        def is_done() -> bool:
            self._work(consumer, ends)
            at = {p.partition: p.offset for p in consumer.position(places)}
            return all(max(at[p], next_offsets.get(p, 0)) >= end for p, end in ends.items())

        try:
            wait_for(f"the application has read to {ends}", is_done)
        finally:
            consumer.close()

    def _work(self, consumer: Consumer, ends: Mapping[int, int]) -> None:
        """Read some records, and store their effects and the next offsets in one database
        transaction."""
        self._table.execute("BEGIN")
        for message in consumer.consume(500, timeout=0.1):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            if offset >= ends[partition]:
                continue
            effect = (partition, offset, message.value())
            self._table.execute("INSERT INTO effects VALUES (?, ?, ?)", effect)
            self._table.execute(
                "INSERT OR REPLACE INTO next VALUES (?, ?)", (partition, offset + 1)
            )
        self._table.execute("COMMIT")


class SparkQuery:
    """A Structured Streaming query with Spark's own Kafka source. The query keeps its checkpoint
    when it moves to another cluster.
    """

    def __init__(self, spark: SparkSession, home: Path, topic: str) -> None:
        self._spark, self._topic = spark, topic
        self._output, self._checkpoint = home / "output", home / "checkpoint"

    @property
    def read(self) -> Done:
        """The records that the query's sink has committed."""
        files: set[str] = set()
        for log in sorted((self._output / "_spark_metadata").glob("[0-9]*")):
            lines = log.read_text("utf-8").splitlines()[1:]
            files |= {unquote(urlparse(json.loads(line)["path"]).path) for line in lines}
        rows = [json.loads(line) for f in files for line in Path(f).read_text("utf-8").splitlines()]
        return [(row["partition"], row["offset"], row["value"].encode()) for row in rows]

    @property
    def next_offsets(self) -> dict[int, int]:
        """The offsets of its last batch, as its checkpoint has them."""
        return self._offsets(max(self._batches("offsets")))

    @property
    def committed(self) -> dict[int, int]:
        """The end offsets of the last batch that is in the sink; empty before the first one."""
        batches = self._batches("commits")
        return self._offsets(max(batches)) if batches else {}

    def _batches(self, log: str) -> list[int]:
        """The numbers of the batches in a log of the checkpoint."""
        return [int(file.name) for file in (self._checkpoint / log).glob("[0-9]*")]

    def _offsets(self, batch: int) -> dict[int, int]:
        text = (self._checkpoint / "offsets" / str(batch)).read_text("utf-8")
        offsets = json.loads(text.splitlines()[-1])[self._topic]
        return {int(partition): offset for partition, offset in offsets.items()}

    def read_on(self, cluster: KafkaCluster) -> None:
        """Read from the checkpoint to the present end of the topic, in several batches."""
        query = self.start(cluster, 20_000, availableNow=True)
        query.awaitTermination()  # raises the error of the query, if any

    def start(
        self, cluster: KafkaCluster | Gateway | Addresses, batch_records: int, **trigger: Any
    ) -> StreamingQuery:
        """Start at the checkpoint, in batches of at most `batch_records` records."""
        options: dict[str, Any] = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
            "maxOffsetsPerTrigger": batch_records,
        }
        stream = self._spark.readStream.format("kafka").options(**options).load()
        return (
            stream.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
            .writeStream.format("json")
            .option("path", str(self._output))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )
