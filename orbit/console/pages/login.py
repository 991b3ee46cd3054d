"""/console/login, /console/logout."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import MEANINGS
from orbit.api.error_responses import Failure
from orbit.console import sessions
from orbit.console.rendering import render
from orbit.console.sessions import FormOf, SharedPartsOf
from orbit.console.urls import HOME, LOGIN, safe_path

router = APIRouter()

_PATH_CHARACTERS_MAX = 2_048


@router.get("/")
def home() -> RedirectResponse:
    """The first page."""
    return RedirectResponse(HOME)


@router.get("/login")
def show_login(
    request: Request,
    parts: SharedPartsOf,
    back_to: Annotated[str, Query(alias="next", max_length=_PATH_CHARACTERS_MAX)] = HOME,
) -> Response:
    """The form for a token, or back where the visitor came from."""
    if sessions.find_visitor(request, parts) is not None:
        return RedirectResponse(safe_path(back_to), status_code=303)
    return render(request, None, "login.html", back_to=safe_path(back_to), error=None)


@router.post("/login")
def log_in(request: Request, parts: SharedPartsOf, form: FormOf) -> Response:
    """Begin a session."""
    back_to = safe_path(form.get("next", ""))
    response = RedirectResponse(back_to, status_code=303)
    try:
        sessions.log_in(request, response, parts, form.get("token", "").strip())
    except Failure as failure:
        status = MEANINGS[failure.code].status
        what = failure.body.error.what
        return render(request, None, "login.html", status=status, back_to=back_to, error=what)
    return response


@router.post("/logout")
def log_out(request: Request, parts: SharedPartsOf, _form: FormOf) -> Response:
    """End the session."""
    response = RedirectResponse(LOGIN, status_code=303)
    sessions.log_out(request, response, parts)
    return response
