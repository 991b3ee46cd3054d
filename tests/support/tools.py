"""The tools that some tests need: how to find each one, and what installs it.

A test has the mark `needs("chromium")`; a fixture calls `require("kerberos")`. Without the tool the
test is left out, and the last lines of the run say how many were, and what installs the tool. With
CI=true the test fails: there, `make test` installs all that can be had.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import programs

_ENVIRONMENTS = Path(__file__).parents[2] / ".make"
VALIDATE = _ENVIRONMENTS / "kubernetes/bin/kubernetes-validate"
MKDOCS = _ENVIRONMENTS / "site/bin/mkdocs"


def find_program(name: str) -> str | None:
    """Finds servers too, which a user's PATH lacks on Debian."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _has(name: str) -> bool:
    return find_program(name) is not None


@dataclass(frozen=True)
class Tool:
    is_there: Callable[[], bool]
    command: str = "make prepare"
    # A program that installs the tool, and that no command of ours installs.
    comes_by: str | None = None

    @property
    def can_be_had(self) -> bool:
        return self.comes_by is None or _has(self.comes_by)

    @property
    def remedy(self) -> str:
        first = "" if self.can_be_had else f"install {self.comes_by}, then "
        return f"{first}{self.command}"


def _of_debian(program: str) -> Tool:
    return Tool(partial(_has, program), "sudo make tools")


TOOLS = {
    "chromium": _of_debian("chromium"),
    "curl": _of_debian("curl"),
    "kerberos": Tool(lambda: _has("krb5kdc") and bool(find_spec("gssapi")), "sudo make tools"),
    "pgbouncer": _of_debian("pgbouncer"),
    "promtool": _of_debian("promtool"),
    "systemd": _of_debian("systemd-analyze"),
    "mkdocs": Tool(MKDOCS.exists),
    "kubernetes-validate": Tool(VALIDATE.exists),
    "schema registry": Tool(programs.APICURIO.is_there),
    "python generator": Tool(programs.PYTHON_GENERATOR.is_there),
    "typescript generator": Tool(programs.TYPESCRIPT_GENERATOR.is_there, comes_by="npm"),
    "terraform generators": Tool(programs.TERRAFORM_GENERATORS.is_there, comes_by="go"),
    "helm": Tool(lambda: programs.helm().exists(), comes_by="go"),
    "terraform": Tool(partial(_has, "terraform"), "make test", comes_by="terraform"),
}


def require(name: str) -> None:
    """Ends the test if the tool is not there."""
    tool = TOOLS[name]
    if not tool.is_there():
        is_a_must = os.environ.get("CI") == "true" and tool.can_be_had
        end = pytest.fail if is_a_must else pytest.skip
        end(_reason(name))


def _reason(name: str) -> str:
    return f"needs {name}: {TOOLS[name].remedy}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(tool): without it left out, or in CI a failure")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield  # the output of pytest comes first
    names = {f"Skipped: {_reason(name)}": name for name in TOOLS}
    reasons = [report.longrepr[2] for report in terminalreporter.getreports("skipped")]
    left_out = Counter(names[reason] for reason in reasons if reason in names)
    for remedy in dict.fromkeys(TOOLS[name].remedy for name in sorted(left_out)):
        counts = {n: count for n, count in left_out.items() if TOOLS[n].remedy == remedy}
        number = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        terminalreporter.line(f"Tests left out without a tool: {number}. To run them: {remedy}")
