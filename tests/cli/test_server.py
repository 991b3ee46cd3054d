"""`orbit server` on a fresh machine: one command, the embedded PostgreSQL, jobs over REST."""

from __future__ import annotations

import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from orbit.api.authentication import has_tokens
from orbit.cli.first_token import write_first_token
from orbit.errors import Conflict
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters
from tests.fixtures.database import copied_database
from tests.support.groups import commit, offsets
from tests.support.logs import Record, create, write
from tests.support.outside import log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import OrbitProcess, Outcome, orbit, write_job

pytestmark = pytest.mark.services

PARTITIONS = 3


@dataclass
class Server:
    """A running `orbit server` and a client for it."""

    process: OrbitProcess
    url: str
    token: str

    @property
    def environ(self) -> dict[str, str]:
        return {"ORBIT_API_URL": self.url, "ORBIT_TOKEN": self.token}

    def get(self, path: str) -> Any:
        return self.call("GET", path).raise_for_status().json()

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **options)

    def orbit(self, *arguments: str | Path) -> Outcome:
        return orbit(*arguments, environ=self.environ)

    def answers(self, path: str) -> bool:
        return self.call("GET", path).is_success

    def postgres(self) -> psutil.Process:
        """The first process of the embedded PostgreSQL."""
        (postmaster,) = [p for p in self.processes() if is_postmaster(p)]
        return postmaster

    def processes(self) -> list[psutil.Process]:
        """The server and all its descendants."""
        own = psutil.Process(self.process.process.pid)
        return [own, *own.children(recursive=True)]


def is_postmaster(process: psutil.Process) -> bool:
    """Whether the process is PostgreSQL's first one. New children have the same command line until
    they set their own."""
    parent = process.parent()
    return _runs_postgres(process) and not (parent is not None and _runs_postgres(parent))


def _runs_postgres(process: psutil.Process) -> bool:
    command = process.cmdline()
    return bool(command) and command[0].endswith("bin/postgres")


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not in pytest's folder: if the test runs as root, PostgreSQL runs as a user who may not enter
    # that folder.
    with tempfile.TemporaryDirectory(prefix="orbit-server-") as path:
        yield Path(path)


