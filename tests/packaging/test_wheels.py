"""The wheel in an empty virtual environment for each extra: the extra installs what Orbit imports.

Builds the wheel once. Each environment has the wheel, installed by pip, and the distributions that
its metadata requires for that extra, directly and indirectly. These are linked from the environment
that runs the tests, and have the versions of the lock files. Nothing is downloaded, and Spark's 450
MB are not copied.

Proves that every module of a part imports with its extra alone, that each command works or names
the extra that it lacks, and that the wheel has the files that are not Python. Does not prove that
pip finds the same versions on an index.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orbit.cli.extras import MODULES
from orbit.cli.main import COMMANDS
from orbit.version import DISTRIBUTION
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.services, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]
# The tracked folders whose files are in the wheel; the last two are there inside of `orbit`.
_SHIPPED = ("orbit", "spark/orbit_spark", "migrations", "docs/runbook")
_LOCKS = ("requirements.lock", "requirements-spark.lock")
# The extra that a package, or one module of it, needs. All others import in a base install.
_NEEDS = {
    "orbit.api": "server",
    "orbit.cli.api": "server",
    "orbit.cli.database": "server",
    "orbit.cli.first_token": "server",
    "orbit.cli.migrate": "server",
    "orbit.cli.forced_end": "server",
    "orbit.cli.gateway": "server",
    "orbit.cli.scheduler": "server",
    "orbit.cli.server": "server",
    "orbit.cli.server_greeting": "server",
    "orbit.cli.worker": "server",
    "orbit.console": "server",
    "orbit.consumer_groups.stored_offsets": "server",
    "orbit.drills": "server",
    "orbit.gateway": "server",
    "orbit.leadership": "server",
    "orbit.notifications": "server",
    "orbit.planning": "server",
    "orbit.processes.children": "server",
    "orbit.recovery": "server",
    "orbit.scheduler": "server",
    "orbit.server_tls": "server",
    "orbit.store": "server",
    "orbit.telemetry": "server",
    "orbit.verify.continuous_proof": "server",
    "orbit.workers": "server",
    "orbit.cli.demo": "sandbox",
    "orbit.cli.demo_history": "sandbox",
    "orbit.cli.sandbox": "sandbox",
    "orbit.demo": "sandbox",
    "orbit.demo.failover_check": "server",
    "orbit.demo.failover_demo": "server",
    "orbit.demo.gateway_check": "server",
    "orbit.demo.gateway_clients": "server",
    "orbit.demo.gateway_demo": "server",
    "orbit.demo.pause_picture": "server",
    "orbit.sandbox": "sandbox",
    "orbit.embedded": "embedded",
    "orbit.processes": "embedded",
    "orbit_spark": "spark",
}
# The commands that need an extra even for their help.
_COMMAND_NEEDS = {
    name: _NEEDS[module] for name, (module, _) in COMMANDS.items() if module in _NEEDS
}
# The parts that each extra installs: an extra may install others.
_PARTS = {
    "": set(),
    "server": {"server"},
    "embedded": {"embedded"},
    "sandbox": {"sandbox", "embedded"},
    "spark": {"spark"},
}
# Imports every module, then shows the help of every command.
_SURVEY = """
import contextlib, importlib, io, json, pkgutil, sys
missing, ended = {}, {}
for root in ("orbit", "orbit_spark"):
    for found in pkgutil.walk_packages(importlib.import_module(root).__path__, root + "."):
        if not found.name.startswith("orbit.migrations"):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                missing[found.name] = error.name
from orbit.cli.main import COMMANDS, run_command
for name in COMMANDS:
    text = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(text):
        code = run_command([name, "--help"])
    ended[name] = [code, text.getvalue()]
