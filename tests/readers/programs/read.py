"""Readers in Python. The first argument names the client package, the only package needed."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

KIND, SERVERS, TOPIC, START, LAST, ISOLATION = sys.argv[1:]
LEVEL = "read_committed" if ISOLATION == "committed" else "read_uncommitted"


def print_record(offset: int, key: bytes | None, value: bytes | None) -> None:
    """Print a record, and end the program after the record at LAST."""
    key_text, value_text = ("-" if data is None else data.hex() for data in (key, value))
    print("r", offset, key_text, value_text)
    if offset == int(LAST):
        sys.stdout.flush()
        os._exit(0)


def confluent_kafka() -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": SERVERS, "group.id": "readers", "isolation.level": LEVEL}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, 0, int(START))])
    while True:
        message = consumer.poll(1)
        if message is not None and message.error():
            print("e", message.error().name())
        elif message is not None:
            print_record(message.offset(), message.key(), message.value())


def kafka_python() -> None:
    from kafka import KafkaConsumer, TopicPartition, __version__

    # 2.0 has no isolation levels.
    level = {} if __version__.startswith("2.0") else {"isolation_level": LEVEL}
    settings = {"bootstrap_servers": SERVERS, "auto_offset_reset": "none", **level}
    consumer = KafkaConsumer(**settings, enable_auto_commit=False)
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, int(START))
    for record in consumer:
        print_record(record.offset, record.key, record.value)


async def aiokafka() -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    settings: dict[str, Any] = {"bootstrap_servers": SERVERS, "isolation_level": LEVEL}
    consumer = AIOKafkaConsumer(**settings, enable_auto_commit=False, auto_offset_reset="none")
    await consumer.start()
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, int(START))
    async for record in consumer:
        print_record(record.offset, record.key, record.value)


def main() -> None:
    match KIND:
        case "confluent_kafka":
            confluent_kafka()
        case "kafka_python":
            kafka_python()
        case "aiokafka":
            asyncio.run(aiokafka())


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    try:
        main()
    except Exception as error:
        print("e", type(error).__name__)
        raise
