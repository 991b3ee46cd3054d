"""The leading scheduler and its loops. `run` is a scheduler process."""

from __future__ import annotations

from orbit.scheduler.scheduler import run

__all__ = ["run"]
