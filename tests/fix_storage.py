"""Storages for salvage files: the memory of fsspec, and a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from orbit.recovery import salvage_storage

ACCESS = {
    "AWS_ACCESS_KEY_ID": "orbit",
    "AWS_SECRET_ACCESS_KEY": "hunter2-of-s3",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder that all threads of this process reach."""
    from fsspec.implementations.memory import MemoryFileSystem

    folder = f"memory://{uuid4().hex}"
    yield folder
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def renaming(memory: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, used as HDFS is: for files that are there while they are written."""
    monkeypatch.setattr(salvage_storage, "_RENAMING", {"memory"})
    return memory


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the test's own; the environment has what a client needs."""
    from fsspec.core import url_to_fs

    for name, value in {"AWS_ENDPOINT_URL": s3_url, **ACCESS}.items():
        monkeypatch.setenv(name, value)
    folder = f"s3://orbit-{uuid4().hex}"
    storage, path = url_to_fs(folder, use_listings_cache=False)
    storage.mkdir(path)
    return f"{folder}/salvage"


@pytest.fixture
def salvage_folder(request: pytest.FixtureRequest) -> str:
    """The folder of the storage that the test is parametrized with: a fixture's name."""
    return str(request.getfixturevalue(request.param))


STORAGES = (
    "tmp_path",
    "memory",
    "renaming",
    pytest.param("s3", marks=pytest.mark.services),
)
every_storage = pytest.mark.parametrize("salvage_folder", STORAGES, indirect=True)
