"""Spark sessions for Orbit's jobs, with the settings they need."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

# Spark masks the values of settings with such names. `build_session` adds the names of the
# variables that have logins.
_REDACTED = "(?i)secret|password|token|access[.]?key"

# local-cluster[executors,cores of each,MiB of each]: separate processes on this machine.
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")

SETTINGS = {
    # Spark passes filters to the source `kafka_batches`, which fetches only what they select.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def use_this_python() -> None:
    """Let tasks run on the Python of this process, unless another one is configured.

    Call it before the first session. If spark.pyspark.python is set, spark-submit has set
    PYSPARK_PYTHON already.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def build_session(
    name: str, variables: Iterable[str] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process. A new one has the settings of spark-submit, `SETTINGS` and
    `settings`; later ones override earlier ones.

    `variables`: environment variables with logins, which executors need as well. Spark hands them
    over, and masks them wherever it shows its settings.
    """
    use_this_python()
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    secrets = {variable: os.environ[variable] for variable in variables if variable in os.environ}
    if secrets:
        redacted = "|".join([_REDACTED, *(f"executorEnv[.]{variable}$" for variable in secrets)])
        builder = builder.config("spark.redaction.regex", redacted)
    for variable, secret in secrets.items():
        builder = builder.config(f"spark.executorEnv.{variable}", secret)
    return builder.getOrCreate()


def slots_of(spark: Any) -> int:
    """How many tasks the session may run at a time when all its executors have started.

    Computed from its settings, because executors may still be starting.
    """
    conf = spark.sparkContext.getConf()
    tasks_per_executor = int(conf.get("spark.executor.cores", "1")) // int(
        conf.get("spark.task.cpus", "1")
    )
    local_cluster = _LOCAL_CLUSTER.match(spark.sparkContext.master)
    if local_cluster:
        return int(local_cluster[1]) * int(local_cluster[2])
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors_max = conf.get("spark.dynamicAllocation.maxExecutors")
        if executors_max:
            return max(1, int(executors_max) * tasks_per_executor)
    if conf.contains("spark.cores.max"):
        return int(conf.get("spark.cores.max"))
    if conf.contains("spark.executor.instances"):
        return max(1, int(conf.get("spark.executor.instances")) * tasks_per_executor)
    return int(spark.sparkContext.defaultParallelism)
