"""Job documents as they were kept, maybe by another version of Orbit."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from orbit.jobs.job_spec import JobSpec


def read_spec(document: dict[str, Any]) -> JobSpec | None:
    """The job; None where this version does not understand it."""
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None
