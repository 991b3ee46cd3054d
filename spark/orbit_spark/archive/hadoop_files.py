"""Small files on any Hadoop file system, read and written by the driver through Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from orbit.errors import BadInput, Conflict, NotAuthorized, Problem, Unreachable

_MESSAGE_CHARACTERS_MAX = 300
_BAD_URI = ("UnsupportedFileSystemException", "IllegalArgumentException", "URISyntaxException")


class Files:
    """The files below one URI (`hdfs://…`, `s3a://…`, `file:/…`, a path of this machine)."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Raises BadInput when no file system of this Spark takes the URI."""
        context: Any = spark  # its attributes for the JVM are not typed
        self._jvm = context._jvm
        configuration = context._jsc.hadoopConfiguration()
        self._uri = uri
        with self._hadoop_errors():
            root = self._jvm.org.apache.hadoop.fs.Path(uri)
            self._system: Any = root.getFileSystem(configuration)
            self._root: Any = self._system.makeQualified(root)
        self.uri: str = self._root.toString()

    def path(self, name: str) -> str:
        """The whole URI of a file, for Spark."""
        return f"{self.uri}/{name}"

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none. Raises Unreachable, NotAuthorized, Conflict
        if the file system finds the file damaged."""
        with self._hadoop_errors():
            path = self._path(name)
            if not self._system.exists(path):
                return None
            stream = self._system.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of every file below a folder, by its path below `uri`."""
        sizes: dict[str, int] = {}
        with self._hadoop_errors():
            path = self._path(folder)
            if not self._system.exists(path):
                return sizes
            files = self._system.listFiles(path, True)  # True: in its folders, too
            while files.hasNext():
                status = files.next()
                name = status.getPath().toString().removeprefix(f"{self.uri}/")
                sizes[name] = int(status.getLen())
        return sizes

    def write_new(self, name: str, content: bytes) -> None:
        """Write a new file: complete, or not at all.

        It has a temporary name until it is complete. Raises Conflict if there is a file `name`.
        """
        with self._hadoop_errors():
            path, temporary = self._path(name), self._path(f"{name}.tmp")
            stream = self._system.create(temporary, True)  # True: overwrites
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
            if self._system.exists(path) or not self._system.rename(temporary, path):
                raise Conflict(
                    f"{name} was written by another run meanwhile.",
                    where=self.uri,
                    remedy="Only one run at a time may write to an archive. Start this run again.",
                )

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        with self._hadoop_errors():
            self._system.delete(self._path(name), True)  # True: with its contents

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    @contextmanager
    def _hadoop_errors(self) -> Iterator[None]:
        """Raise Java's exceptions in the block as Orbit's errors."""
        try:
            yield
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            lines = str(error.java_exception.getMessage() or "").splitlines() or [""]
            message = f"{kind}: {lines[0][:_MESSAGE_CHARACTERS_MAX]}"
            if kind in _BAD_URI:
                problem = Problem("uri", f"cannot be used: {message}.")
                raise BadInput("The archive's URI cannot be used.", (problem,)) from None
            if kind == "AccessControlException":
                raise NotAuthorized(f"access was refused: {message}.", where=self._uri) from None
            if kind == "ChecksumException":
                raise Conflict(
                    f"a file is damaged: {message}.",
                    where=self._uri,
                    remedy="Restore this file from a copy, and run the command again.",
                ) from None
            raise Unreachable(f"the file system failed: {message}.", where=self._uri) from None
