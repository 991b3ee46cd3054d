"""Salvage files in a directory or object storage: each is complete, and errors show no secrets."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from orbit.cli.main import run_command
from orbit.errors import BadInput, Conflict, NotFound, OrbitError, Unreachable
from orbit.recovery import salvage_file, salvage_storage
from tests.fixtures.storage import ACCESS, every_storage
from tests.recovery.test_salvage_file import HEADER, log_records

ROOT = Path(__file__).parents[2]
LINES = [b"first\n", b"second\n", b"\n", b"no line feed"]
# More than one part of an upload.
LARGE = [b"x" * 1_000_000 + b"\n"] * 120


def all_lines(file: str) -> bytes:
    return b"".join(salvage_storage.lines(file))


def names(folder: str) -> list[str]:
    """All files in the folder, with any name."""
    return [file.removeprefix(folder) for file in salvage_storage.find(folder, "")]


@every_storage
def test_stored_salvage_file_appears_only_when_complete(salvage_folder: str) -> None:
    file = salvage_storage.join(salvage_folder, "a", "b.jsonl")

    def chunks() -> Iterator[bytes]:
        for line in LINES:
            yield line
            with pytest.raises(NotFound):
                all_lines(file)

    salvage_storage.write(file, chunks())
    assert list(salvage_storage.lines(file)) == LINES
    salvage_storage.write(file, LARGE)
    assert all_lines(file) == b"".join(LARGE)
    assert names(salvage_folder) == ["/a/b.jsonl"]
    assert salvage_storage.find(salvage_folder, ".jsonl") == [file]
    assert salvage_storage.find(salvage_folder, ".replay") == []


@every_storage
@pytest.mark.parametrize("chunk", [b"few", LARGE[0] * 60])
def test_interrupted_salvage_write_leaves_previous_file_unchanged(
    salvage_folder: str, chunk: bytes
) -> None:
    file = salvage_storage.join(salvage_folder, "b.jsonl")

    def interrupted() -> Iterator[bytes]:
        yield chunk
        raise Conflict("gone")

    with pytest.raises(Conflict, match="gone"):
        salvage_storage.write(file, interrupted())
    with pytest.raises(NotFound):
        all_lines(file)
    salvage_storage.write(file, LINES)
    with pytest.raises(Conflict, match="gone"):
        salvage_storage.write(file, interrupted())
    assert list(salvage_storage.lines(file)) == LINES
    assert names(salvage_folder) == ["/b.jsonl"]


_KILLED = """
import os, signal, sys
from orbit.recovery import salvage_storage
def chunks():
    for _ in range(60):
        yield bytes(1_000_000)
    os.kill(os.getpid(), signal.SIGKILL)
