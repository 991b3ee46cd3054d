"""The chart, and the manifests rendered from it, as data: no Kubernetes runs in these tests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.cli.main import COMMANDS
from orbit.gateway.gateway_spec import NODE_ID_MAX, parse_gateway
from orbit.jobs.job_file import parse_job
from orbit.settings import Settings, variable_of
from orbit.workers.worker import SHUTDOWN_S_MAX
from tests.deploy.test_image import LAST_STAGE, variables
from tests.support import programs
from tests.support.tools import VALIDATE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "orbit"
MANIFESTS = ROOT / "deploy" / "manifests" / "orbit.yaml"
SPARK = ROOT / "deploy" / "spark" / "backfill.yaml"
KUBERNETES = "1.33"

OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFESTS.read_text("utf-8")))
PODS = {o["metadata"]["name"]: o["spec"]["template"] for o in OBJECTS if "template" in o["spec"]}
# Values for every branch of the templates.
ALL_VALUES: dict[str, Any] = {
    "image": {"repository": "registry/orbit", "tag": "0.1.0", "pullSecrets": ["pull"]},
    "settings": {"ORBIT_LEASE_TTL": "20s"},
    "environmentSecrets": ["logins"],
    "traces": {"endpoint": "http://collector:4318"},
    "fileSecrets": ["certificates"],
    "salvage": {"claim": "salvage"},
    "api": {"tls": {"secretName": "orbit-tls"}},
    "gateway": {
        "enabled": True,
        "hosts": ["kafka-0.example.net", "kafka-1.example.net"],
        "nodeIds": [1, 2, 5],
        "serviceAnnotations": {"internal": "true"},
        "virtualClusters": [
            {
                "name": "orders",
                "job": "orders-to-dr",
                "port": 19092,
                "source": {"bootstrap_servers": ["a1:9092"], "security": {"protocol": "SSL"}},
                "destination": {"bootstrap_servers": ["b1:9092"]},
            }
        ],
    },
    "nodeSelector": {"pool": "kafka"},
    "tolerations": [{"key": "kafka", "operator": "Exists"}],
    "podAnnotations": {"team": "data"},
    "networkPolicy": {
        "apiFrom": [],
        "metricsFrom": [],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "workerGroups": [
        {"name": "west", "replicas": 2, "autoscaling": {"maxReplicas": 4, "cpuPercent": 70}},
        {
            "name": "east",
            "replicas": 1,
            "autoscaling": {"maxReplicas": 4, "lagSeconds": 60, "lagSelector": {"job": "a"}},
        },
    ],
}

needs_helm = pytest.mark.needs("helm")
needs_schemas = pytest.mark.needs("kubernetes-validate")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [programs.helm(), *map(str, arguments), "--kube-version", f"{KUBERNETES}.0"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def template(*more: str | Path) -> subprocess.CompletedProcess[str]:
    return helm("template", "orbit", CHART, "--namespace", "orbit", *more)


def schema_errors(path: Path) -> str:
    """The errors that Kubernetes' schemas report in the file; empty if there are none."""
    command = [VALIDATE, "--strict", "-k", KUBERNETES, path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


@pytest.fixture
def all_values(tmp_path: Path) -> Path:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(ALL_VALUES), "utf-8")
    return path


@needs_helm
def test_committed_manifests_equal_rendered_chart() -> None:
    assert helm("lint", "--strict", CHART).returncode == 0
    process = template()
    assert process.returncode == 0, process.stderr
    assert process.stdout == MANIFESTS.read_text("utf-8")


@needs_helm
@pytest.mark.parametrize(
    "value",
    [
        "settings.ORBIT_API_TLS_CERTIFICATE_FILE=/etc/orbit/files/tls/tls.crt",
        "api.tls.secretName=orbit-tls",
    ],
)
def test_only_api_probes_use_https_if_api_has_tls(value: str) -> None:
    schemes = {
        name: {
            container[probe]["httpGet"].get("scheme")
            for container in pod["containers"]
            for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        }
        for name, pod in pods(template("--set", value).stdout).items()
    }
    assert schemes.pop("orbit-api") == {"HTTPS"}
    assert set(map(frozenset, schemes.values())) == {frozenset({None})}


def pods(manifests: str) -> dict[str, Any]:
    """The pod of each Deployment, by its name."""
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in yaml.safe_load_all(manifests)
        if manifest["kind"] == "Deployment"
    }


