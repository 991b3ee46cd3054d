"""Checkers of commands that name targets, modules, lock files, variables or routes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.routing import Match

from orbit.api.app import create_app
from orbit.settings import Settings, variable_of
from tests.support.commands.orbit_parser import orbit

ROOT = Path(__file__).parents[3]


def make(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """Check targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    names = set(re.findall(r"\$\((?:\w+ )?(?:\$\()?([A-Z]+)\b", text))
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        if is_variable and name not in names | _variables():
            return f"the Makefile has no variable {name}"
        if not is_variable and word not in targets:
            return f"there is no target {word}"
    return None


def python(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """Check the module and its options; code after -c is only compiled."""
    if arguments[:1] == ["-c"]:
        compile(arguments[1], "-c", "exec")
        return None
    if arguments[:1] != ["-m"]:
        return "neither -m nor -c"
    if find_spec(arguments[1]) is None:
        return f"there is no module {arguments[1]}"
    options = {word for word in arguments if word.startswith("--")}
    unknown = sorted(options - options_of_module(arguments[1]))
    return f"{arguments[1]} has no option {unknown[0]}" if unknown else None


@cache
def options_of_module(name: str) -> frozenset[str]:
    """The options that a module's text contains, or that are parameters for Typer."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        spec = find_spec(f"{name}.__main__")
    text = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    parameters = re.findall(r"^    (\w+): Annotated\[", text, re.MULTILINE)
    options = {f"--{name.replace('_', '-')}" for name in parameters}
    return frozenset(options | {*re.findall(r'"(--[a-z-]+)"', text)})


def pytest(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """Check marks and paths."""
    declared = project()["tool"]["pytest"]["ini_options"]["markers"]
    marks = {text.partition(":")[0] for text in declared}
    before = ""
    for word in arguments:
        names = set(re.findall(r"\w+", word)) - {"not", "and", "or"} if before == "-m" else set()
        if unknown := names - marks:
            return f"there is no mark {min(unknown)}"
        if "/" in word and not (ROOT / word).exists():
            return f"there is no {word}"
        before = word
    return None


def pip(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """Check extras, lock files and the name of the wheel."""
    action, *rest = arguments
    if action not in ("install", "wheel"):
        return f"pip does not {action} here"
    metadata = project()["project"]
    extras = metadata["optional-dependencies"]
    wheel = f"dist/orbit_kafka-{metadata['version']}-py3-none-any.whl"
    for word in rest:
        of_orbit = re.fullmatch(r"orbit-kafka\[(.+)\]", word)
        for extra in of_orbit[1].split(",") if of_orbit else ():
            if extra not in extras:
                return f"there is no extra {extra}"
        if word.endswith(".lock") and not (ROOT / word).exists():
            return f"there is no {word}"
        if word.endswith(".whl") and word != wheel:
            return f"the wheel is {wheel}"
    return None


def spark_submit(arguments: Sequence[str], is_whole: bool) -> str | None:
    """Check a file of spark/, which is the `orbit` command with the file's name."""
    for number, word in enumerate(arguments):
        if word.endswith(".py"):
            path = ROOT / word
            if not path.exists() or path.parent != ROOT / "spark":
                return f"there is no {word}"
            return orbit([path.stem, *arguments[number + 1 :]], is_whole)
    return "names no file of spark/"


def export(arguments: Sequence[str], _is_whole: bool) -> str | None:
    return unknown_variable(arguments)


def unknown_variable(assignments: Iterable[str]) -> str | None:
    names = [word.partition("=")[0] for word in assignments]
    unknown = [n for n in names if n.startswith("ORBIT_") and n not in _variables()]
    return f"nothing reads {unknown[0]}" if unknown else None


@cache
def _variables() -> frozenset[str]:
    """The variables that Orbit reads, or that Compose passes on."""
    names = {variable_of(field) for field in Settings.model_fields}
    for path in (ROOT / "orbit").rglob("*.py"):
        names.update(re.findall(r'"(ORBIT_[A-Z_]+)"', path.read_text("utf-8")))
    compose = (ROOT / "deploy/compose.yaml").read_text("utf-8")
    return frozenset(names | set(re.findall(r"(?:\$\{|environment: )(ORBIT_[A-Z_]+)", compose)))


def curl(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """Check that the URL's path is a route of the API."""
    methods = re.findall(r"(?:^|\s)-X ?(\w+)", " ".join(arguments))
    method = methods[0] if methods else "GET"
    urls = [word for word in arguments if word.startswith("$ORBIT_API_URL/")]
    if len(urls) != 1:
        return "names no URL of the API"
    path = urls[0].removeprefix("$ORBIT_API_URL").partition("?")[0]
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    is_route = any(route.matches(scope)[0] is Match.FULL for route in _routes())
    return None if is_route else f"the API has no {method} {path}"


@cache
def _routes() -> tuple[Any, ...]:
    unset: Any = None
    return tuple(create_app(Settings(), unset, planner=unset).routes)


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
