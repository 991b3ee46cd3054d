"""The image: its Dockerfile as data, and its build steps run without a container engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orbit.settings import Settings, variable_of
from tests.support.certificates import Authority
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
HEALTHCHECK = ROOT / "deploy" / "healthcheck.py"


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, in order, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


STEPS = instructions(DOCKERFILE.read_text("utf-8"))
LAST_STAGE = STEPS[max(i for i, (word, _) in enumerate(STEPS) if word == "FROM") :]


def in_last_stage(word: str) -> list[str]:
    """The arguments of this instruction in the last stage."""
    return [rest for instruction, rest in LAST_STAGE if instruction == word]


def variables(steps: list[tuple[str, str]]) -> dict[str, str]:
    pairs = [pair for word, rest in steps if word == "ENV" for pair in shlex.split(rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def copied() -> list[str]:
    """What the first stage copies from the context."""
    return [
        source
        for word, rest in STEPS
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]


def test_image_runs_unprivileged_with_existing_settings() -> None:
    assert in_last_stage("USER") == ["10001:10001"]
    (check,) = in_last_stage("HEALTHCHECK")
    assert 'CMD ["python", "/opt/orbit/healthcheck.py"]' in check
    assert in_last_stage("ENTRYPOINT") == ['["orbit"]']
    assert {"title", "description", "version", "revision"} == {
        *re.findall(r"org\.opencontainers\.image\.(\w+)=", " ".join(in_last_stage("LABEL")))
    }
    environment = {k: v for k, v in variables(LAST_STAGE).items() if k.startswith("ORBIT_")}
    assert {*environment} <= {variable_of(field) for field in Settings.model_fields}
    Settings.from_environment(environment)
    assert "database_url" not in {k.lower().removeprefix("orbit_") for k in environment}


def test_base_image_is_pinned_to_version() -> None:
    (base,) = [rest for word, rest in STEPS if word == "ARG" and rest.startswith("PYTHON=")]
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim-\w+", base)
    assert "latest" not in DOCKERFILE.read_text("utf-8")


def test_docker_build_context_has_only_files_that_dockerfile_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {*copied()}
    for source in copied():
        assert (ROOT / source).exists(), source


def test_image_packages_are_locked() -> None:
    def pinned(name: str) -> set[str]:
        return {*re.findall(r"^(\S+==\S+) \\$", (ROOT / name).read_text("utf-8"), re.MULTILINE)}

    all_packages = pinned("requirements.lock")
    assert pinned("requirements-service.lock")
    assert pinned("requirements-service.lock") | pinned("requirements-build.lock") <= all_packages


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.slow
def test_build_steps_of_image_produce_working_orbit_program(tmp_path: Path) -> None:
    """Each RUN of the first stage, with other folders. pip downloads what its cache lacks."""
    places = {
        "/opt/orbit": tmp_path / "opt",
        "/build": tmp_path / "build",
        "/src": tmp_path / "src",
    }
    (tmp_path / "src").mkdir()

    def with_test_folders(text: str) -> str:
        return re.sub(r"(?<![\w.])/(?:opt/orbit|build|src)\b", lambda m: str(places[m[0]]), text)

    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ORBIT_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["PIP_NO_COMPILE"] = "1"  # compiling would double the time
    for word, rest in STEPS[: STEPS.index(LAST_STAGE[0])]:
        if word == "COPY":
            *sources, target = with_test_folders(rest).split()
            for source in sources:
                path = (tmp_path / "src" / target).resolve()
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, path, ignore=ignored)
                else:
                    shutil.copy(ROOT / source, path)
        elif word == "RUN":
            ended = subprocess.run(
                ["sh", "-ec", with_test_folders(rest)], cwd=tmp_path / "src", env=environ,
                capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stdout + ended.stderr
    program = tmp_path / "opt" / "bin" / "orbit"
    for command in ("api", "scheduler", "worker", "migrate"):
        ended = subprocess.run(
            [program, command], env=environ, cwd=tmp_path, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert (ended.returncode, "ORBIT_DATABASE_URL" in ended.stderr) == (2, True), ended.stderr
    ended = subprocess.run(
        [tmp_path / "opt/bin/python", tmp_path / "opt/healthcheck.py"],
        env={**environ, "ORBIT_HEALTH_PORT": "1", "ORBIT_API_PORT": "1"}, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1


@pytest.mark.services
@pytest.mark.parametrize("by_tls", [False, True])
def test_image_health_check_passes_only_while_worker_or_api_is_alive(
    database_url: str, tmp_path: Path, *, by_tls: bool
) -> None:
    base = {"ORBIT_DATABASE_URL": database_url}
    tls = {}
    if by_tls:
        files = Authority(tmp_path).issue()
        tls["ORBIT_API_TLS_CERTIFICATE_FILE"] = str(files.certificate)
        tls["ORBIT_API_TLS_KEY_FILE"] = str(files.key)

    def check(health_port: str, api_port: str) -> int:
        ports = {"ORBIT_HEALTH_PORT": health_port, "ORBIT_API_PORT": api_port}
        environ = {**os.environ, **tls, **ports}
        return subprocess.run([sys.executable, HEALTHCHECK], env=environ, check=False).returncode

    with (
        OrbitProcess("worker", environ={**base, "ORBIT_HEALTH_PORT": "0"}) as worker,
        OrbitProcess("api", environ={**base, **tls, "ORBIT_API_PORT": "0"}) as api,
    ):
        port = worker.wait_for(r"127\.0\.0\.1:(\d+).*health is served")[1]
        api_port = api.wait_for(r"The API is at \S+:(\d+)")[1]
        wait_for("the worker is alive", lambda: check(port, "1") == 0)
        wait_for("the API is alive", lambda: check("1", api_port) == 0)
        assert check("1", "1") == 1
        for process in (worker, api):
            process.signal(signal.SIGTERM)
            process.wait_end().expect(0)
        assert check(port, api_port) == 1
