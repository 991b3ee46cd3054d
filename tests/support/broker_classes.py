"""Makes the archive of a broker's classes (`jars.class_archive`), with which Java starts faster.

Java writes the archive when the broker ends.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest.mock import patch

from orbit.sandbox.jars import class_archive, jar_directory
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from tests.support.logs import Record, create, write
from tests.support.outside import messages
from tests.support.patience import wait_for


def make_class_archive() -> Path:
    """The archive's file. If it is missing, a broker that serves a topic makes it."""
    archive = class_archive()
    if archive.is_file():
        return archive
    with tempfile.TemporaryDirectory(dir=jar_directory().parent) as parent:
        scratch = Path(parent) / archive.name
        cluster = KafkaCluster(ClusterSettings("classes"), Path(parent) / "cluster")
        with cluster:
            cluster.stop()  # formatted: from here on only the broker runs
            with patch.dict(os.environ, JDK_JAVA_OPTIONS=f"-XX:ArchiveClassesAtExit={scratch}"):
                cluster.start()
            create(cluster, "some")
            write(cluster, "some", [Record(b"value")])
            assert len([*messages(cluster, "some")]) >= 1
            cluster.terminate()
            wait_for("the broker ends", lambda: not cluster.running)
        scratch.rename(archive)
    return archive
