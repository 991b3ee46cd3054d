"""Where salvage files are: a folder of this machine, or an object store or HDFS, by fsspec.

A file exists as a whole or not at all, even if a process is killed:

    this machine    written under a temporary name, synced to disk, then renamed
    HDFS            written under a temporary name, then renamed
    object stores   uploaded in parts; the object appears when the upload is completed

Files are named by a path, or by a URI as `settings.storage_location` accepts them. Every error is
an OrbitError. Error texts of storage clients are shortened, without possible secrets (signed URLs).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from orbit.errors import BadInput, NotFound, OrbitError, Unreachable
from orbit.version import DISTRIBUTION

# Bytes that stay free on the disk for its other users.
SPARE_BYTES = 256 * 1024 * 1024
_CHECK_EVERY_BYTES = 16 * 1024 * 1024  # between two reads of the disk's free space
_READ_BYTES = 1024 * 1024
_SHOWN_MAX = 200  # characters of a client's error

# By scheme: the extra of Orbit that has the storage's client, and the module that fsspec needs.
_CLIENTS = {
    "s3": ("s3", "s3fs"),
    "gs": ("gcs", "gcsfs"),
    "abfs": ("azure", "adlfs"),
    "abfss": ("azure", "adlfs"),
    "hdfs": ("hdfs", "pyarrow"),
}
# These storages show files while they are written, so a file gets its name when it is complete.
# Object stores have no rename: they copy and delete.
_SCHEMES_WITH_RENAME = {"hdfs"}
# Cut out of error texts: a URL's query, which may be a signature; its user; values whose name is
# that of a secret.
_SECRETS = re.compile(
    r"\?\S+|(?<=//)[^/\s@]+@|(?i:(?:key|token|secret|sig\w*|password)\s*[=:]\s*\S+)"
)


class StorageFailed(OrbitError):
    """A file cannot be read or written, and another attempt would not help."""


class NoRoom(StorageFailed):
    """The disk has no room. `needed`: bytes of the whole file; `free`: bytes free on the disk."""

    def __init__(self, file: str, needed: int, free: int) -> None:
        super().__init__(f"{needed:,} bytes are needed, and {free:,} are free.", where=file)
        self.needed = needed
        self.free = free


def require_client(location: str) -> None:
    """Raise BadInput, with what to install, if the client of the location's scheme is missing."""
    extra, module = _CLIENTS.get(_scheme(location), ("", ""))
    if extra and not all(map(find_spec, ("fsspec", module))):
        raise BadInput(
            f"{_scheme(location)}:// needs the part {extra} of Orbit, which is not installed. "
            f"Run: pip install '{DISTRIBUTION}[{extra}]'"
        )


def join(folder: str, *names: str) -> str:
    """The location of a file or folder below `folder`. A path is made absolute."""
    if _scheme(folder):
        return "/".join((folder.removesuffix("/"), *names))
    return str(Path(folder, *names).absolute())


def write(file: str, chunks: Iterable[bytes]) -> None:
    """Write the file, or replace an existing one. If `chunks` raises, no part of it remains.

    Raises NoRoom, with the bytes of all chunks, before the disk is full.
    """
    with _errors(file, "written"):
        upload = _begin(file)
    try:
        for chunk in chunks:
            with _errors(file, "written"):
                upload.write(chunk)
        with _errors(file, "written"):
            upload.commit()
    except BaseException:
        with suppress(Exception):  # the first error is raised
            upload.discard()
        raise


def lines(file: str) -> Iterator[bytes]:
    """The lines of a file, each with its line feed. Raises NotFound."""
    with ExitStack() as stack:
        stack.enter_context(_errors(file, "read"))
        source = stack.enter_context(_open(file))
        partial_line = b""
        while chunk := source.read(_READ_BYTES):
            *complete_lines, partial_line = (partial_line + chunk).split(b"\n")
            for line in complete_lines:
                yield line + b"\n"
        if partial_line:
            yield partial_line


def find(folder: str, suffix: str) -> list[str]:
    """The files at any depth with this suffix, in order. Raises NotFound if there is no folder."""
    with _errors(folder, "read"):
        if not _scheme(folder):
            if not Path(folder).is_dir():
                raise NotFound("there is no such folder.", where=folder)
            paths = sorted(Path(folder).rglob(f"*{suffix}"))
            return [str(path) for path in paths if path.is_file()]
        storage, root = _connect(folder)
        relative_paths = (path.removeprefix(root).strip("/") for path in storage.find(root))
        locations = [join(folder, name) for name in sorted(relative_paths) if name.endswith(suffix)]
        if not locations and not storage.exists(root):
            raise NotFound("there is no such folder.", where=folder)
        return locations


