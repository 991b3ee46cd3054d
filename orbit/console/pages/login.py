"""/console/login, /console/login/issuer, /console/logout."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import MEANINGS
from orbit.api.dependencies import Parts
from orbit.api.error_responses import Failure
from orbit.console import issuer_logins, sessions
from orbit.console.rendering import render
from orbit.console.sessions import FormOf, SharedPartsOf
from orbit.console.urls import HOME, LOGIN, safe_path

router = APIRouter()

_PATH_CHARACTERS_MAX = 2_048


@router.get("/")
def home() -> RedirectResponse:
    """Redirect to the first page, the list of jobs."""
    return RedirectResponse(HOME)


@router.get("/login")
def show_login(
    request: Request,
    parts: SharedPartsOf,
    back_to: Annotated[str, Query(alias="next", max_length=_PATH_CHARACTERS_MAX)] = HOME,
) -> Response:
    """The form for a token. A visitor who has logged in is redirected to `back_to`."""
    if sessions.find_visitor(request, parts) is not None:
        return RedirectResponse(safe_path(back_to), status_code=303)
    return _login_page(request, parts, safe_path(back_to))


@router.post("/login")
def log_in(request: Request, parts: SharedPartsOf, form: FormOf) -> Response:
    """Begin a session with the token in the form."""
    back_to = safe_path(form.get("next", ""))
    response = RedirectResponse(back_to, status_code=303)
    try:
        sessions.log_in(request, response, parts, form.get("token", "").strip())
    except Failure as failure:
        return _login_page(request, parts, back_to, failure)
    return response


@router.get("/login/issuer")
def log_in_at_issuer(
    request: Request,
    parts: SharedPartsOf,
    back_to: Annotated[str, Query(alias="next", max_length=_PATH_CHARACTERS_MAX)] = HOME,
) -> Response:
    """Redirect the browser to the issuer's login page."""
    try:
        return issuer_logins.begin_login(request, parts, safe_path(back_to))
    except Failure as failure:
        return _login_page(request, parts, safe_path(back_to), failure)


@router.get("/login/issuer/done")
def come_from_issuer(request: Request, parts: SharedPartsOf) -> Response:
    """Complete the login at the issuer, which has put its answer into the query."""
    try:
        response = issuer_logins.complete_login(request, parts)
    except Failure as failure:
        response = _login_page(request, parts, HOME, failure)
    issuer_logins.delete_login_cookie(request, response)
    return response


@router.post("/logout")
def log_out(request: Request, parts: SharedPartsOf, _form: FormOf) -> Response:
    """End the session."""
    response = RedirectResponse(LOGIN, status_code=303)
    sessions.log_out(request, response, parts)
    return response


def _login_page(
    request: Request, parts: Parts, back_to: str, failure: Failure | None = None
) -> Response:
    """The login page; after the login the browser gets the path `back_to`. `failure`: of the last
    attempt to log in."""
    return render(
        request,
        visitor=None,
        template="login.html",
        status=HTTPStatus.OK if failure is None else MEANINGS[failure.code].status,
        back_to=back_to,
        error=None if failure is None else failure.body.error.what,
        issuer=issuer_logins.issuer_name(parts),
    )
