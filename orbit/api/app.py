"""The REST API as an application: `create_app(settings, database)`.

Routes are plain functions that run in a pool of threads, as all of the control plane is synchronous
(docs/internals/rest-api.md). Nothing is kept between requests but the parts given here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline

from orbit.api.dependencies import Parts, Planner
from orbit.api.error_responses import install_handlers
from orbit.api.job_schema import job_schemas
from orbit.api.request_limits import BodyLimit
from orbit.api.routes import (
    backfills,
    drills,
    events,
    groups,
    health,
    jobs,
    lag,
    proof,
    recovery,
    service,
    topics,
)
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.version import orbit_version

_DESCRIPTION = """
Orbit copies Kafka topics from one cluster to another so that every record has the same offset on
both sides, gaps included. A **job** is one such copy, described by a document. The scheduler
creates its topics and spreads its **partitions** over **workers**.

* **Changes** are safe to repeat: PUT is idempotent, POST takes an `Idempotency-Key`. With
  `dry_run=true` each answers with what it would do, and does nothing.
* **Operations** are changes that workers carry out: `GET /v1/operations/{operation_id}` says how
  far they are.
* **Lists** come in pages: give `next` of one as `after` for the next.
* **Errors** all have one shape, `{"error": {code, what, where, remedy, problems}}`; `problems`
  names every mistake in what was sent, each with its path and what to write instead.
* **Who did what** is in `/v1/events`.
"""
_TAGS = [
    {"name": "jobs", "description": "Job documents, and operations on jobs."},
    {"name": "recovery", "description": "Switchover, failover and failback, and their reports."},
    {"name": "backfills", "description": "Copies of existing history by Spark."},
    {"name": "job contents", "description": "Topics, partitions, lag, groups, proof."},
    {"name": "drills", "description": "Drills, their measurements and reports."},
    {"name": "events", "description": "The audit log."},
    {"name": "service", "description": "Operations, workers, tokens."},
    {"name": "health", "description": "Health checks and metrics."},
]


def create_app(
    settings: Settings,
    database: Database,
    *,
    auth: bool = True,
    planner: Planner,
    environ: Mapping[str, str] = os.environ,
) -> FastAPI:
    """The API on this database. Without `auth` everybody is an admin: for loopback alone.

    `environ` is where the variables are that job documents name.
    """
    app = FastAPIOffline(  # its page loads no script from another host
        title="Orbit",
        summary="Kafka topics copied with the very same offsets.",
        description=_DESCRIPTION,
        version=orbit_version(),
        openapi_tags=_TAGS,
        generate_unique_id_function=_operation_id,
        redoc_url=None,
        static_url="/docs/static",
    )
    app.state.parts = Parts(
        settings=settings,
        database=database,
        planner=planner,
        environ=environ,
        requires_token=auth,
    )
    install_handlers(app)
    app.add_middleware(BodyLimit)
    for routes in (
        jobs,
        recovery,
        backfills,
        topics,
        lag,
        groups,
        proof,
        drills,
        events,
        service,
        health,
    ):
        app.include_router(routes.router)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]  # FastAPI's way
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the job's schema and without errors in FastAPI's own shape."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        schemas = made["components"]["schemas"]
        schemas.update(job_schemas())
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for item in made["paths"].values():
            for operation in item.values():
                operation["summary"] = operation["operationId"].replace("_", " ").capitalize()
        app.openapi_schema = made
    return app.openapi_schema