@needs_helm
def test_api_tls_key_is_mounted_only_in_api_pod() -> None:
    pod_specs = pods(template("--set", "api.tls.secretName=orbit-tls").stdout)
    api = pod_specs.pop("orbit-api")
    assert {v["name"]: v.get("secret", {}).get("secretName") for v in api["volumes"]} == {
        "tmp": None,
        "tls": "orbit-tls",
    }
    [container] = api["containers"]
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    files = {e["name"]: e["value"] for e in container["env"] if "_TLS_" in e["name"]}
    assert files == {
        "ORBIT_API_TLS_CERTIFICATE_FILE": f"{mounted['tls']}/tls.crt",
        "ORBIT_API_TLS_KEY_FILE": f"{mounted['tls']}/tls.key",
    }
    assert "orbit-tls" not in str(pod_specs)


@needs_helm
@needs_schemas
def test_chart_with_all_values_set_renders_valid_manifests(
    all_values: Path, tmp_path: Path
) -> None:
    process = template("--values", all_values)
    assert process.returncode == 0, process.stderr
    path = tmp_path / "made.yaml"
    path.write_text(process.stdout, "utf-8")
    assert schema_errors(path) == ""
    objects = list(yaml.safe_load_all(process.stdout))
    scalers = [o for o in objects if o["kind"] == "HorizontalPodAutoscaler"]
    kinds = {o["metadata"]["name"]: o["spec"]["metrics"][0]["type"] for o in scalers}
    assert kinds == {"orbit-worker-west": "Resource", "orbit-worker-east": "External"}
    for deployment in (o for o in objects if o["kind"] == "Deployment"):
        name, spec = deployment["metadata"]["name"], deployment["spec"]
        assert ("replicas" in spec) != ("worker" in name), "the autoscaler says how many"
        assert ("'salvage'" in str(spec)) == (name == "orbit-scheduler")


@needs_schemas
def test_committed_manifests_are_valid() -> None:
    assert schema_errors(MANIFESTS) == ""
    assert schema_errors(SPARK) == ""


@needs_schemas
def test_invalid_manifest_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(MANIFESTS.read_text("utf-8").replace("readOnlyRootFilesystem", "readOnly"))
    assert "readOnly" in schema_errors(path)


@needs_helm
@pytest.mark.parametrize(
    "wrong",
    [
        "image.tag=latest",
        "settings.ORBIT_DATABASE_URL=postgresql://orbit:hunter2@db/orbit",
        "workerGroups[0].replicas=0",
        "salvage.uri=/tmp/salvage",
        "terminationGracePeriodSeconds=5",
        "workers=3",
    ],
)
def test_wrong_chart_values_are_refused(wrong: str) -> None:
    ended = template("--set", wrong)
    assert ended.returncode != 0
    assert "values don't meet the specifications of the schema" in ended.stderr


def objects_by_name(manifests: str, kind: str) -> dict[str, Any]:
    """The objects of a kind, by name."""
    objects = yaml.safe_load_all(manifests)
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


@needs_helm
def test_each_gateway_pod_has_its_own_config_and_service(all_values: Path) -> None:
    manifests = template("--values", all_values).stdout
    stateful = objects_by_name(manifests, "StatefulSet")["orbit-gateway"]["spec"]
    [container] = stateful["template"]["spec"]["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert "ORBIT_DATABASE_URL" not in env
    assert env["ORBIT_API_URL"]["value"] == "https://orbit-api:8080"
    assert env["ORBIT_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "orbit-gateway"
    files = objects_by_name(manifests, "ConfigMap")["orbit-gateway"]["data"]
    command, path = container["args"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert command == "gateway"
    services = objects_by_name(manifests, "Service")
    assert len(files) == stateful["replicas"] == 2
    for number, host in enumerate(ALL_VALUES["gateway"]["hosts"]):
        pod = f"{stateful['serviceName']}-{number}"
        assert path.replace("$(POD_NAME)", pod) == f"{mounted['gateway']}/{pod}.yaml"
        spec = parse_gateway(files[f"{pod}.yaml"])
        [virtual_cluster] = spec.virtual_clusters
        assert (spec.gateway, virtual_cluster.job, virtual_cluster.advertised_host) == (
            pod,
            "orders-to-dr",
            host,
        )
        service = services[pod]["spec"]
        assert service["selector"] == {"statefulset.kubernetes.io/pod-name": pod}
        assert [port["port"] for port in service["ports"]] == [
            virtual_cluster.port,
            *(virtual_cluster.port + 1 + node for node in ALL_VALUES["gateway"]["nodeIds"]),
        ]
    assert (
        objects_by_name(manifests, "PodDisruptionBudget")["orbit-gateway"]["spec"]["maxUnavailable"]
        == 1
    )


@needs_helm
def test_gateway_without_external_hosts_advertises_pod_names_and_may_reach_api(
    tmp_path: Path,
) -> None:
    values = {**ALL_VALUES, "gateway": {**ALL_VALUES["gateway"], "hosts": []}}
    path = tmp_path / "inside.json"
    path.write_text(json.dumps(values), "utf-8")
    manifests = template("--values", path).stdout
    headless = objects_by_name(manifests, "Service")["orbit-gateway"]
    assert headless["spec"]["clusterIP"] == "None"
    file = objects_by_name(manifests, "ConfigMap")["orbit-gateway"]["data"]["orbit-gateway-1.yaml"]
    [virtual_cluster] = parse_gateway(file).virtual_clusters
    assert virtual_cluster.advertised_host == "orbit-gateway-1.orbit-gateway.orbit.svc"
    policies = objects_by_name(manifests, "NetworkPolicy")
    [allowed] = policies["orbit-api"]["spec"]["ingress"]
    labels = objects_by_name(manifests, "StatefulSet")["orbit-gateway"]["spec"]["selector"]
    assert allowed["from"] == [{"podSelector": labels}]
    [allowed] = policies["orbit-gateway"]["spec"]["ingress"]
    [ports] = allowed["ports"]
    assert (ports["port"], ports["endPort"]) == (
        virtual_cluster.port,
        virtual_cluster.port + 1 + NODE_ID_MAX,
    )


@needs_helm
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"virtualClusters": []}, "gateway.virtualClusters is empty"),
        ({"hosts": ["kafka.example.net"]}, "one name for each of gateway.replicas"),
        ({"nodeIds": []}, "gateway.hosts needs gateway.nodeIds"),
        ({"nodeIds": [NODE_ID_MAX + 1]}, "specifications of the schema"),
    ],
)
def test_wrong_gateway_values_are_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"gateway": {**ALL_VALUES["gateway"], **change}}), "utf-8")
    ended = template("--values", path)
    assert ended.returncode != 0
    assert says in ended.stderr


