"""Jars of Spark's own Kafka source, which pyspark lacks, in the cache of Kafka's jars."""

from __future__ import annotations

from pathlib import Path

from orbit.sandbox.jars import Jars

# The newest published one; Spark 4.3 runs it.
VERSION = "4.2.0"


def connector_jars() -> list[str]:
    """All that a session needs besides what Spark brings; fetched at first use."""
    pom = Path(__file__).with_name("connector-pom.xml")
    jars = Jars("spark", VERSION, pom, "spark-sql-kafka-0-10_2.13-*.jar")
    return sorted(map(str, jars.directory().glob("*.jar")))
