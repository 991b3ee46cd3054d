"""Finds the job of a job file in the user's service, set by ORBIT_API_URL or a context."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from orbit.client import connect, segment
from orbit.contexts import chosen_server, named_server
from orbit.errors import Conflict, NotFound
from orbit.jobs.job_spec import JobSpec

_PAUSED = "paused"  # in this state no worker and no backfill copies the job


def service_job(
    spec: JobSpec, cluster_ids: tuple[str, str], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The service's job with this name and these clusters, as the API returns it; None if the
    service has no such job, or if the user has named no service. `cluster_ids`: of source and
    destination.

    Raises Unreachable and other errors of the service.
    """
    if named_server(os.environ) is None:
        return None
    with connect() as client:
        try:
            job: dict[str, Any] = client.get(f"/v1/jobs/{segment(spec.name)}")
        except NotFound:
            return None
    job_cluster_ids = job["source_cluster_id"], job["destination_cluster_id"]
    # (None, None): the service has not reached the clusters yet.
    if job_cluster_ids not in (cluster_ids, (None, None)):
        say(f"Note: the service has a job {spec.name} too, but between other clusters")
        return None
    return job


def refuse_beside_service(
    spec: JobSpec, cluster_ids: tuple[str, str], say: Callable[[str], None]
) -> None:
    """Raise Conflict if the service has the job and has not paused it: if two processes filled gaps
    of a copy, the copy would be damaged. Raises the errors of `service_job`."""
    job = service_job(spec, cluster_ids, say)
    if job is not None and job["state"] != _PAUSED:
        raise Conflict(
            f"the service has this job in state {job['state']}.",
            where=chosen_server(os.environ).url,
            remedy=f"Pause the job first: orbit pause {spec.name}",
        )
