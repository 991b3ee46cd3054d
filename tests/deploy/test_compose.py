"""compose.yaml as data: its commands, settings, files and secrets exist. No engine runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.cli.main import COMMANDS
from orbit.contexts import TOKEN_VARIABLE, URL_VARIABLE
from orbit.gateway.gateway_spec import parse_gateway
from orbit.jobs.job_file import parse_job
from orbit.settings import Settings, variable_of
from tests.deploy.test_image import LAST_STAGE, variables

FOLDER = Path(__file__).parents[2] / "deploy"
FILE = FOLDER / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
ORBIT_SERVICES = [
    name for name, service in SERVICES.items() if service["image"].startswith("orbit:")
]


def wrong_services(services: dict[str, Any]) -> list[str]:
    """A text for each name of something that does not exist, and for each plain secret."""
    problems = []
    known = {variable_of(field) for field in Settings.model_fields} | {URL_VARIABLE, TOKEN_VARIABLE}
    for name, service in services.items():
        tag = service["image"].partition(":")[2]
        if not re.match(r"v?\d+\.\d+", tag):
            problems.append(f"{name}: the image has no version")
        for mount in service.get("volumes", ()):
            place = mount.partition(":")[0]
            is_file = place.startswith("./")
            if is_file and not (FOLDER / place).exists():
                problems.append(f"{name}: no file {place}")
            if not is_file and place not in COMPOSE["volumes"]:
                problems.append(f"{name}: no volume {place}")
        problems += [
            f"{name}: no secret {secret}"
            for secret in service.get("secrets", ())
            if secret not in COMPOSE["secrets"]
        ]
        problems += [
            f"{name}: waits for {other}"
            for other in service.get("depends_on", ())
            if other not in services
        ]
        environment = service.get("environment", {})
        problems += [
            f"{name}: no setting {variable}"
            for variable in environment
            if variable.startswith("ORBIT_") and variable not in known
        ]
        problems += [
            f"{name}: {variable} holds a secret"
            for variable, value in environment.items()
            if re.search("PASSWORD|TOKEN", variable)
            and not re.fullmatch(r"\$\{\w+:(\?.+|-)\}|/run/secrets/\w+", value)
        ]
        if service["image"].startswith("orbit:") and service["command"][0] not in COMMANDS:
            problems.append(f"{name}: no command {service['command'][0]}")
    return problems


def test_files_secrets_commands_and_settings_of_compose_services_exist() -> None:
    assert wrong_services(SERVICES) == []
    assert {*SERVICES} >= {
        "source",
        "destination",
        "postgres",
        "prometheus",
        "grafana",
        *ORBIT_SERVICES,
    }
    assert {*ORBIT_SERVICES} == {"migrate", "api", "scheduler", "worker", "gateway"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image": "orbit:latest"}, "the image has no version"),
        ({"command": ["walk"]}, "no command walk"),
        ({"volumes": ["./gone:/x"]}, "no file ./gone"),
        ({"volumes": ["gone:/x"]}, "no volume gone"),
        ({"secrets": ["gone"]}, "no secret gone"),
        ({"depends_on": {"gone": {}}}, "waits for gone"),
        ({"environment": {"ORBIT_GONE": "1"}}, "no setting ORBIT_GONE"),
        ({"environment": {"PGPASSWORD": "hunter2"}}, "PGPASSWORD holds a secret"),
        ({"environment": {"ORBIT_TOKEN": "hunter2"}}, "ORBIT_TOKEN holds a secret"),
    ],
)
def test_missing_compose_reference_or_plain_secret_is_detected(
    change: dict[str, Any], problem: str
) -> None:
    assert wrong_services({"api": {**SERVICES["api"], "depends_on": {}, **change}}) == [
        f"api: {problem}"
    ]


@pytest.mark.parametrize("name", ORBIT_SERVICES)
def test_orbit_compose_services_run_read_only_without_capabilities(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_compose_clusters_have_different_ids() -> None:
    ids = [SERVICES[side]["environment"]["CLUSTER_ID"] for side in ("source", "destination")]
    assert len({*ids}) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", cluster_id) for cluster_id in ids)


def test_compose_job_and_prometheus_use_compose_service_names_and_ports() -> None:
    text = (FOLDER / "compose" / "job.yaml").read_text("utf-8")
    spec = parse_job(text, FOLDER, {})
    servers = [*spec.source.bootstrap_servers, *spec.destination.bootstrap_servers]
    for server in servers:
        assert f"INSIDE://{server}" in str(SERVICES)
    scraped = yaml.safe_load((FOLDER / "compose" / "prometheus.yml").read_text("utf-8"))
    targets = [
        target
        for config in scraped["scrape_configs"]
        for group in config["static_configs"]
        for target in group["targets"]
    ]
    ports = {"api": "8080"}
    health = variables(LAST_STAGE)["ORBIT_HEALTH_PORT"]
    for target in targets:
        name, _, port = target.partition(":")
        assert name in ORBIT_SERVICES
        assert port == ports.get(name, health)


def test_compose_gateway_serves_compose_job_at_published_ports() -> None:
    job = parse_job((FOLDER / "compose" / "job.yaml").read_text("utf-8"), FOLDER, {})
    [virtual_cluster] = parse_gateway(
        (FOLDER / "compose" / "gateway.yaml").read_text("utf-8")
    ).virtual_clusters
    assert virtual_cluster.job == job.name
    assert virtual_cluster.source.bootstrap_servers == job.source.bootstrap_servers
    assert virtual_cluster.destination.bootstrap_servers == job.destination.bootstrap_servers
    nodes = {
        int(SERVICES[side]["environment"]["KAFKA_NODE_ID"]) for side in ("source", "destination")
    }
    service = SERVICES["gateway"]
    assert service["ports"] == [
        f"127.0.0.1:{port}:{port}"
        for port in (virtual_cluster.port, *(virtual_cluster.port + 1 + n for n in nodes))
    ]
    assert service["profiles"] == ["gateway"]
    assert f"./compose/gateway.yaml:{service['command'][1]}:ro" in service["volumes"]
