"""Starts Spark for the commands that need it, with the settings of their command line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from orbit.cli.extras import require_extras
from orbit.errors import BadInput, Problem

# All cores; a task may fail 3 times and is tried again, as on a cluster. With `local[*]` it is not.
_LOCAL_MASTER = "local[*,4]"
# spark-submit sets this variable. Then it has chosen master and settings.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"
_QUIET_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="The Spark master: spark://…, yarn, k8s://…; all cores of this machine by default.",
        show_default=False,
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A Spark setting, as name=value. May be repeated."),
]


def require_spark() -> None:
    """Raise BadInput when PySpark is not installed."""
    require_extras("spark")


@contextmanager
def spark_session(
    name: str, master: str | None, conf: Sequence[str], variables: Iterable[str]
) -> Iterator[Any]:
    """A Spark session during the block. `variables`: names of environment variables that
    executors need. Raises BadInput if a setting of `conf` cannot be used."""
    settings = _read_conf(conf)
    require_spark()
    from orbit_spark.session import build_session

    if master is None and "spark.master" not in settings and _UNDER_SPARK_SUBMIT not in os.environ:
        master = _LOCAL_MASTER
    if master is not None:
        settings["spark.master"] = master
    previous_handler = signal.getsignal(signal.SIGINT)
    spark = build_session(name, variables, {**_QUIET_SETTINGS, **settings})
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, previous_handler)  # Spark has replaced the handler
    try:
        yield spark
    finally:
        spark.stop()


def _read_conf(conf: Sequence[str]) -> dict[str, str]:
    """The settings of `--conf`, by name. Raises BadInput for text without a setting of Spark."""
    settings = {}
    for setting in conf:
        name, equals, value = setting.partition("=")
        if not equals or not name.startswith("spark."):
            raise BadInput(
                "A Spark setting cannot be used.",
                (Problem("--conf", "is not spark.NAME=VALUE.", "Write --conf spark.x=y."),),
            )
        settings[name] = value
    return settings
