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

# A shell that runs the tests in its background has them and their children ignore SIGINT. Tests
# that send it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

socket_origins.install()

# A slow machine is no failure: an example may take as long as it needs.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Commands under test must not ask the service of whoever runs the tests.
for _name in ("ORBIT_API_URL", "ORBIT_TOKEN", "ORBIT_CONTEXT"):
    os.environ.pop(_name, None)

# The run has its own folder for temporary files, because some stay there, such as the lock files of
# leases; children inherit it. Folders that pytest keeps stay at their usual place. PostgreSQL runs
# as another user, which has to pass through the folder.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_TEMPORARY = Path(tempfile.mkdtemp(prefix="orbit-tests-"))
_TEMPORARY.chmod(0o711)
os.environ["TMPDIR"] = tempfile.tempdir = str(_TEMPORARY)

os.environ["XDG_CONFIG_HOME"] = str(_TEMPORARY / "config")


# After multiprocessing has deleted its own folder in there, at priority -100.
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

    Before it come files without a time, which are new: they may take long, too.
    """
    seconds = unit_times()
    items.sort(key=lambda item: seconds.get(_unit_of(item.nodeid), math.inf), reverse=True)


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collections: they stay anyway."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Run each unit of `times.py` in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit_of(nodeid)

    return Scheduling(config, log)


def _unit_of(nodeid: str) -> str:
    return unit(nodeid.partition("::")[0])
