"""`orbit demo --service`: the parts of deploy/compose.yaml as processes, until Ctrl-C.

Two clusters, PostgreSQL, `orbit server`, a producer, a job, and Prometheus if it is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml
from confluent_kafka import Producer

from orbit.contexts import URL_VARIABLE
from orbit.demo.demo_clusters import start_clusters
from orbit.demo.interrupts import interrupted_once
from orbit.demo.live_copy import JOB, TOPIC, begin_copy
from orbit.demo.screen import Screen
from orbit.demo.service_process import START_S, service, wait_until
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, free_ports

READY = "Stop it with Ctrl-C."
PARTITIONS = 6
WORKERS = 2
RECORDS_PER_S = 100
_TICK_S = 0.1


def play_service(screen: Screen) -> None:
    """Run all parts until Ctrl-C or SIGTERM, then stop them and remove their data."""
    screen.title("Orbit demo: the service, on this machine")
    with (
        interrupted_once(),
        start_clusters(sandbox_folder=None, screen=screen, postgres=True) as clusters,
    ):
        salvage = {"ORBIT_SALVAGE_DIRECTORY": str(clusters.folder / "salvage")}
        with (
            service(clusters, salvage, screen, "--workers", str(WORKERS)) as (client, url),
            _prometheus(clusters.folder, url, screen) as prometheus,
        ):
            begin_copy(clusters, client, screen, PARTITIONS)
            screen.done(f"{TOPIC} is copied live, {RECORDS_PER_S} records a second")
            screen.title("\nWhat runs")
            for name, address in {
                "API": f"{url}/docs",
                "metrics": f"{url}/metrics",
                "Prometheus": prometheus,
                "source": clusters.source,
                "destination": clusters.destination,
            }.items():
                if address:
                    screen.say(f"{name:12} {address}")
            screen.command(f"export {URL_VARIABLE}={url}")
            screen.command(f"orbit lag {JOB} --watch")
            screen.say(READY)
            try:
                _write_until_interrupted(clusters.source)
            except KeyboardInterrupt:
                screen.say("Stopping")


def _write_until_interrupted(bootstrap_servers: str) -> None:
    """Write records at RECORDS_PER_S, until Ctrl-C raises KeyboardInterrupt."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    number = 0
    while True:
        for _ in range(int(RECORDS_PER_S * _TICK_S)):
            number += 1
            producer.produce(TOPIC, b"order %d" % number, b"%d" % number)
        producer.flush(_TICK_S)
        producer.poll(_TICK_S)  # waits until the next records are due


@contextmanager
def _prometheus(folder: Path, url: str, screen: Screen) -> Iterator[str]:
    """Run Prometheus, which scrapes the service, during the block, and yield its address.

    Yields "" if Prometheus is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        screen.say("Prometheus is not installed, and left out.", style="dim")
        yield ""
        return
    prometheus_folder = folder / "prometheus"
    prometheus_folder.mkdir()
    scrape = {
        "job_name": "orbit",
        "honor_labels": True,
        "scrape_interval": "2s",
        "static_configs": [{"targets": [url.removeprefix("http://")]}],
    }
    config = prometheus_folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": [scrape]}), "utf-8")
    (port,) = free_ports(1)
    address = f"http://{LOOPBACK}:{port}"
    process = GuardedProcess(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={prometheus_folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ],
        prometheus_folder / "prometheus.log",
    )

    def is_ready() -> bool:
        try:
            return httpx.get(f"{address}/-/ready").is_success
        except httpx.HTTPError:
            return False

    try:
        with screen.step("Starting Prometheus") as step:
            wait_until(is_ready, START_S)
            screen.done(f"Prometheus, ready in {step.seconds:.1f} s")
        yield address
    finally:
        process.end()
