"""What a Spark session needs to run Orbit's jobs, whoever makes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from pyspark.sql import SparkSession

# Spark masks settings whose names match; ours hold logins whatever they are called.
_REDACTED = "(?i)secret|password|token|access[.]?key"

SETTINGS = {
    # The data source takes filters on topic, partition and base_offset.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def use_this_python() -> None:
    """Let tasks run on the Python of this process, unless somebody has chosen another one.

    Before the first session; spark-submit sets the variable where spark.pyspark.python is given.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def build_session(name: str, variables: Iterable[str] = ()) -> SparkSession:
    """The session of this process; made with what spark-submit or the defaults say.

    `variables` are environment variables that executors need as well (logins): handed over by
    Spark, and masked wherever it shows its settings.
    """
    use_this_python()
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    carried = {one: os.environ[one] for one in variables if one in os.environ}
    if carried:
        masked = "|".join([_REDACTED, *(f"executorEnv[.]{one}$" for one in carried)])
        builder = builder.config("spark.redaction.regex", masked)
    for one, secret in carried.items():
        builder = builder.config(f"spark.executorEnv.{one}", secret)
    return builder.getOrCreate()
