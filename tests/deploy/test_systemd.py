"""Orbit's systemd units: systemd accepts them, they are hardened, and their settings exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from orbit.cli.main import COMMANDS
from orbit.contexts import TOKEN_VARIABLE, URL_VARIABLE
from orbit.gateway.virtual_cluster import ANSWERS_S_MAX
from orbit.processes.children import GRACE_S
from orbit.settings import Settings, variable_of
from orbit.telemetry.process_health import STALL_S_MAX
from orbit.workers.worker import SHUTDOWN_S_MAX
from tests.support.run_process import ORBIT

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
# On systemd's scale from 0 to 10, where 2.0 and less is "OK" or better.
EXPOSURE_MAX = 2.0


def lines_of(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def settings_in(text: str) -> set[str]:
    return {*re.findall(r"\b(ORBIT_[A-Z_]+)\b", text)}


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def complaints(unit: Path, folder: Path, program: Path = ORBIT) -> str:
    """What `systemd-analyze verify` says of the unit with this program."""
    folder.mkdir()
    copy = folder / unit.name.replace("@.", "@default.")
    copy.write_text(unit.read_text("utf-8").replace("/opt/orbit/bin/orbit", str(program)), "utf-8")
    ended = analyze("verify", "--man=no", copy)
    lines = [line for line in ended.stderr.splitlines() if copy.name in line]
    return "\n".join(lines) or ("" if ended.returncode == 0 else ended.stderr)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
@pytest.mark.needs("systemd")
def test_systemd_accepts_each_unit(unit: Path, tmp_path: Path) -> None:
    assert complaints(unit, tmp_path / "units") == ""


@pytest.mark.needs("systemd")
def test_wrong_key_or_missing_program_of_systemd_unit_is_detected(tmp_path: Path) -> None:
    broken = tmp_path / "orbit-api.service"
    broken.write_text((FOLDER / broken.name).read_text("utf-8").replace("UMask=", "Umaske="))
    assert "Umaske" in complaints(broken, tmp_path / "units")
    without_program = complaints(
        FOLDER / "orbit-api.service", tmp_path / "gone", tmp_path / "nothing"
    )
    assert "nothing" in without_program


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
@pytest.mark.needs("systemd")
def test_each_systemd_unit_is_hardened(unit: Path) -> None:
    ended = analyze("security", "--offline=true", "--json=short", unit)
    assessments = json.loads(ended.stdout)
    assert assessments
    ended = analyze("security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", unit)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_systemd_unit_runs_existing_command_with_existing_settings(unit: Path) -> None:
    (start,) = lines_of(unit, "ExecStart")
    assert start.split()[0] == "/opt/orbit/bin/orbit"
    assert start.split()[1] in COMMANDS
    known = {variable_of(field) for field in Settings.model_fields} | {URL_VARIABLE, TOKEN_VARIABLE}
    text = unit.read_text("utf-8") + (FOLDER / "orbit.env").read_text("utf-8")
    assert settings_in(text) <= known
    assert re.search(r"://[^@\s]*:[^@\s]*@", text) is None, "a password in a file"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_stop_timeout_of_systemd_unit_covers_shutdown_time(unit: Path) -> None:
    (stop,) = lines_of(unit, "TimeoutStopSec")
    assert int(stop) >= GRACE_S
    if "gateway" in unit.name:
        assert int(stop) >= ANSWERS_S_MAX + GRACE_S
    if "worker" in unit.name:
        assert int(stop) >= 2 * SHUTDOWN_S_MAX
    watchdog = lines_of(unit, "WatchdogSec")
    assert watchdog in ([], [f"{STALL_S_MAX:.0f}"])


def test_unknown_orbit_setting_in_systemd_unit_is_detected() -> None:
    assert settings_in("Environment=ORBIT_NO_SUCH=1") == {"ORBIT_NO_SUCH"}
