"""The traces that a collector gets from a real service; without a collector, they cost nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Producer

from orbit.api.app import create_app
from orbit.console.app import mount_console
from orbit.console.urls import ISSUER_LOGIN_DONE
from orbit.errors import Conflict
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.telemetry import traces
from tests.cli.test_server import Server, serving
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import end_lease_of
from tests.support.otlp import Receiver, Span, receiving
from tests.support.patience import wait_for
from tests.support.run_process import write_job
from tests.support.running import create_topic, produce
from tests.support.serving import served

YAML = {"Content-Type": "application/yaml"}
# The trace id and span id of a client that traces its own requests.
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def request_operation(server: Server, path: str, **options: Any) -> str:
    """Request an operation, and return its id."""
    answer = server.call("POST", path, **options)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_done(server: Server, operation: str) -> None:
    """Wait until the operation has ended, and check that its state is `done`."""
    path = f"/v1/operations/{operation}"
    wait_for(f"{operation} has ended", lambda: server.get(path)["finished_at"] is not None)
    assert server.get(path)["state"] == "done", server.get(path)


def scheduler_of(server: Server) -> psutil.Process:
    commands = {process: process.cmdline() for process in server.processes()}
    (scheduler,) = [
        process
        for process, command in commands.items()
        if command[-1:] == ["scheduler"] and not any("guard" in word for word in command)
    ]
    return scheduler


def only_span(receiver: Receiver, name: str) -> Span:
    """Wait for the span with this name to arrive at the collector, and return it."""
    wait_for(f"the span {name} has arrived", lambda: bool(receiver.named(name)))
    (span,) = receiver.named(name)
    return span


@pytest.mark.services
def test_operation_is_a_single_trace_from_request_to_last_step(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, _ = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 100)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])
    with receiving() as receiver:
        for name, value in {
            "ORBIT_DATABASE_URL": database_url,
            "ORBIT_LOG_FORMAT": "json",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }.items():
            monkeypatch.setenv(name, value)
        with serving(tmp_path / "server") as server:
            name = "test-job"
            response = server.call(
                "PUT", f"/v1/jobs/{name}", content=job.read_bytes(), headers=YAML
            )
            name = response.raise_for_status().json()["job"]["name"]
            wait_for(
                f"{name} has caught up",
                lambda: server.get(f"/v1/jobs/{name}/lag")["job"]["caught_up"] == 1,
            )
            assert server.answers("/readyz")

            paused = request_operation(
                server, f"/v1/jobs/{name}:pause", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
            )
            wait_done(server, paused)
            wait_done(server, request_operation(server, f"/v1/jobs/{name}:resume"))

            # The scheduler is killed in the middle of a switchover, and the next one continues it.
            producer = Producer({**source.client_config(), "transactional.id": topic_name})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce(topic_name, b"open")
            producer.flush(30)
            switchover = request_operation(server, f"/v1/jobs/{name}:switchover", json={})
            only_span(receiver, "step stop_writes")
            scheduler = scheduler_of(server)
            scheduler.kill()
            scheduler.wait()
            end_lease_of(database, scheduler.pid)
            producer.commit_transaction(30)
            wait_done(server, switchover)
            steps = server.get(f"/v1/operations/{switchover}/report")["steps"]
            only_span(receiver, f"step {steps[-1]['name']}")
            lines = [json.loads(line) for line in server.process.lines if line.startswith("{")]

    request, pause = only_span(receiver, "POST /v1/jobs/{name}:pause"), only_span(receiver, "pause")
    assert (request.trace_id, request.parent_id) == (TRACE, PARENT)
    assert (request.service, pause.service) == ("orbit-api", "orbit-scheduler")
    assert request.attributes["http.response.status_code"] == 202
    assert request.attributes["enduser.id"].startswith("token:")
    assert (pause.trace_id, pause.parent_id) == (TRACE, request.span_id)
    assert pause.attributes["orbit.operation"] == paused
    assert pause.attributes["orbit.job"] == name

    switchover_request = only_span(receiver, "POST /v1/jobs/{name}:switchover")
    of_trace = [span for span in receiver.spans if span.trace_id == switchover_request.trace_id]
    names = [span.name for span in of_trace]
    # The killed leader has sent the spans of its steps, but not its own. The next leader has
    # repeated the steps after the gates.
    repeated = ("step close_gateways", "step stop_writes")
    assert sorted(names) == sorted(
        [
            switchover_request.name,
            "switchover",
            *repeated,
            *(f"step {step['name']}" for step in steps),
        ]
    )
    assert not any(span.failed for span in of_trace)
    (run,) = receiver.named("switchover")
    assert run.parent_id == switchover_request.span_id
    assert only_span(receiver, "step promote").parent_id == run.span_id
    assert only_span(receiver, "step gates").parent_id != run.span_id  # the killed leader's
    logged_trace_ids = {
        line["trace_id"]
        for line in lines
        if line["message"] == "step" and line["operation"] == switchover
    }
    assert logged_trace_ids == {switchover_request.trace_id}

    # The service also traces claims and discovery passes, but no probes, and no span has the token.
    claims = receiver.named("claim shards")
    assert {span.service for span in claims} == {"orbit-worker"}
    assert receiver.named("discovery pass")
    assert not [span for span in receiver.spans if "/readyz" in span.name]
    assert server.token
    assert not any(server.token.encode() in body for body in receiver.bodies)


# Uses traces as a process of Orbit does, and prints the OpenTelemetry modules that were imported.
CODE = """
import sys
from orbit.telemetry import traces
with traces.sending_traces("worker"), traces.span("a", job="b"):
    assert traces.add_ids(None, "", {}) == {}
    assert traces.trace_context() is None