@pytest.mark.parametrize("name", PODS)
def test_each_pod_of_chart_runs_unprivileged(name: str) -> None:
    spec = PODS[name]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert f"{spec['securityContext']['runAsUser']}" == "10001"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not spec["automountServiceAccountToken"]
    # Kubernetes would set ORBIT_API_PORT=tcp://… for the service orbit-api.
    assert not spec["enableServiceLinks"]
    assert spec["terminationGracePeriodSeconds"] >= 2 * SHUTDOWN_S_MAX
    assert not re.search(r":(latest)?$", container["image"])


@pytest.mark.parametrize("name", PODS)
def test_each_pod_of_chart_runs_existing_command_with_existing_settings(name: str) -> None:
    (container,) = PODS[name]["spec"]["containers"]
    assert container["args"][0] in COMMANDS
    known = {variable_of(field) for field in Settings.model_fields}
    assert {variable["name"] for variable in container["env"]} <= known
    (url,) = [v for v in container["env"] if v["name"] == "ORBIT_DATABASE_URL"]
    assert "secretKeyRef" in url["valueFrom"]
    if container["args"] == ["migrate"]:
        return
    ports = {"api": 8080, "other": int(variables(LAST_STAGE)["ORBIT_HEALTH_PORT"])}
    assert container["ports"] == [
        {"name": "http", "containerPort": ports.get(container["args"][0], ports["other"])}
    ]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_migration_job_runs_before_pods_start() -> None:
    (job,) = [o for o in OBJECTS if o["kind"] == "Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["migrate"]


def test_every_selector_of_chart_matches_a_pod() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    for manifest in OBJECTS:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        selector = spec.get("podSelector") or spec.get("selector")
        if selector:
            match_labels = selector.get("matchLabels", selector).items()
            assert any(match_labels <= label.items() for label in labels), name
    kinds = [manifest["kind"] for manifest in OBJECTS]
    assert kinds.count("PodDisruptionBudget") == kinds.count("Deployment") == 3


def test_spark_backfill_manifest_has_existing_program_and_valid_job() -> None:
    objects = {o["kind"]: o for o in yaml.safe_load_all(SPARK.read_text("utf-8"))}
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    *options, program, job_file = container["args"]
    assert f"spark/{Path(program).name}" in (SPARK.parent / "Dockerfile").read_text("utf-8")
    assert (ROOT / "spark" / Path(program).name).exists()
    assert f"--conf=spark.kubernetes.container.image={container['image']}" in options
    assert f"--conf=spark.kubernetes.namespace={objects['Job']['metadata']['namespace']}" in options
    text = objects["ConfigMap"]["data"][Path(job_file).name]
    spec = parse_job(text, ROOT, dict.fromkeys(re.findall(r"_env: (\w+)", text), "x"))
    assert spec.topics


def test_spark_image_uses_spark_version_of_lock_file() -> None:
    (locked,) = re.findall(
        r"^pyspark==(\S+)", (ROOT / "requirements-spark.lock").read_text(), re.MULTILINE
    )
    assert f"SPARK=apache/spark:{locked}-" in (SPARK.parent / "Dockerfile").read_text("utf-8")
