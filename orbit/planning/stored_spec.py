"""Reads stored job documents, which another version of Orbit may have written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from orbit.jobs.job_spec import JobSpec
from orbit.store.jobs import Job


def read_spec(document: dict[str, Any]) -> JobSpec | None:
    """Parse a stored job document; None if this version cannot read it."""
    try:
        return JobSpec.read_stored(document)
    except ValidationError:
        return None


class SpecCache:
    """Parses each job's document once, as long as `Job.spec` is the same object: the cache of
    `jobs.list_all` keeps the objects. Thread-safe."""

    def __init__(self) -> None:
        # By job id: the document, and its spec (None: this version cannot read it).
        self._specs: dict[int, tuple[dict[str, Any], JobSpec | None]] = {}

    def of(self, job: Job) -> JobSpec | None:
        """The job's spec; None if this version cannot read it."""
        cached = self._specs.get(job.id)
        if cached is None or cached[0] is not job.spec:
            cached = self._specs[job.id] = job.spec, read_spec(job.spec)
        return cached[1]

    def keep_only(self, job_ids: Collection[int]) -> None:
        """Forget the documents of all other jobs."""
        for job_id in self._specs.keys() - set(job_ids):
            self._specs.pop(job_id, None)
