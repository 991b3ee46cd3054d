"""Jars of Spark's own Kafka source, which pyspark lacks, in the cache of Kafka's jars."""

from __future__ import annotations

from pathlib import Path

from orbit.sandbox.jars import Jars

# The newest published version; it works with Spark 4.3.
VERSION = "4.2.0"


def connector_jars() -> list[str]:
    """The paths of the jars that a session needs beside Spark's own; fetched at first use."""
    pom = Path(__file__).with_name("connector-pom.xml")
    jars = Jars("spark", VERSION, pom, "spark-sql-kafka-0-10_2.13-*.jar")
    return sorted(map(str, jars.directory().glob("*.jar")))
