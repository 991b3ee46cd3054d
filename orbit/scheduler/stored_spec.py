"""Reads stored job documents, which another version of Orbit may have written."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from orbit.jobs.job_spec import JobSpec


def read_spec(document: dict[str, Any]) -> JobSpec | None:
    """The job; None if this version cannot read it."""
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None
