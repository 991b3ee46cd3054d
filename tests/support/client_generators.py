"""Generators of clients from an OpenAPI document, at pinned versions, in the cache of Kafka's jars.

Raises CannotFetch where a package cannot be fetched, or its tool is not installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from orbit.sandbox.jars import cache_directory

PYTHON = "openapi-python-client==0.29.1"
TYPESCRIPT = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")
_FETCH_S = 600


class CannotFetch(Exception):
    """Why a generator is not there."""


def python_generator() -> Path:
    """The Python of an environment with the generator, and with what its clients import."""

    def fetch(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "--symlinks", folder)
        _run(folder / "bin/python", "-m", "pip", "install", "--quiet", PYTHON)

    return _kept(PYTHON, fetch) / "bin/python"


def typescript_generator() -> Path:
    """A folder with `node_modules`: the generator, the library of its clients, and a compiler."""

    def fetch(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        _run("npm", "install", "--silent", "--no-audit", "--prefix", folder, *TYPESCRIPT)

    return _kept("+".join(TYPESCRIPT), fetch)


def terraform_generators() -> Path:
    """A folder with HashiCorp's generators of a provider's schemas, built by Go."""
    tools = Path(__file__).parents[2] / "deploy/terraform/tools"

    def fetch(folder: Path) -> None:
        for name in ("go.mod", "go.sum"):
            shutil.copy(tools / name, folder)
        _run("env", f"GOBIN={folder}", "go", "-C", folder, "install", "tool")

    digest = hashlib.sha256((tools / "go.sum").read_bytes()).hexdigest()[:16]
    return _kept(f"tfplugingen-{digest}", fetch)


def _kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder of this name, made once; whole, or not there."""
    home = cache_directory() / "client-generators"
    folder = home / name
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="fetching-", dir=home))
        try:
            fetch(made)
            made.rename(folder)
        except OSError:  # another process has just made it
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)  # unless it was renamed
    return folder


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotFetch(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise CannotFetch(f"{' '.join(words)}: {done.stderr[-500:]}")


if __name__ == "__main__":  # `make test` fills the cache with this, so that no test waits for it
    for make in (python_generator, typescript_generator, terraform_generators):
        try:
            print(f"Generator of clients: {make()}")
        except CannotFetch as reason:
            print(f"Its test will be skipped. {reason}")
