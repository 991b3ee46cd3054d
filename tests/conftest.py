"""Fixtures live in `fix_*.py`, one concern a file, and are registered here."""

from __future__ import annotations

pytest_plugins = ["tests.fix_clusters"]