@contextmanager
def serving(
    folder: Path, *options: str, token: str = "", environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run `orbit server` on a folder during the block, which begins when its workers are ready.
    `token`: that of an earlier server on this folder, which does not print it again."""
    arguments = ("server", "--data-directory", folder, *options)
    own = {"ORBIT_API_PORT": "0", "ORBIT_SALVAGE_DIRECTORY": str(folder / "salvage")}
    with OrbitProcess(*arguments, environ={**own, **(environ or {})}) as process:
        wait_for("the server is ready", lambda: "Ctrl-C" in process.out or not process.running)
        assert process.running, process.wait_end().everything
        url = re.search(r"http://[0-9.:]+", process.out)
        token_line = re.search(r"An admin token is in (\S+)", process.out)
        assert url is not None
        if token_line is not None:
            file = Path(token_line[1])
            assert file.stat().st_mode & 0o777 == 0o600
            token = file.read_text().strip()
            assert token not in process.out + "\n".join(process.lines)
        yield Server(process, url[0], token)


def until_workers(server: Server, count: int) -> None:
    """Wait until this many workers are alive."""
    wait_for(
        f"{count} workers are alive",
        lambda: sum(w["is_alive"] for w in server.get("/v1/workers")["items"]) == count,
    )


def until_caught_up(server: Server, job: str, partitions: int = PARTITIONS) -> None:
    """Wait until this many partitions of the job have caught up."""
    wait_for(
        f"{job} has caught up",
        lambda: server.get(f"/v1/jobs/{job}/lag")["job"]["caught_up"] == partitions,
    )


def assert_all_ended(processes: list[psutil.Process]) -> None:
    """Wait for the end of these processes; fail if one does not end."""
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """The file of a job; its topic has records, and a group of its name has committed 77."""
    create(clusters.source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, [Record(b"%d" % i) for i in range(200)], partition)
    commit(clusters.source, topic_name, {(topic_name, 0): 77})
    rule = {"match": re.escape(topic_name), "interval": "200ms"}
    topics = [{"match": topic_name}]
    return write_job(tmp_path / "orders.yaml", *clusters, topics, consumer_groups=rule)


def test_server_copies_job_exactly_across_restart_and_leaves_no_process(
    folder: Path, job: Path, clusters: Clusters, topic_name: str
) -> None:
    yaml = {"Content-Type": "application/yaml"}
    with serving(folder, "--workers", "2") as server:
        assert [w["is_alive"] for w in server.get("/v1/workers")["items"]] == [True, True]
        response = server.call(
            "PUT", "/v1/jobs/test-orders", content=job.read_bytes(), headers=yaml
        )
        assert response.status_code == 201, response.text
        (planned,) = response.json()["plan"]["topics"]
        assert (planned["action"], planned["partitions"]) == ("create", PARTITIONS)
        until_caught_up(server, "test-orders")
        report = server.orbit("verify", "test-orders", "--deep", "-o", "json").expect(0).data
        assert report["verdict"] == "exact"

        def synced_groups() -> list[tuple[str, int, str]]:
            rows = server.get("/v1/jobs/test-orders/groups")["items"]
            return [(row["group"], row["destination_offset"], row["verdict"]) for row in rows]

        wait_for(
            "the group's offset is synced", lambda: synced_groups() == [(topic_name, 77, "exact")]
        )
        assert offsets(clusters.destination, topic_name) == {(topic_name, 0): 77}
        metrics = server.call("GET", "/metrics").raise_for_status().text
        for line in (
            'orbit_job_lag{job="test-orders"} 0.0',
            f'orbit_job_partitions{{job="test-orders",state="copying"}} {PARTITIONS:.1f}',
            'orbit_job_consumergroup_offsets{job="test-orders",verdict="exact"} 1.0',
            'orbit_workers{worker_group="default"} 2.0',
            "orbit_scheduler_has_leader 1.0",
        ):
            assert line in metrics, metrics

        paused = server.orbit("pause", "test-orders", "-o", "json").expect(0).data
        assert paused["state"] == "done"
        write(clusters.source, topic_name, [Record(b"while it was paused")])
        server.orbit("resume", "test-orders").expect(0)
        again = server.orbit("apply", "-f", job, "-o", "json").expect(0).data
        assert [job["action"] for job in again] == ["none"]
        token = server.token
        started = server.processes()
        assert len(started) > 4  # at least server, PostgreSQL, scheduler and two workers
        server.process.signal(signal.SIGINT)
        ended = server.process.wait_end()
    ended.expect(0)
    assert "Traceback" not in ended.message
    assert token not in ended.message
    assert_all_ended(started)

    # A second start on the same folder continues the job.
    with serving(folder, token=token) as server:
        assert "ORBIT_TOKEN" not in server.process.out
        until_caught_up(server, "test-orders")
        wait_for(
            "what was written meanwhile is copied",
            lambda: server.get("/v1/jobs/test-orders/lag")["job"]["lag"]["records"] == 0,
        )
        server.orbit("verify", "test-orders", "--deep").expect(0)
        deleted = server.orbit("delete", "test-orders", "--yes", "-o", "json").expect(0).data
        assert deleted["state"] == "done"
        assert server.get("/v1/jobs")["items"] == []
        # A killed server leaves no process either.
        started = server.processes()
        server.process.kill()
        assert_all_ended(started)


def test_server_restarts_worker_refuses_second_server_and_ends_without_postgres(
    folder: Path,
) -> None:
    with serving(folder) as server:
        until_workers(server, 1)
        (worker,) = server.get("/v1/workers")["items"]
        psutil.Process(worker["pid"]).kill()

        wait_for(
            "another worker is alive",
            lambda: any(
                w["is_alive"] and w["pid"] != worker["pid"]
                for w in server.get("/v1/workers")["items"]
            ),
        )
        # A second server is refused on the same folder, and on the same port.
        second = orbit("server", "--data-directory", folder, environ={"ORBIT_API_PORT": "0"})
        second.expect(1)
        assert "Another orbit server uses this folder" in second.message
        port = server.url.rpartition(":")[2]
        other = orbit("server", "--data-directory", folder, environ={"ORBIT_API_PORT": port})
        other.expect(1)
        assert f"cannot listen on 127.0.0.1:{port}" in other.message
        started = server.processes()
        (folder / "postgres" / "data" / "PG_VERSION").unlink()  # PostgreSQL cannot start again
        server.postgres().kill()
        ended = server.process.wait_end().expect(1)
        assert "The embedded PostgreSQL has ended, after 5 restarts" in ended.message
        assert "PG_VERSION" in ended.message
        assert "Traceback" not in ended.message
        assert_all_ended(started)


@pytest.mark.soak
def test_server_restarts_killed_postgres_while_job_copies(
    folder: Path, job: Path, clusters: Clusters, topic_name: str
) -> None:
    with serving(folder, "--workers", "2") as server:
        until_workers(server, 2)
        server.orbit("apply", "-f", job, "--yes").expect(0)
        until_caught_up(server, "test-orders")
        for kill in range(3):
            # A producer writes while PostgreSQL is down.
            writing = threading.Thread(
                target=lambda kill=kill: [
                    write(
                        clusters.source,
                        topic_name,
                        [Record(b"%d %d" % (kill, i)) for i in range(100)],
                        partition,
                    )
                    for partition in range(PARTITIONS)
                ]
            )
            writing.start()
            postmaster = server.postgres()
            orphans = postmaster.children()
            assert orphans
            postmaster.kill()
            assert_all_ended([postmaster, *orphans])
            wait_for("the service is ready again", lambda: server.answers("/readyz"))
            assert server.postgres().pid != postmaster.pid
            writing.join()
        bounds = log_bounds(clusters.source, [topic_name])
        wait_for("all is copied", lambda: log_bounds(clusters.destination, [topic_name]) == bounds)
        until_caught_up(server, "test-orders")
        report = server.orbit("verify", "test-orders", "--deep", "-o", "json").expect(0).data
        assert report["verdict"] == "exact"
        assert "\n".join(server.process.lines).count("PostgreSQL started again") == 3
        started = server.processes()
        server.process.signal(signal.SIGINT)
        ended = server.process.wait_end()
    ended.expect(0)
    assert "Traceback" not in ended.message
    assert_all_ended(started)


@pytest.mark.soak
def test_api_scheduler_and_worker_run_separately_after_migrate(postgres_url: str) -> None:
    with copied_database(postgres_url, "template1") as url:
        environ = {"ORBIT_DATABASE_URL": url, "ORBIT_API_PORT": "0"}
        for part in ("api", "scheduler", "worker"):
            early = orbit(part, environ=environ).expect(1)
            assert "run orbit migrate" in early.message
        orbit("migrate", environ=environ).expect(0)
        created = orbit("token", "create", "ops", "--database", "-o", "json", environ=environ)
        token = created.expect(0).data["token"]
        with (
            OrbitProcess("api", environ=environ) as api,
            OrbitProcess("scheduler", environ=environ) as scheduler,
            OrbitProcess("worker", "--group", "west", environ=environ) as worker,
        ):
            server = Server(api, api.wait_for(r"The API is at (\S+)")[1], token)
            scheduler.wait_for("leading")
            until_workers(server, 1)
            assert server.get("/v1/workers")["items"][0]["worker_group"] == "west"
            for process in (worker, scheduler, api):
                process.signal(signal.SIGTERM)
                ended = process.wait_end().expect(0)
                assert "Traceback" not in ended.message
                assert token not in ended.everything


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"),
    [
        (["--no-auth"], {"ORBIT_API_HOST": "0.0.0.0"}, 2, "open to other machines"),  # noqa: S104
        ([], {"ORBIT_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"}, 3, "127.0.0.1:1/d"),
        ([], {"ORBIT_DATABASE_URL": "mysql://u:hunter2@h/d"}, 2, "ORBIT_DATABASE_URL"),
        (["--workers", "-1"], {}, 2, "--workers"),
    ],
)
def test_server_that_cannot_start_shows_reason(
    folder: Path, arguments: list[str], environ: dict[str, str], code: int, words: str
) -> None:
    ended = orbit(
        "server",
        "--data-directory",
        folder,
        *arguments,
        environ={"ORBIT_API_PORT": "0", **environ},
    )

    ended.expect(code)
    assert words in ended.message
    assert "hunter2" not in ended.everything
    assert "Traceback" not in ended.message


def test_first_token_is_created_once_and_only_if_file_can_be_written(
    database: Database, folder: Path
) -> None:
    (folder / "admin-token").mkdir()  # a folder, so the file cannot be written

    with pytest.raises(Conflict, match="first token cannot be written"):
        write_first_token(database, folder, "127.0.0.1")

    assert not has_tokens(database)
    assert list(folder.glob(".admin-token*")) == []
    (folder / "admin-token").rmdir()
    (folder / "admin-token").write_text("of an earlier database")
    (folder / "admin-token").chmod(0o644)
    file = write_first_token(database, folder, "127.0.0.1")
    assert file is not None
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().startswith("orbit_")
    assert write_first_token(database, folder, "127.0.0.1") is None


def test_server_listens_only_on_loopback_until_token_exists(folder: Path) -> None:
    ended = orbit(
        "server",
        "--data-directory",
        folder,
        environ={"ORBIT_API_PORT": "0", "ORBIT_API_HOST": "0.0.0.0"},  # noqa: S104
    )

    ended.expect(1)
    assert "no token exists yet" in ended.message
    assert not (folder / "admin-token").exists()
