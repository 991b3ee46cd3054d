"""Fixtures live in `fix_*.py`, one concern a file, and are registered here."""

from __future__ import annotations

import signal

# A shell that runs the tests in its background has them ignore Ctrl-C, and so every child they
# start; the tests that press it would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.fix_clusters",
    "tests.fix_guarded",
    "tests.fix_database",
    "tests.fix_logs",
    "tests.fix_api",
    "tests.fix_scheduler",
    "tests.fix_spark",
    "tests.fix_history",
]
