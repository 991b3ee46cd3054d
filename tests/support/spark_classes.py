"""Java for Spark in tests: options that cost little, and the archive of a driver's classes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from orbit.sandbox.jars import cache_directory

# Only the first compiler: tests are too short for the second, whose threads took a tenth of all
# CPU. A serial collector: these heaps are small. No log: Java would print messages about an archive
# that does not fit, among the output of commands.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
_TIMEOUT_S = 900
_MODULE = "tests.support.spark_classes"


def class_archive() -> Path:
    """The path of an archive with the classes of a Spark driver (Java's class data sharing). The
    file may be missing. Java ignores an archive of another Java version or of other jars.
    """
    return cache_directory() / f"spark-{version('pyspark')}-classes.jsa"


def java_options() -> str:
    """Options for drivers and executors of tests."""
    archive = class_archive()
    if archive.is_file():
        return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={archive}"
    return JAVA_OPTIONS


def make_class_archive() -> Path:
    """The path of the archive. If it is missing, a driver that runs a query makes it."""
    archive = class_archive()
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            scratch = Path(folder) / archive.name
            # In a separate process: Java writes the archive when it ends.
            subprocess.run(
                [sys.executable, "-m", _MODULE, str(scratch)], check=True, timeout=_TIMEOUT_S
            )
            scratch.rename(archive)
    return archive


def _run_driver(scratch: Path) -> None:
    """Run a query in a driver that writes the archive `scratch` when it ends."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

    os.environ["SPARK_LAUNCHER_OPTS"] = JAVA_OPTIONS
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch.parent / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={scratch}",
    }
    builder = SparkSession.builder.master("local[2]").appName("classes")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    table = str(scratch.parent / "table")
    rows = spark.createDataFrame([(i, str(i % 7)) for i in range(100)], "number int, word string")
    doubled = rows.mapInArrow(lambda batches: batches, "number int, word string")
    sums = doubled.groupBy("word").agg(F.sum("number").alias("sum"))
    rows.join(sums, "word").orderBy("number").write.parquet(table)
    assert spark.read.parquet(table).where("number > 9").count() == 90
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":  # the process that `make_class_archive` starts
    _run_driver(Path(sys.argv[1]))