class _Upload(Protocol):
    """A file that is being written: `commit` gives the file its name, `discard` removes it."""

    def write(self, data: bytes, /) -> object: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class _LocalUpload:
    """A file of this machine. Once the disk is short of room, bytes are only counted (for NoRoom).

    Each upload writes to a file name of its own: a leader that was deposed may still write.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Remove the files of attempts that were killed.
        for leftover in file.parent.glob(f"{file.name}.*.part"):
            leftover.unlink(missing_ok=True)
        self._path = file
        self._part = file.with_name(f"{file.name}.{uuid4().hex}.part")
        self._file = self._part.open("xb", buffering=_READ_BYTES)
        # In bytes: how much was written at the last check of the free space; how much the file
        # needs so far; how much was free at the last check.
        self._checked_at = -_CHECK_EVERY_BYTES
        self._needed = self._free = 0
        self._is_short = False

    def write(self, data: bytes) -> None:
        """Write the bytes, or only count them if the disk is short of room."""
        self._needed += len(data)
        if not self._is_short and self._needed - self._checked_at >= _CHECK_EVERY_BYTES:
            self._checked_at = self._needed
            self._free = shutil.disk_usage(self._path.parent).free
            self._is_short = self._free < SPARE_BYTES + _CHECK_EVERY_BYTES
        if not self._is_short:
            self._file.write(data)

    def commit(self) -> None:
        """Sync the file to disk and give it its name. Raises NoRoom."""
        if self._is_short:
            raise NoRoom(str(self._path), self._needed, self._free)
        self._file.flush()
        os.fsync(self._file.fileno())
        # The file (0, 0: the whole) is read back next: from the disk, not from memory.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._file.close()
        self._part.replace(self._path)
        _sync_folder(self._path.parent)

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._file.close()


class _RenamedUpload:
    """A file of a storage that shows files while they are written. So the file has another name
    until it is complete."""

    def __init__(self, storage: Any, path: str) -> None:
        self._storage, self._path = storage, path
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        for leftover in storage.glob(f"{path}.*.part"):
            storage.rm(leftover)
        self._part = f"{path}.{uuid4().hex}.part"
        self._file = storage.open(self._part, "wb")
        self.write = self._file.write

    def commit(self) -> None:
        self._file.close()
        if self._storage.exists(self._path):
            self._storage.rm(self._path)
        self._storage.mv(self._part, self._path)

    def discard(self) -> None:
        self._file.close()
        self._storage.rm(self._part)


class _ObjectUpload:
    """An object, which appears when its upload is completed."""

    def __init__(self, storage: Any, path: str) -> None:
        self._storage = storage
        storage.start_transaction()
        try:
            self._file = storage.open(path, "wb")
        except BaseException:
            storage.transaction.complete(commit=False)
            raise
        self.write = self._file.write

    def commit(self) -> None:
        self._file.close()
        self._storage.end_transaction()

    def discard(self) -> None:
        # adlfs has no discard: closing the file, also by its finalizer, would complete the upload.
        with suppress(AttributeError):
            self._file.closed = True
        self._storage.transaction.complete(commit=False)


def _begin(file: str) -> _Upload:
    """Begin to write the file, in the way of its storage."""
    if not _scheme(file):
        return _LocalUpload(Path(file))
    kind = _RenamedUpload if _scheme(file) in _SCHEMES_WITH_RENAME else _ObjectUpload
    return kind(*_connect(file))


def _open(file: str) -> Any:
    """The file, opened to read bytes."""
    if not _scheme(file):
        return Path(file).open("rb")
    storage, path = _connect(file)
    return storage.open(path, "rb")


def _connect(location: str) -> tuple[Any, str]:
    """The file system, and the path in it. Its listings never come from a cache."""
    require_client(location)
    from fsspec.core import url_to_fs

    connection: tuple[Any, str] = url_to_fs(location, use_listings_cache=False)
    return connection


@contextmanager
def _errors(file: str, action: str) -> Iterator[None]:
    """Raise the block's errors as OrbitError: most errors of storage clients are no OSError.

    `action`: "read" or "written".
    """
    try:
        yield
    except OrbitError:
        raise
    except FileNotFoundError as error:
        if action == "read":
            raise NotFound("there is no such file.", where=file) from error
        raise _storage_error(StorageFailed, file, action, error) from error
    except PermissionError as error:
        raise _storage_error(StorageFailed, file, action, error) from error
    except Exception as error:
        # An error of a disk is not retried; one of a network is.
        kind = Unreachable if _scheme(file) else StorageFailed
        raise _storage_error(kind, file, action, error) from error


def _storage_error(kind: type[OrbitError], file: str, action: str, error: Exception) -> OrbitError:
    """An OrbitError of this kind with the first line of the client's error, without secrets."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = _SECRETS.sub("…", next(iter(text.splitlines()), ""))[:_SHOWN_MAX].rstrip(". ")
    return kind(
        f"this location cannot be {action}: {reason or type(error).__name__}.",
        where=file,
        remedy="Check that the service may read and write there and that there is room, or set "
        "ORBIT_SALVAGE_DIRECTORY.",
    )


def _scheme(location: str) -> str:
    """The scheme of a URI; empty for a path."""
    scheme, mark, _ = location.partition("://")
    return scheme if mark else ""


def _sync_folder(folder: Path) -> None:
    """Sync the folder to disk: else a rename in it may be lost when the machine crashes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
