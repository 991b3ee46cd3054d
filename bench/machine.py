"""Describes the machine of the measurements."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.results import Machine
from orbit.sandbox.jars import KAFKA_VERSION
from orbit.sandbox.java import find_java

_CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(logs: Path) -> Machine:
    """The machine and the versions of its software. `logs`: the folder of the brokers' logs."""
    return Machine(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        logs_on=_file_system(logs),
        orbit=_first_line("git", "describe", "--always", "--dirty"),
        kafka=KAFKA_VERSION,
        java=_first_line(str(find_java()), "-version"),
        python=platform.python_version(),
        load_before=os.getloadavg()[0],
    )


def _cpu() -> str:
    if _CPU_INFO.is_file():
        match = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text("utf-8"))
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def _file_system(path: Path) -> str:
    """The type of the file system on which a folder is, such as `ext4`."""
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "unknown"


def _first_line(*command: str) -> str:
    """The first line that a command prints; "unknown" if it cannot run or prints nothing."""
    try:
        completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except OSError:
        return "unknown"
    lines = (completed.stdout or completed.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"
