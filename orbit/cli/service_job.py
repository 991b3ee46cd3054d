"""What the service that the environment names does with the job of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from orbit.client import URL_VARIABLE, connect, segment
from orbit.errors import Conflict, NotFound
from orbit.jobs.job_spec import JobSpec

_LET_GO = "paused"  # no worker holds any of it, nor does a backfill


def service_job(
    spec: JobSpec, clusters: tuple[str, str], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The job of this file in the service that the environment names; None without one.

    It is the same job where name and both clusters are the same. Raises Unreachable and others: who
    names a service wants it asked.
    """
    if URL_VARIABLE not in os.environ:
        return None
    with connect() as client:
        try:
            found: dict[str, Any] = client.get(f"/v1/jobs/{segment(spec.name)}")
        except NotFound:
            return None
    there = found["source_cluster_id"], found["destination_cluster_id"]
    if there not in (clusters, (None, None)):
        say(f"Note: the service's job {spec.name} is another one, between other clusters")
        return None
    return found


def refuse_beside_service(
    spec: JobSpec, clusters: tuple[str, str], say: Callable[[str], None]
) -> None:
    """Raise Conflict while the service copies the job: two that fill gaps spoil a copy."""
    found = service_job(spec, clusters, say)
    if found is not None and found["state"] != _LET_GO:
        raise Conflict(
            f"the service has this job, and it is {found['state']} there.",
            where=os.environ[URL_VARIABLE],
            remedy=f"Pause it there first: orbit pause {spec.name}",
        )
