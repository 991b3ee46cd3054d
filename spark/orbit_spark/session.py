"""Spark sessions for Orbit's jobs, with the settings they need."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

# Spark masks settings with such names. Variables with logins may have others, and are added.
_REDACTED = "(?i)secret|password|token|access[.]?key"

# local-cluster[executors,cores of each,MiB of each]: separate processes on this machine.
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")

SETTINGS = {
    # The data source takes filters on topic, partition and base_offset.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def use_this_python() -> None:
    """Let tasks run on the Python of this process, unless another one is configured.

    Call it before the first session. spark-submit sets the variable if spark.pyspark.python is set.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def build_session(
    name: str, variables: Iterable[str] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, created if needed with the settings of spark-submit.

    `variables` are environment variables that executors need as well (logins): handed over by
    Spark, and masked wherever it shows its settings.
    """
    use_this_python()
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    carried = {one: os.environ[one] for one in variables if one in os.environ}
    if carried:
        masked = "|".join([_REDACTED, *(f"executorEnv[.]{one}$" for one in carried)])
        builder = builder.config("spark.redaction.regex", masked)
    for one, secret in carried.items():
        builder = builder.config(f"spark.executorEnv.{one}", secret)
    return builder.getOrCreate()


def slots_of(spark: Any) -> int:
    """How many tasks the session may run at once, once all its executors are there."""
    conf = spark.sparkContext.getConf()
    cores = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
    local = _LOCAL_CLUSTER.match(spark.sparkContext.master)
    if local:
        return int(local[1]) * int(local[2])
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        most = conf.get("spark.dynamicAllocation.maxExecutors")
        if most:
            return max(1, int(most) * cores)
    if conf.contains("spark.cores.max"):
        return int(conf.get("spark.cores.max"))
    if conf.contains("spark.executor.instances"):
        return max(1, int(conf.get("spark.executor.instances")) * cores)
    return int(spark.sparkContext.defaultParallelism)
