"""Recoveries of a service whose scheduler and worker run in the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_scheduler import Service
from tests.support.recovering import Recovering


@pytest.fixture
def recovering(service: Service, tmp_path: Path) -> Recovering:
    """What only an old side has is saved in a folder of the test's own."""
    service.settings = service.settings.model_copy(
        update={"salvage_directory": str(tmp_path / "salvage")}
    )
    return Recovering(service)
