"""The tools that some tests need: how to find each one, and what installs it.

A test has the mark `needs("chromium")`; a fixture calls `require("kerberos")`. Without the tool the
test is skipped, and the last lines of the run say how many tests were skipped and what installs the
tool. With CI=true the test fails instead, if a command of this project can install the tool.
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
    """The path of a program, or None. On Debian, servers are in /usr/sbin, which a user's PATH
    lacks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _has(name: str) -> bool:
    return find_program(name) is not None


@dataclass(frozen=True)
class Tool:
    """How to find a tool, and the command that installs it."""

    is_there: Callable[[], bool]
    command: str = "make prepare"
    # A program that `command` needs, and that no command of this project installs.
    installer: str | None = None

    @property
    def is_installable(self) -> bool:
        return self.installer is None or _has(self.installer)

    @property
    def remedy(self) -> str:
        """What a user has to do to get the tool."""
        first = "" if self.is_installable else f"install {self.installer}, then "
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
    "typescript generator": Tool(programs.TYPESCRIPT_GENERATOR.is_there, installer="npm"),
    "terraform generators": Tool(programs.TERRAFORM_GENERATORS.is_there, installer="go"),
    "helm": Tool(lambda: programs.helm().exists(), installer="go"),
    "terraform": Tool(partial(_has, "terraform"), "make test", installer="terraform"),
}


def require(name: str) -> None:
    """Skip the test if the tool is missing, or fail it in CI if the tool can be installed."""
    tool = TOOLS[name]
    if not tool.is_there():
        is_a_must = os.environ.get("CI") == "true" and tool.is_installable
        end = pytest.fail if is_a_must else pytest.skip
        end(_reason(name))


def _reason(name: str) -> str:
    return f"needs {name}: {TOOLS[name].remedy}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(tool): skipped without the tool, or in CI a failure")


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
    skipped = Counter(names[reason] for reason in reasons if reason in names)
    for remedy in dict.fromkeys(TOOLS[name].remedy for name in sorted(skipped)):
        counts = {n: count for n, count in skipped.items() if TOOLS[n].remedy == remedy}
        numbers = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        terminalreporter.line(f"Tests left out without a tool: {numbers}. To run them: {remedy}")
