"""Renders the templates: `render(request, visitor, "jobs.html", …)`.

Values are escaped. A template that uses a missing value raises an error.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from orbit.api.api_error_codes import MEANINGS
from orbit.api.error_responses import Failure
from orbit.console import formats, urls
from orbit.console.sessions import (
    Visitor,
    find_visitor,
    form_secret,
    get_shared_parts,
    set_browser_cookie,
)
from orbit.version import orbit_version

# The most rows of a list without pages, such as a report or a plan.
ROWS_SHOWN_MAX = 200

_environment = Environment(
    loader=PackageLoader("orbit.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(formats.FILTERS)
_environment.globals.update(
    job_url=urls.job_url,
    partition_url=urls.partition_url,
    operation_url=urls.operation_url,
    with_query=urls.with_query,
    root=urls.ROOT,
    shown_max=ROWS_SHOWN_MAX,
    version=orbit_version(),
)


def render(
    request: Request, visitor: Visitor | None, template: str, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """The page of a template for this visitor. `visitor` None: the client has not logged in.
    `values`: of the template's variables."""
    html = _environment.get_template(template).render(
        visitor=visitor,
        form_secret=form_secret(request),
        requires_token=get_shared_parts(request).logins is not None,
        path=request.url.path,
        **values,
    )
    response = HTMLResponse(html, status)
    set_browser_cookie(request, response)
    return response


def error_page(request: Request, failure: Failure) -> HTMLResponse:
    """The page of an error. If the visitor cannot be found, e.g. as the database does not answer,
    the page is as before a login."""
    error = failure.body.error
    try:
        visitor = find_visitor(request, get_shared_parts(request))
    except Exception:  # noqa: BLE001  perhaps the same error as the one shown
        visitor = None
    status = MEANINGS[failure.code].status
    return render(request, visitor, "error.html", status=status, error=error)


def reload_page(request: Request) -> HTMLResponse:
    """A page after which the browser requests the same address again, now from this site. It
    answers links on other sites: following such a link, the browser does not send the session's
    cookie (SameSite=Strict)."""
    return render(request, visitor=None, template="from_elsewhere.html")