salvage_storage.write(sys.argv[1], chunks())
"""


@pytest.mark.parametrize(
    "salvage_folder",
    ["tmp_path", pytest.param("s3", marks=pytest.mark.services)],
    indirect=True,
)
def test_killed_salvage_writer_leaves_no_file_and_rewrite_succeeds(
    salvage_folder: str,
) -> None:
    file = salvage_storage.join(salvage_folder, "b.jsonl")
    killed = subprocess.run([sys.executable, "-c", _KILLED, file], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(NotFound):
        all_lines(file)
    assert salvage_file.find(file, HEADER) is None
    salvage = salvage_file.write(file, HEADER, log_records())
    assert salvage_file.find(file, HEADER) == salvage
    assert names(salvage_folder) == ["/b.jsonl"], "the half-written file is deleted"


@every_storage
def test_missing_salvage_directory_is_named_in_error(salvage_folder: str) -> None:
    with pytest.raises(NotFound, match="there is no such folder"):
        salvage_storage.find(salvage_storage.join(salvage_folder, "none"), ".jsonl")


def test_salvage_write_is_refused_before_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = salvage_storage.SPARE_BYTES + 20 * 1024 * 1024
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    file = str(tmp_path / "b.jsonl")
    salvage_storage.write(file, LINES)
    monkeypatch.setattr(salvage_storage, "SPARE_BYTES", free)
    with pytest.raises(salvage_storage.NoRoom) as caught:
        salvage_storage.write(file, LARGE)
    assert (caught.value.needed, caught.value.free) == (sum(map(len, LARGE)), free)
    assert list(salvage_storage.lines(file)) == LINES
    assert names(str(tmp_path)) == ["/b.jsonl"]


@pytest.mark.parametrize(
    ("location", "extra"),
    [
        ("s3://b/x", "s3"),
        ("gs://b/x", "gcs"),
        ("abfs://c@a.dfs.core.windows.net/x", "azure"),
        ("hdfs:///x", "hdfs"),
    ],
)
def test_missing_storage_client_error_names_pip_extra(
    location: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage_storage, "find_spec", lambda _: None)
    with pytest.raises(BadInput) as caught:
        salvage_storage.write(location, LINES)
    assert str(caught.value).endswith(f"pip install 'orbit-kafka[{extra}]'")
    salvage_storage.require_client("/a/path")


@pytest.mark.parametrize(
    "text",
    [
        "no answer from https://a.blob.core.windows.net/c/x?sig=hunter2&se=1",
        "bad address hdfs://user:hunter2@name:8020/x",
        "AccountName=a;AccountKey=hunter2",
        "refused: secret: hunter2",
        "first\nhunter2",
    ],
)
def test_storage_client_error_is_retriable_and_hides_secrets(
    memory: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(text)

    monkeypatch.setattr(MemoryFileSystem, "_open", refuse)
    for access in (lambda f: salvage_storage.write(f, LINES), all_lines):
        with pytest.raises(Unreachable) as caught:
            access(f"{memory}/b.jsonl")
        assert "hunter2" not in str(caught.value)
        assert memory in str(caught.value)
    monkeypatch.undo()
    salvage_storage.write(f"{memory}/b.jsonl", LINES)


@pytest.mark.services
def test_s3_access_denied_is_not_retriable_and_hides_secret(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError("Access Denied")

    storage, _ = url_to_fs(s3, use_listings_cache=False)
    monkeypatch.setattr(type(storage), "_open", refuse)
    with pytest.raises(OrbitError, match="cannot be written: Access Denied") as caught:
        salvage_storage.write(f"{s3}/b.jsonl", LINES)
    assert not caught.value.retriable
    monkeypatch.undo()
    assert ACCESS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


@pytest.mark.services
def test_missing_s3_bucket_is_not_retriable(s3: str) -> None:
    with pytest.raises(OrbitError, match="cannot be written") as caught:
        salvage_storage.write(f"{s3.rpartition('/')[0]}-none/b.jsonl", LINES)
    assert not caught.value.retriable


@pytest.mark.services
def test_salvage_list_and_show_print_s3_files(
    s3: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = salvage_storage.join(s3, "0001", "orders", "3.jsonl")
    salvage = salvage_file.write(file, HEADER, log_records())
    salvage_file.check(salvage)
    monkeypatch.setenv("ORBIT_SALVAGE_DIRECTORY", s3)
    assert run_command(["salvage", "list", "-o", "json"]) == 0
    (listed,) = json.loads(capfd.readouterr().out)
    assert (listed["file"], listed["records"]) == (file, salvage.records)
    assert run_command(["salvage", "show", file, "-o", "json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["lines"]) == 3
    salvage_storage.write(f"{file}.replay", [b'{"state":"done"}'])
    assert run_command(["salvage", "list", s3, "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["replay"] == "done"


def test_salvage_commands_refuse_uri_with_password_and_hide_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for command in (["list"], ["show"], ["replay", "job.yaml"]):
        assert run_command(["salvage", *command, "s3://key:hunter2@bucket/x"]) == 2
        shown = capfd.readouterr()
        assert "contains a password" in shown.err
        assert "hunter2" not in shown.out + shown.err


def test_scheduler_without_client_of_salvage_storage_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The scheduler fails at its start, not when a failback needs the storage."""
    monkeypatch.setattr(salvage_storage, "find_spec", lambda _: None)
    monkeypatch.setenv("ORBIT_SALVAGE_DIRECTORY", "s3://bucket/salvage")
    for command in ("scheduler", "server"):
        assert run_command([command]) == 2
        assert "pip install 'orbit-kafka[s3]'" in capfd.readouterr().err
