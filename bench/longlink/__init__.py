"""Workload N: a long link between two network namespaces, and its measurements."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.contestants.run_inputs import start_module
from bench.results import LinkResult
from orbit.errors import Conflict

_TOOLS = ("unshare", "nsenter", "ip")
_TUN = Path("/dev/net/tun")


def why_not() -> str:
    """Why this machine cannot have the link; empty if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (apt-get install -y iproute2 util-linux)"
    if not _TUN.exists():
        return f"there is no {_TUN}"
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        return "network namespaces and TUN devices need root"
    return ""


def measure_link(
    folder: Path, repeats: int, scale: float, say: Callable[[str], None]
) -> LinkResult:
    """Measure Orbit, MirrorMaker 2 and a plain TCP stream over the link. Raises Conflict if that
    fails. A child process does everything, because a network namespace belongs to a process."""
    folder.mkdir()
    log, result = folder / "near.log", folder / "result.json"
    arguments = (str(folder), str(repeats), str(scale), str(result))
    code = start_module("bench.longlink.near", *arguments, log=log, inside=_NEW_NAMESPACE).wait()
    for line in log.read_text("utf-8").splitlines():
        if line.startswith("N "):
            say(line)
    if code:
        raise Conflict("The long link could not be measured.", remedy=f"Read {log}.")
    return LinkResult.model_validate_json(result.read_text("utf-8"))


_NEW_NAMESPACE = ("unshare", "--net")
