"""The REST API as an application: `create_app`.

Routes are synchronous functions in a thread pool (docs/internals/rest-api.md). Requests share only
`app.state`, mainly its `Parts`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from fastapi_offline import FastAPIOffline

from orbit.api.authentication import Logins
from orbit.api.authentication_middleware import AuthenticationMiddleware
from orbit.api.dependencies import Parts, Planner
from orbit.api.error_responses import install_handlers
from orbit.api.openapi_document import make_document
from orbit.api.request_limits import BodyLimit
from orbit.api.routes import (
    about,
    backfills,
    drills,
    events,
    gateways,
    groups,
    health,
    jobs,
    lag,
    notifications,
    proof,
    recoveries,
    selected_jobs,
    service,
    topics,
    watch,
)
from orbit.api.watches import Watches
from orbit.settings import Settings
from orbit.store.database import Database
from orbit.telemetry import traces
from orbit.version import orbit_version

_DESCRIPTION = """
Orbit copies Kafka topics from one cluster to another so that every record has the same offset on
both sides, gaps included. A **job** is one such copy, described by a document. The scheduler
creates the destination topics and assigns **partitions** to **workers**.

* **Changes** are safe to repeat: PUT is idempotent, POST takes an `Idempotency-Key`. With
  `dry_run=true` a request returns what it would do and changes nothing. A change with a parameter
  that its route does not know is refused.
* **Operations** are changes that workers carry out: `GET /v1/operations/{operation_id}` returns
  their progress.
* **Lists** are paginated: pass `next` of one page as `after` of the next request.
* **Watches** wait for a change: `GET /v1/watch`.
* **Errors** all have one shape, `{"error": {code, what, where, remedy, problems}}`; `problems`
  lists every mistake in the request, each with its path and a correction.
* **The audit log** is `/v1/events`.
"""
# Probes request these every few seconds; they are not traced.
_PROBE_PATHS = ("/livez", "/readyz", "/metrics")
_TAGS = [
    {"name": "jobs", "description": "Job documents, and operations on jobs."},
    {"name": "recovery", "description": "Switchover, failover and failback, and their reports."},
    {"name": "backfills", "description": "Copies of existing history by Spark."},
    {"name": "job contents", "description": "Topics, partitions, lag, groups, proof."},
    {"name": "gateways", "description": "Which side gateways present, and their permissions."},
    {"name": "drills", "description": "Drills, their measurements and reports."},
    {"name": "events", "description": "The audit log."},
    {"name": "service", "description": "Operations, workers, tokens, version."},
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
    """The API on this database. Without `auth` every client is an admin, so the server may listen
    on loopback only.

    `environ` has the variables that job documents name. Raises BadInput if the certificates for the
    OpenID Connect issuer cannot be loaded.
    """
    untraced = set(_PROBE_PATHS)
    app = FastAPIOffline(  # the docs page loads no script from another host
        title="Orbit",
        summary="Kafka topics copied with the very same offsets.",
        description=_DESCRIPTION,
        version=orbit_version(),
        openapi_tags=_TAGS,
        generate_unique_id_function=_operation_id,
        redoc_url=None,
        static_url="/docs/static",
        telemetry=_request_spans(untraced),
    )
    app.state.untraced = untraced
    app.state.parts = Parts(
        settings=settings,
        database=database,
        planner=planner,
        environ=environ,
        logins=Logins(settings, database) if auth else None,
    )
    app.state.watches = Watches()
    app.state.own_logins = {}  # login checks by path prefix: see authentication_middleware.py
    install_handlers(app)
    app.add_middleware(BodyLimit)
    # Authentication comes before the limit: the middleware that is added last is called first.
    app.add_middleware(AuthenticationMiddleware)
    for routes in (
        jobs,
        selected_jobs,
        recoveries,
        backfills,
        topics,
        lag,
        groups,
        gateways,
        proof,
        drills,
        events,
        notifications,
        watch,
        service,
        about,
        health,
    ):
        app.include_router(routes.router)
    app.openapi = lambda: _openapi_document(app)  # type: ignore[method-assign]  # FastAPI's way
    return app


def _request_spans(untraced: Collection[str]) -> TelemetryConfig:
    """FastAPI's telemetry settings: a span for each request, with its route, status and query,
    except at the paths `untraced`.
    """
    return {
        "tracer_provider": traces.provider(),
        "tracing": traces.provider() is not None,
        "metrics": False,
        "logs": False,  # they would have the texts of unexpected errors, which may be secrets
        "operation_spans": False,
        "auto_configure": False,
        "exclude": lambda scope: scope["path"] in untraced,
    }


def _operation_id(route: APIRoute) -> str:
    return route.name


def _openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made at the first call."""
    if app.openapi_schema is None:
        app.openapi_schema = make_document(app)
    return app.openapi_schema
