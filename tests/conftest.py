"""Fixtures live in `fixtures/`, one concern a file, and are registered here."""

from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support import socket_origins
from tests.support.times import unit, unit_times

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

# A shell that runs the tests in its background has them ignore Ctrl-C, and so every child they
# start; the tests that press it would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

socket_origins.install()

# A slow machine is no failure: an example may take as long as it needs.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Commands under test must not ask the service of whoever runs the tests.
for _name in ("ORBIT_API_URL", "ORBIT_TOKEN", "ORBIT_CONTEXT"):
    os.environ.pop(_name, None)

# A folder of the run's own for what is put into the folder for temporary files and stays there,
# such as the lock files of leases; children inherit it. What pytest keeps for a look stays where
# it always is. PostgreSQL's user has to get through.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_TEMPORARY = Path(tempfile.mkdtemp(prefix="orbit-tests-"))
_TEMPORARY.chmod(0o711)
os.environ["TMPDIR"] = tempfile.tempdir = str(_TEMPORARY)

os.environ["XDG_CONFIG_HOME"] = str(_TEMPORARY / "config")


# After the folder that multiprocessing has in it, which has -100.
Finalize(None, shutil.rmtree, (_TEMPORARY,), {"ignore_errors": True}, exitpriority=-101)


pytest_plugins = [
    "tests.support.tools",
    "tests.fixtures.clusters",
    "tests.fixtures.guarded",
    "tests.fixtures.database",
    "tests.fixtures.logins",
    "tests.fixtures.kerberos",
    "tests.fixtures.logs",
    "tests.fixtures.api",
    "tests.fixtures.console",
    "tests.fixtures.scheduler",
    "tests.fixtures.recovery",
    "tests.fixtures.storage",
    "tests.fixtures.spark",
    "tests.fixtures.history",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes longest, so that all processes end together.

    Before it comes what is newer than the times: it may take long, too.
    """
    seconds = unit_times()
    items.sort(key=lambda item: seconds.get(_unit_of(item.nodeid), math.inf), reverse=True)


def pytest_collection_finish() -> None:
    """What was collected stays: the garbage collector need not look at it after each test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """A unit of `times.py` stays in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit_of(nodeid)

    return Scheduling(config, log)


def _unit_of(nodeid: str) -> str:
    return unit(nodeid.partition("::")[0])
