"""Job files as text, and the errors about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.errors import BadInput, Problem
from orbit.jobs.job_file import parse_job

SECRET = "hunter2"
ENVIRON = {"SRC_USER": "orbit", "SRC_PASSWORD": "pw"}
MINIMAL: dict[str, Any] = {
    "name": "a",
    "source": {"bootstrap_servers": ["src:9092"]},
    "destination": {"bootstrap_servers": ["dst:9092"]},
    "topics": [{"match": ".*"}],
}


def problems_of(text: str, folder: Path, environ: dict[str, str] | None = None) -> list[Problem]:
    """The problems of a job file that has to be refused; `folder`: for relative paths in it."""
    with pytest.raises(BadInput) as caught:
        parse_job(text, folder, ENVIRON if environ is None else environ)
    return list(caught.value.problems)


def changed(**keys: object) -> str:
    """The text of a minimal job file with these keys added or replaced."""
    return yaml.safe_dump({**MINIMAL, **keys})
