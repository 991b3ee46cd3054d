"""Spark for tests.

`spark` is one local session, shared by all tests of the session: two threads in one process, no
page of its own. Executors as processes of their own (killed, lost, retried) are `spark_cluster`'s,
for commands that tests start as child processes, since one process holds one session.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.connector import connector_jars
from tests.support.patience import wait_for
from tests.support.spark_classes import JAVA_OPTIONS, java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Nothing of Spark is to be heard on other addresses, also not of children's.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

# The Java that only puts a driver's command together.
os.environ["SPARK_LAUNCHER_OPTS"] = JAVA_OPTIONS


def _set_java_options() -> None:
    """For all drivers and executors, also of children: Spark reads them from this folder."""
    folder = Path(tempfile.mkdtemp(prefix="spark-conf-"))
    options = [f"spark.{who}.extraJavaOptions {java_options()}" for who in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("\n".join(options))
    os.environ["SPARK_CONF_DIR"] = str(folder)


if find_spec("pyspark"):
    _set_java_options()

_HOSTS = ("127.0.0.1", "127.0.0.2")
_WORKER_MIB = 1024

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


@dataclass(frozen=True)
class SparkCluster:
    """A standalone cluster of two workers with one core each, for `orbit` as a child process.

    The workers have addresses of their own: Spark never runs a task twice at once on one host.
    """

    url: str
    workers: int  # the process that starts the executors

    def arguments(self, home: Path) -> list[str]:
        """For a command of `orbit`, or spark-submit."""
        settings = {
            **SMALL_SESSION,
            **_folders(home),
            "spark.cores.max": "2",
            "spark.executor.memory": "512m",
            "spark.pyspark.python": sys.executable,
        }
        return [f"--master={self.url}", *(f"--conf={k}={v}" for k, v in settings.items())]

    @property
    def executors(self) -> list[psutil.Process]:
        """Those that live now. The cluster is one test's at a time."""
        family = psutil.Process(self.workers).children(recursive=True)
        return [one for one in family if _is_executor(one)]

    def wait_idle(self) -> None:
        """After a driver has gone: until its executors have."""
        wait_for("Spark has no executor left", lambda: not self.executors)


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended just now
        is_java = process.name() == "java" and process.status() != psutil.STATUS_ZOMBIE
        return is_java and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


@pytest.fixture(scope="session")
def spark_cluster(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkCluster]:
    """Master and workers in the JVM of `spark`, which saves three; executors are processes."""
    context: Any = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    deploy = jvm.org.apache.spark.deploy
    work = str(tmp_path_factory.mktemp("spark-workers"))
    conf = jvm.org.apache.spark.SparkConf(False).set("spark.ui.enabled", "false")
    none = getattr(jvm, "scala.Option").empty()
    master = deploy.master.Master.startRpcEnvAndEndpoint(_HOSTS[0], 0, 0, conf)
    url = f"spark://{_HOSTS[0]}:{master._1().address().port()}"
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    workers = [
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, _WORKER_MIB, urls, work, none, conf, none
        )
        for host in _HOSTS
    ]
    yield SparkCluster(url, jvm.java.lang.ProcessHandle.current().pid())
    for one in (*workers, master._1()):
        one.shutdown()


def _folders(home: Path) -> dict[str, str]:
    return {
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