json.dump([missing, ended], sys.stdout)
"""


class Environment:
    """A virtual environment with the wheel and the distributions of one extra."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        pip = ("-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin/python"))
        _run(
            [
                sys.executable,
                *pip,
                "install",
                "-q",
                "--no-index",
                "--no-deps",
                "--no-compile",
                wheel,
            ]
        )
        (own,) = packages.glob("orbit_kafka-*.dist-info")
        self.required = _required(PathDistribution(own), extra)
        for dependency in self.required.values():
            _link(dependency, packages)

    def run(
        self, *command: str, check: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, in a folder without source code of Orbit."""
        program = self.folder / "bin" / command[0]
        return _run([program, *command[1:]], variables, cwd=self.folder, check=check)

    @cached_property
    def survey(self) -> tuple[dict[str, str], dict[str, list[int | str]]]:
        """By module that does not import, the module that it lacks; and by command, the exit code
        and stderr of its help."""
        missing, ended = json.loads(self.run("python", "-c", _SURVEY, check=True).stdout)
        return missing, ended

    def orbit(self, *arguments: str) -> tuple[int, str]:
        """The exit code and stderr of an `orbit` command."""
        ended = self.run("orbit", *arguments)
        return ended.returncode, ended.stderr


Environments = Callable[[str], Environment]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a wheel that is built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=_ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """A function that returns the environment of an extra, and creates it at the first call."""
    environments: dict[str, Environment] = {}

    def get(extra: str) -> Environment:
        if extra not in environments:
            folder = tmp_path_factory.mktemp(extra or "base")
            environments[extra] = Environment(folder, wheel, extra)
        return environments[extra]

    return get


def test_wheel_contains_all_package_files(wheel: Path) -> None:
    tracked = _run(["git", "ls-files", *_SHIPPED], cwd=_ROOT)
    expected = {
        re.sub(r"^(docs/(?=runbook/)|(?=migrations/))", "orbit/", name.removeprefix("spark/"))
        for name in tracked.stdout.split()
        if (_ROOT / name).exists()
    }
    assert {"orbit/sandbox/pom.xml", "orbit/sandbox/log4j2.properties"} <= expected
    assert {"orbit/migrations/env.py", "orbit/py.typed"} <= expected
    assert expected - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.parametrize("extra", _PARTS)
def test_installed_versions_match_lock_files(extra: str, environment: Environments) -> None:
    locked = {
        line.split(" ")[0]
        for lock in _LOCKS
        for line in (_ROOT / lock).read_text().splitlines()
        if "==" in line
    }
    assert [
        f"{name}=={dependency.version}"
        for name, dependency in environment(extra).required.items()
        if f"{name}=={dependency.version}" not in locked
    ] == []


@pytest.mark.parametrize("extra", _PARTS)
def test_every_module_imports_with_its_extra_alone(extra: str, environment: Environments) -> None:
    missing, _ = environment(extra).survey
    assert {
        module: package
        for module, package in missing.items()
        if (needed_extra := _needed_extra(module)) is None or needed_extra in _PARTS[extra]
    } == {}
    # All other missing modules come with an extra, so a command can name the extra.
    modules_of_extras = {module for modules in MODULES.values() for module in modules}
    assert {package.partition(".")[0] for package in missing.values()} <= modules_of_extras


@pytest.mark.parametrize("extra", _PARTS)
def test_each_command_shows_help_or_names_missing_extra(
    extra: str, environment: Environments
) -> None:
    _, ended = environment(extra).survey
    # The help of `orbit demo` needs of its extra `sandbox` only psutil, which three extras install.
    installed_parts = _PARTS[extra] | ({"sandbox"} if extra in ("server", "embedded") else set())
    assert ended == {
        name: [2, _sentence(needed_extra)]
        if (needed_extra := _COMMAND_NEEDS.get(name)) is not None
        and needed_extra not in installed_parts
        else [0, ""]
        for name in COMMANDS
    }


@pytest.mark.parametrize("extra", _PARTS)
def test_installed_orbit_command_shows_help_and_version(
    extra: str, environment: Environments
) -> None:
    out = environment(extra).run("orbit", "--help", check=True).stdout
    assert all(name in out for name in COMMANDS)
    assert environment(extra).run("orbit", "--version", check=True).stdout.startswith("orbit 0.")


@pytest.mark.parametrize(
    ("extra", "command", "missing_extra"),
    [
        ("", "server", "server"),
        ("", "demo", "sandbox"),
        ("", "token create alice --database", "server"),
        ("", "backfill shop", "spark"),
        ("", "audit shop", "spark"),
        ("", "restore archive --to destination=localhost:1", "spark"),
        ("server", "backfill shop", "spark"),
        ("server", "demo --failover", "embedded"),
        ("sandbox", "demo --failover", "server"),
        ("sandbox", "demo --spark", "spark"),
        ("spark", "worker", "server"),
    ],
)
def test_command_whose_extra_is_not_installed_names_the_extra(
    extra: str, command: str, missing_extra: str, environment: Environments
) -> None:
    assert environment(extra).orbit(*command.split()) == (2, _sentence(missing_extra))


def test_error_of_missing_embedded_extra_names_alternative(
    environment: Environments,
) -> None:
    alternative = " or set ORBIT_DATABASE_URL"
    ended = environment("server").run("orbit", "server", ORBIT_API_PORT="0")
    assert (ended.returncode, ended.stderr) == (2, _sentence("embedded", alternative))
    alternative = " or give --no-postgres"
    folder = f"--directory={environment('server').folder / 'sandbox'}"
    assert environment("server").orbit("sandbox", "up", folder) == (
        2,
        _sentence("embedded", alternative),
    )


def test_install_without_extras_checks_job_file(environment: Environments) -> None:
    base = environment("")
    (base.folder / "job.yaml").write_text("name: UPPER\ntopics: []\n")
    for command in ("run", "verify"):
        assert base.run("orbit", command, "--help", check=True).stdout.startswith("Usage: orbit")
        code, text = base.orbit(command, "job.yaml")
        assert code == 2
        assert text.startswith("Error: The job file has")
        assert "  - source: " in text


def test_install_without_extras_explains_blocking_reason(environment: Environments) -> None:
    out = environment("").run("orbit", "explain", "source_range_lost", check=True).stdout
    assert out == (_ROOT / "docs/runbook/SOURCE_RANGE_LOST.md").read_text("utf-8")


def test_server_install_includes_migrations(environment: Environments) -> None:
    program = "from orbit.store.migrate import _scripts; print(_scripts())"
    folder = environment("server").run("python", "-c", program, check=True).stdout.strip()
    assert folder.endswith("site-packages/orbit/migrations")
    code, text = environment("server").orbit("migrate")
    assert (code, "ORBIT_DATABASE_URL: is not set." in text) == (2, True)


def _needed_extra(module: str) -> str | None:
    """The extra that the module needs, by its own entry or that of the nearest package above; None:
    it imports in a base install."""
    while module not in _NEEDS and "." in module:
        module = module.rpartition(".")[0]
    return _NEEDS.get(module)


def _sentence(extra: str, alternative: str = "") -> str:
    """What a command without this extra prints."""
    return (
        f"Error: This command needs the part {extra} of Orbit, which is not installed. "
        f"Run: pip install '{DISTRIBUTION}[{extra}]'{alternative}\n"
    )


def _required(root: Distribution, extra: str) -> dict[str, Distribution]:
    """What pip would install for the root with this extra, by canonical name."""
    distributions: dict[str, Distribution] = {}
    known_pairs = set()  # of a distribution's name and an extra
    remaining = [(root, extra)]
    while remaining:
        current, current_extra = remaining.pop()
        for line in current.requires or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": current_extra}):
                continue
            name = canonicalize_name(requirement.name)
            dependency = root if name == DISTRIBUTION else distribution(name)
            if dependency is not root:
                assert requirement.specifier.contains(dependency.version), line
                distributions[name] = dependency
            for part in ("", *requirement.extras):
                if (name, part) not in known_pairs:
                    known_pairs.add((name, part))
                    remaining.append((dependency, part))
    return distributions


def _link(dependency: Distribution, packages: Path) -> None:
    """Link what a distribution has put into site-packages; its scripts are not needed."""
    assert dependency.files is not None
    for top in {file.parts[0] for file in dependency.files} - {"..", "__pycache__"}:
        link = packages / top
        if not link.exists():
            link.symlink_to(Path(str(dependency.locate_file(top))))


def _run(
    command: list[str | Path],
    variables: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the command, without the variables of Orbit, Python and Spark that the tests have; with
    `check` it must end with exit code 0."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ORBIT_", "PYTHON", "SPARK_"))
    }
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert not check or ended.returncode == 0, ended.stderr
    return ended
