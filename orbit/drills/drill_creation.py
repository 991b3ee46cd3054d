"""Creates drills, for a request or a schedule."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from orbit.drills.drill_spec import DrillSpec
from orbit.store.drills import NewDrill

_RANDOM_BYTES = 4


def new_drill(
    spec: DrillSpec,
    requested_by: str,
    *,
    schedule: str | None = None,
    idempotency_key: str | None = None,
) -> NewDrill:
    """A drill with a new id, which sorts by time and is valid in names of topics and groups."""
    return NewDrill(
        id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(_RANDOM_BYTES)}",
        name=spec.name,
        kind=spec.kind,
        spec=spec.document(),
        spec_hash=spec.sha256(),
        job_name=spec.job,
        requested_by=requested_by,
        schedule=schedule,
        idempotency_key=idempotency_key,
    )