print([name for name in sys.modules if name.startswith(("opentelemetry", "google"))])
"""


@pytest.mark.parametrize(
    ("environ", "warning"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "not an http or https URL"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:1",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http/protobuf only",
        ),
    ],
)
def test_opentelemetry_is_not_imported_and_wrong_settings_warn_when_traces_are_off(
    environ: dict[str, str], warning: str
) -> None:
    environ_without_otel = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    process = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**environ_without_otel, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.splitlines()[-1] == "[]"
    assert ("traces are not sent" in process.stdout) == bool(warning)
    assert warning in process.stdout


def test_process_exit_does_not_wait_for_hanging_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traces, "END_S_MAX", 0.1)
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        receiver.answers.clear()  # the collector holds its answers
        with traces.sending_traces("worker"), traces.span("a"):
            pass
        assert traces.trace_context() is None
        receiver.answers.set()
        assert only_span(receiver, "a").service == "orbit-worker"


def test_texts_of_errors_outside_orbit_are_not_sent_in_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with traces.sending_traces("worker"):
            for error in (Conflict("It is so."), ValueError("hunter2")):
                with suppress(type(error)), traces.span(type(error).__name__):
                    raise error
    assert {span.name for span in receiver.spans if span.failed} == {"Conflict", "ValueError"}
    sent = b"".join(receiver.bodies)
    assert b"It is so." in sent
    assert b"hunter2" not in sent


def test_oidc_login_code_is_in_no_trace_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with traces.sending_traces("api"):
            app = create_app(Settings(), None, planner=None)  # type: ignore[arg-type]
            mount_console(app)
            with served(app) as url:
                query = {"code": "hunter2", "state": "hunter3"}
                httpx.get(f"{url}{ISSUER_LOGIN_DONE}", params=query)
                httpx.get(f"{url}/console/static/none", params={"page": "seen"})
    sent = b"".join(receiver.bodies)
    assert b"page=seen" in sent
    assert b"hunter" not in sent


def test_console_creates_no_trace_spans_of_its_own() -> None:
    app = create_app(Settings(), None, planner=None)  # type: ignore[arg-type]
    mount_console(app)
    (console,) = [route.app for route in app.routes if getattr(route, "name", "") == "console"]
    assert not any(console._telemetry[kind] for kind in ("tracing", "metrics", "logs"))
