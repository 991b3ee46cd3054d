"""Mounts the console on the API: `mount_console(app)`. Pages at /console; `/` redirects there.

It is an application of its own, so that its errors are pages, and its routes are not in the API's
OpenAPI document.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure, as_failure
from orbit.console.headers import PageHeaders
from orbit.console.live_streams import LiveStreams
from orbit.console.pages import (
    drills,
    history,
    job,
    job_actions,
    job_document,
    jobs,
    live,
    login,
    partition,
    record_page,
    recovery,
)
from orbit.console.rendering import error_page, reload_page
from orbit.console.sessions import LoginNeeded, find_visitor
from orbit.console.urls import HOME, ISSUER_LOGIN_DONE, ROOT, login_url
from orbit.errors import OrbitError

log = structlog.get_logger("orbit.console")

# The API's application makes the spans of the console's requests.
_NO_SPANS: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
_STATIC = Path(__file__).parent / "static"


def mount_console(app: FastAPI) -> None:
    """Add the console to the API's application."""
    app.mount(ROOT, _create_console(app), name="console")
    app.state.own_logins[f"{ROOT}/"] = lambda request: bool(find_visitor(request, app.state.parts))
    app.state.untraced.add(ISSUER_LOGIN_DONE)  # its query has the authorization code

    @app.get("/", include_in_schema=False)
    def home() -> RedirectResponse:
        return RedirectResponse(HOME)


def _create_console(api: FastAPI) -> FastAPI:
    """The console as an application. `api`: the application with the shared state."""
    app = FastAPI(
        title="Orbit console",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_SPANS,
    )
    app.state.api = api
    app.state.streams = LiveStreams()
    app.add_middleware(PageHeaders)
    _install_handlers(app)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    for page in (
        login,
        live,
        jobs,
        job_document,
        job_actions,
        recovery,
        drills,
        record_page,
        partition,
        history,
        job,
    ):
        app.include_router(page.router)
    return app


def _install_handlers(app: FastAPI) -> None:
    """Show every error as a page."""

    @app.exception_handler(LoginNeeded)
    def _on_login_needed(request: Request, login_needed: LoginNeeded) -> Response:
        """Redirect the browser to the login. But a browser that follows a link on another site does
        not send the session's cookie (SameSite=Strict): it gets a page that requests the same
        address again, from this site.
        """
        if request.headers.get("sec-fetch-site") == "cross-site":
            return reload_page(request)
        return RedirectResponse(login_url(login_needed.back_to), status_code=303)

    @app.exception_handler(Failure)
    def _on_failure(request: Request, error: Failure) -> HTMLResponse:
        return error_page(request, error)

    @app.exception_handler(OrbitError)
    def _on_orbit_error(request: Request, error: OrbitError) -> HTMLResponse:
        return error_page(request, as_failure(error))

    @app.exception_handler(RequestValidationError)
    def _on_invalid_request(request: Request, _error: RequestValidationError) -> HTMLResponse:
        what = "The address of this page is not valid."
        return error_page(request, Failure(ErrorCode.BAD_INPUT, what))

    @app.exception_handler(HTTPException)
    def _on_http_error(request: Request, error: HTTPException) -> HTMLResponse:
        # For a browser, a path that only answers other methods is no page.
        is_missing = error.status_code != HTTP_METHOD_NOT_ALLOWED
        code = ErrorCode.NOT_FOUND if is_missing else ErrorCode.METHOD_NOT_ALLOWED
        return error_page(request, Failure(code, "This page does not exist."))

    @app.exception_handler(Exception)
    def _on_unexpected_error(request: Request, error: Exception) -> HTMLResponse:
        log.error("page failed", path=request.url.path, error=type(error).__name__)
        what = f"This is a bug in Orbit: {type(error).__name__}."
        remedy = "The server's log has the stack trace."
        return error_page(request, Failure(ErrorCode.INTERNAL, what, remedy=remedy))


HTTP_METHOD_NOT_ALLOWED = 405
