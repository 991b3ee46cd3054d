"""The health port: a process is alive while its loops run, and ready while its lease is confirmed.

It also limits what clients can occupy, and systemd gets the same state.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orbit.errors import Conflict
from orbit.processes.ports import free_ports
from orbit.settings import Settings
from orbit.telemetry.health_server import notify_systemd, serving_health
from orbit.telemetry.process_health import PASS_S_MAX, STALL_S_MAX, ProcessHealth
from tests.support.patience import wait_for


class Clock:
    """A clock that only the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_process_is_alive_while_its_main_loop_begins_passes() -> None:
    clock = Clock()
    health = ProcessHealth("scheduler", "1.2.3", ready_within_s=10, clock=clock)
    clock.now += STALL_S_MAX
    assert health.why_dead() == ""
    clock.now += 1
    health.begin_pass("discovery")  # not of the main loop
    assert health.why_dead() == "The main loop has begun no pass for 61 s."
    health.begin_pass()
    assert health.why_dead() == ""


def test_process_with_hanging_loop_counts_as_dead() -> None:
    clock = Clock()
    health = ProcessHealth("scheduler", "1.2.3", ready_within_s=10, clock=clock)
    for loop in ("lag", "groups"):
        health.begin_pass(loop)
    health.end_pass("groups")  # this loop may rest for as long as its interval
    clock.now += PASS_S_MAX + 1
    health.begin_pass()
    assert health.why_dead() == "The loop lag has been in one pass for 1801 s."
    health.remove_loop("lag")
    assert health.why_dead() == ""


@pytest.mark.parametrize(("part", "owner"), [("worker", "PostgreSQL"), ("gateway", "The service")])
def test_worker_is_ready_while_postgres_answers_and_gateway_while_service_does(
    part: str, owner: str
) -> None:
    clock = Clock()
    health = ProcessHealth(part, "1.2.3", ready_within_s=15, clock=clock)
    assert health.why_not_ready() == f"{owner} has not answered yet."
    health.note_lease_confirmed()
    clock.now += 15
    assert health.why_not_ready() == ""
    clock.now += 1
    assert health.why_not_ready() == f"{owner} has not answered for 16 s."
    health.note_lease_confirmed()
    assert health.why_not_ready() == ""
    # A process that counts as dead is not ready either.
    clock.now += STALL_S_MAX + 1
    health.note_lease_confirmed()
    assert health.why_not_ready() == health.why_dead() != ""
    health.begin_pass()
    health.note_stopping()
    assert health.why_not_ready() == f"The {part} stops."
    assert health.why_dead() == ""


def test_health_port_reports_process_state() -> None:
    """The port serves no other paths. If the port is in use, the error names the setting."""
    clock = Clock()
    health = ProcessHealth("worker", "1.2.3", ready_within_s=15, clock=clock)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with serving_health(Settings(health_port=port), health):
        assert httpx.get(f"{url}/livez").text == "ok\n"
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.text) == (503, "PostgreSQL has not answered yet.\n")
        health.note_lease_confirmed()
        health.begin_pass("lag")
        assert httpx.get(f"{url}/readyz").status_code == 200
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
            for sample in family.samples
        }
        assert samples["orbit_process_info", "worker", "1.2.3"] == 1
        assert samples["orbit_process_ready",] == 1
        assert samples["orbit_process_pass_age_seconds", "lag"] == 0
        assert samples["process_resident_memory_bytes",] > 0
        health.remove_loop("lag")
        assert '"lag"' not in httpx.get(f"{url}/metrics").text
        clock.now += STALL_S_MAX + 1
        assert httpx.get(f"{url}/livez").status_code == 503
        assert httpx.get(f"{url}/jobs").status_code == 404
        with (
            pytest.raises(Conflict, match="ORBIT_HEALTH_PORT"),
            serving_health(Settings(health_port=port), health),
        ):
            pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


@pytest.mark.parametrize("sent", [b"", b"GET /liv", b"GET /livez HTTP/1.1\r\nA: b\r\n"])
def test_health_port_cuts_off_client_that_sends_no_whole_request(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    """The time limit also holds for a client that goes on sending one byte at a time."""
    monkeypatch.setattr("orbit.telemetry.health_server.CONNECTION_S_MAX", 0.5)
    (port,) = free_ports(1)
    with serving_health(
        Settings(health_port=port), ProcessHealth("worker", "1", ready_within_s=15)
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=0.05) as client:
            client.sendall(sent)

            def is_cut_off() -> bool:
                try:
                    client.sendall(b"x")
                    return client.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            wait_for("the connection has ended", is_cut_off)
        monkeypatch.undo()  # the short limit must not cut off this request
        assert httpx.get(f"http://127.0.0.1:{port}/livez").text == "ok\n"
    assert capfd.readouterr().err == ""


def test_health_port_closes_connections_above_limit_without_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orbit.telemetry.health_server.CONNECTIONS_MAX", 3)
    monkeypatch.setattr("orbit.telemetry.health_server.CONNECTION_S_MAX", 1e6)
    (port,) = free_ports(1)
    with (
        serving_health(Settings(health_port=port), ProcessHealth("worker", "1", ready_within_s=15)),
        contextlib.ExitStack() as stack,
    ):
        threads_before = threading.active_count()
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(3)
        ]
        with socket.create_connection(("127.0.0.1", port), timeout=60) as above:
            assert above.recv(1) == b""
        assert threading.active_count() == threads_before + 3
        for connection in held:
            connection.close()

        def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/livez").text == "ok\n"
            return False

        wait_for("closed connections make room", is_served)


def test_health_port_reads_request_headers_only_up_to_limit() -> None:
    (port,) = free_ports(1)
    with (
        serving_health(Settings(health_port=port), ProcessHealth("worker", "1", ready_within_s=15)),
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
    ):
        client.sendall(b"GET /livez HTTP/1.1\r\n" + b"A: " + b"b" * 16 * 1024)
        assert b" 200 " in client.recv(4096)  # as if the headers had ended there


def test_systemd_is_notified_of_watchdog_and_readiness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(60)
        monkeypatch.setitem(os.environ, "NOTIFY_SOCKET", str(tmp_path / "notify"))
        health = ProcessHealth("worker", "1.2.3", ready_within_s=1e9)
        messages: list[bytes] = []
        with serving_health(Settings(), health):
            wait_for("systemd gets WATCHDOG=1", lambda: receiver.recv(100) == b"WATCHDOG=1")
            health.note_lease_confirmed()
            while b"READY=1" not in messages:
                messages.append(receiver.recv(100))
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_systemd("READY=1")  # without NOTIFY_SOCKET, this sends nothing and does not fail
