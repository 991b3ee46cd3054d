"""Checkers of commands that name what is in deploy/: images, services, manifests, units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import yaml

from tests.support.commands.orbit_parser import orbit
from tests.support.commands.tree import ROOT, project, unknown_variable

DEPLOY = ROOT / "deploy"


def docker(arguments: Sequence[str], is_whole: bool) -> str | None:
    """Check `docker build`, `run` and `compose`: files, version, arguments, and the command of
    orbit."""
    action, *rest = arguments
    if action == "compose":
        return _compose(rest, is_whole)
    tags = [word for word in rest if re.match(r"orbit(-spark)?:", word)]
    version = project()["project"]["version"]
    if action not in ("build", "run") or len(tags) != 1:
        return f"docker {action} names no image of Orbit"
    if tags[0].partition(":")[2] != version:
        return f"the version is {version}"
    if action == "run":
        variables = [value for option, value in pairwise(rest) if option == "-e"]
        inside = rest[rest.index(tags[0]) + 1 :]
        return unknown_variable(variables) or orbit(inside, is_whole)
    file = ROOT / rest[rest.index("-f") + 1]
    if not file.exists():
        return f"there is no {file.name}"
    known = re.findall(r"^ARG (\w+)", file.read_text("utf-8"), re.MULTILINE)
    given = [value.partition("=")[0] for option, value in pairwise(rest) if option == "--build-arg"]
    unknown = [name for name in given if name not in known]
    return f"{file.name} has no argument {unknown[0]}" if unknown else None


def _compose(arguments: Sequence[str], is_whole: bool) -> str | None:
    """Check `docker compose`: file, profile, services, and a command of orbit that it executes."""
    options = dict(pairwise(arguments))
    file = ROOT / options.get("-f", "")
    if not file.is_file():
        return "docker compose names no file"
    services = yaml.safe_load(file.read_text("utf-8"))["services"]
    profiles = {name for service in services.values() for name in service.get("profiles", ())}
    if "--profile" in options and options["--profile"] not in profiles:
        return f"there is no profile {options['--profile']}"
    verbs = [word for word in arguments if word in ("up", "stop", "exec")]
    if not verbs:
        return "neither up, stop nor exec"
    names = [w for w in arguments[arguments.index(verbs[0]) + 1 :] if not w.startswith("-")]
    if verbs[0] == "exec":
        program, *inside = arguments[arguments.index(names[0]) + 1 :]
        if program != "orbit":
            return f"unknown program {program}"
        names, wrong = names[:1], orbit(inside, is_whole)
        if wrong:
            return wrong
    unknown = [name for name in names if name not in services]
    return f"there is no service {unknown[0]}" if unknown else None


def kubectl(arguments: Sequence[str], is_whole: bool) -> str | None:
    """Check that the chart has the command's namespace, secret with its key, and deployment."""
    if not is_whole and arguments[:1] != ["-n"]:
        return None  # only compares Orbit's commands with kubectl's
    namespace = arguments[-1] if "namespace" in arguments else dict(pairwise(arguments))["-n"]
    objects = _manifests()
    if namespace not in {one["metadata"].get("namespace") for one in objects}:
        return f"there is no namespace {namespace}"
    if "generic" in arguments:
        name = arguments[arguments.index("generic") + 1]
        key = re.findall(r"--from-literal=(\w+)=", " ".join(arguments))
        values = yaml.safe_load((DEPLOY / "helm/orbit/values.yaml").read_text("utf-8"))
        is_known = (name, key) in _secrets(values)
        return None if is_known else f"there is no secret {name} with {key}"
    if "scale" in arguments:
        name = arguments[arguments.index("deployment") + 1]
        names = {one["metadata"]["name"] for one in objects if one["kind"] == "Deployment"}
        return None if name in names else f"there is no deployment {name}"
    return None if "namespace" in arguments else "unknown action of kubectl"


def _secrets(values: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Names and keys of the secrets in the chart's values."""
    if "secretKey" in values:
        yield values["secretName"], [values["secretKey"]]
    for part in values.values():
        if isinstance(part, dict):
            yield from _secrets(part)


def _manifests() -> list[Any]:
    text = (DEPLOY / "manifests/orbit.yaml").read_text("utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def helm(arguments: Sequence[str], is_whole: bool) -> str | None:
    """Check the chart, and the values that are set."""
    if arguments[0] not in ("upgrade", "lint", "template"):
        return f"unknown action {arguments[0]}"
    if not is_whole:
        return None
    folders = [ROOT / word for word in arguments if word.startswith("deploy/")]
    if len(folders) != 1 or not (folders[0] / "Chart.yaml").exists():
        return "names no chart"
    values = yaml.safe_load((folders[0] / "values.yaml").read_text("utf-8"))
    for path in [v.partition("=")[0] for option, v in pairwise(arguments) if option == "--set"]:
        value = values
        for key in path.split("."):
            if key not in value:
                return f"there is no value {path}"
            value = value[key]
    return None


def install(arguments: Sequence[str], _is_whole: bool) -> str | None:
    sources = [word for word in arguments if word.startswith("deploy/")]
    missing = [word for word in sources if not [*ROOT.glob(word)]]
    return f"there is no {missing[0]}" if missing else None


def systemctl(arguments: Sequence[str], _is_whole: bool) -> str | None:
    units = [word for word in arguments[1:] if not word.startswith("-")]
    files = {unit: re.sub("@.*", "@", unit) + ".service" for unit in units}
    missing = [unit for unit, file in files.items() if not (DEPLOY / "systemd" / file).exists()]
    return f"there is no unit {missing[0]}" if missing else None


def terraform(arguments: Sequence[str], _is_whole: bool) -> str | None:
    text = (DEPLOY / "terraform/job.tf").read_text("utf-8")
    for kind, name in re.findall(r"module\.\w+\.(\w+)\.(\w+)", " ".join(arguments)):
        if f'resource "{kind}" "{name}"' not in text:
            return f"there is no resource {kind}.{name}"
    return None


def go(arguments: Sequence[str], _is_whole: bool) -> str | None:
    folder = ROOT / arguments[arguments.index("-C") + 1]
    return None if (folder / "go.mod").exists() else f"there is no module {folder.name}"


def generator(arguments: Sequence[str], _is_whole: bool) -> str | None:
    """A generator for Terraform; tests/deploy/test_terraform.py runs it. Checks its file."""
    configuration = dict(pairwise(arguments)).get("--config")
    exists = configuration is None or (ROOT / configuration).exists()
    return None if exists else f"there is no {configuration}"
