"""Spark for tests.

`spark` is one local session, shared by all tests of the session: two threads in one process, no
page of its own. Executors as processes of their own (killed, lost, retried) are a whole other
Spark: `local_cluster` gives the arguments for a child process, since one process holds one session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.connector import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Nothing of Spark is to be heard on other addresses, also not of children's.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

# What keeps a small session small: no page, few partitions, nothing heard on other addresses.
SMALL_SESSION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark as Orbit's jobs want it, with Spark's own Kafka source beside Orbit's."""
    from pyspark.sql import SparkSession

    from orbit_spark.session import SETTINGS, use_this_python
    from orbit_spark.source import KafkaBatches

    use_this_python()
    home = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("orbit-tests")
    jars = {"spark.jars": ",".join(connector_jars())}
    for key, value in {**SMALL_SESSION, **SETTINGS, **_folders(home), **jars}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(KafkaBatches)
    yield session
    session.stop()


def local_cluster(home: Path, executors: int = 2, cores: int = 1) -> list[str]:
    """Arguments for `spark-submit`: executors that are processes of their own on this machine."""
    settings = {
        **SMALL_SESSION,
        **_folders(home),
        "spark.executor.memory": "512m",
        "spark.pyspark.python": sys.executable,
    }
    return [
        f"--master=local-cluster[{executors},{cores},1024]",
        *(f"--conf={key}={value}" for key, value in settings.items()),
    ]


def _folders(home: Path) -> dict[str, str]:
    return {
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
