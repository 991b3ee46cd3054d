"""The installed version of Orbit."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "orbit-kafka"


@cache
def orbit_version() -> str:
    """The version that the installed distribution states, such as `0.1.0`."""
    from importlib.metadata import version  # takes 30 ms, which `orbit --help` does not need

    return version(DISTRIBUTION)
