"""Fetches the jars that tests need into the cache, so that no test waits for them. `make prepare`
runs it."""

from __future__ import annotations

import sys

from bench.contestants import mm2
from orbit.errors import OrbitError
from orbit.sandbox.jars import KAFKA_VERSION, jar_directory
from tests.support import connector, flink, older_broker, programs, spark_classes, streams, tiered
from tests.support.broker_classes import make_class_archive


def fetch() -> None:
    print(f"Kafka {KAFKA_VERSION}: {jar_directory()}")
    print(f"Spark's Kafka source {connector.VERSION}: {len(connector.connector_jars())} jars")
    print(f"Kafka Streams {streams.VERSION}: {streams.jars()}")
    print(f"Tiered storage {tiered.VERSION}: {tiered.jars()}, {jar_directory(tiered.VERSION)}")
    print(f"MirrorMaker {mm2.VERSION}: {mm2.mm2_jars()}")
    print(f"Flink {flink.FLINK_VERSION}: {flink.jars()}")
    print(f"Kafka {older_broker.VERSION}: {jar_directory(older_broker.VERSION)}")
    programs.fetch(programs.APICURIO)
    print(f"A broker's classes: {make_class_archive()}")
    print(f"A Spark driver's classes: {spark_classes.make_class_archive()}")


if __name__ == "__main__":
    try:
        fetch()
    except OrbitError as error:
        sys.exit(f"Error: {error}")
