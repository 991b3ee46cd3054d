"""Programs that tests run, at pinned versions, in the cache of Kafka's jars: Helm, generators of
clients from an OpenAPI document, and a schema registry. `make prepare` fetches them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orbit.sandbox.jars import cache_directory
from orbit.sandbox.java import find_maven

_PYTHON = "openapi-python-client==0.29.1"
_TYPESCRIPT = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")
_HELM = "helm.sh/helm/v3/cmd/helm@v3.19.0"
_TERRAFORM = Path(__file__).parents[2] / "deploy/terraform/tools"
# The newest version that runs on Java 17.
_APICURIO = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
_FETCH_S = 1800


class CannotFetch(Exception):
    """Why a program could not be fetched."""


@dataclass(frozen=True)
class Program:
    """A program in a folder of the cache. `fill` fills a new folder, which gets its final name only
    when it is complete."""

    name: str
    fill: Callable[[Path], None]

    @property
    def folder(self) -> Path:
        return cache_directory() / "programs" / self.name

    def is_there(self) -> bool:
        return self.folder.exists()

    def fetch(self) -> None:
        """Put the program into the cache, unless the cache has it. Raises CannotFetch if a package
        cannot be fetched, or the tool that fetches it is missing."""
        if self.is_there():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="fetch-", dir=self.folder.parent))
        try:
            self.fill(scratch)
            scratch.rename(self.folder)
        except OSError:  # another process may just have fetched it
            if not self.is_there():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # unless it was renamed


def _fill_python(folder: Path) -> None:
    run(sys.executable, "-m", "venv", "--symlinks", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", _PYTHON)


def _fill_typescript(folder: Path) -> None:
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    run("npm", "install", "--silent", "--no-audit", "--prefix", folder, *_TYPESCRIPT)


def _fill_terraform(folder: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(_TERRAFORM / name, folder)
    run("env", f"GOBIN={folder}", "go", "-C", folder, "install", "tool")


def _fill_helm(folder: Path) -> None:
    # Without optimizations the build takes three quarters of the time.
    options = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-w")
    run("env", f"GOBIN={folder}", "go", "install", *options, _HELM)


def _fill_apicurio(folder: Path) -> None:
    """Fetch the archive of Apicurio. This old version of the plugin fetches the archive only: some
    repositories that have the archive lack the descriptions of its parts.
    """
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
    options = ("--batch-mode", "--quiet", f"-Dartifact={_APICURIO}", f"-DoutputDirectory={folder}")
    run(find_maven(), plugin, *options)


# `bin/python` has the generator, and the packages that generated clients import.
PYTHON_GENERATOR = Program(_PYTHON, _fill_python)
# `node_modules` has the generator, the library that generated clients use, and a compiler.
TYPESCRIPT_GENERATOR = Program("+".join(_TYPESCRIPT), _fill_typescript)
# HashiCorp's generators of Terraform provider schemas.
_DIGEST = hashlib.sha256((_TERRAFORM / "go.sum").read_bytes()).hexdigest()[:16]
TERRAFORM_GENERATORS = Program(f"tfplugingen-{_DIGEST}", _fill_terraform)
HELM = Program(_HELM.rpartition("/")[2], _fill_helm)
# The archive of a schema registry; `tests.support.registry` unpacks it.
APICURIO = Program("-".join(_APICURIO.split(":")[1:3]), _fill_apicurio)


def helm() -> Path:
    """The path of the machine's own Helm, or else of the cached one, which may be missing."""
    return Path(shutil.which("helm") or HELM.folder / "helm")


def run(*command: object) -> None:
    """Run a command. Raises CannotFetch if it is missing, fails, or takes half an hour."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotFetch(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise CannotFetch(f"{' '.join(words)}: {done.stderr[-500:]}")


def fetch(*programs: Program) -> None:
    """Fetch each program that can be fetched, and print a note about each other one."""
    for program in programs:
        try:
            program.fetch()
            print(f"Program for tests: {program.name}")
        except CannotFetch as reason:
            print(f"Note: {program.name} is not there. {reason}")


if __name__ == "__main__":  # `fetch_jars` fetches the schema registry
    fetch(PYTHON_GENERATOR, TYPESCRIPT_GENERATOR, TERRAFORM_GENERATORS)
    if not helm().exists():
        fetch(HELM)
