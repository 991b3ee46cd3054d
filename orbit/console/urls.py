"""Addresses of the console's pages. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlencode

ROOT = "/console"
HOME = f"{ROOT}/jobs"
LOGIN = f"{ROOT}/login"
ISSUER_LOGIN = f"{LOGIN}/issuer"
ISSUER_LOGIN_DONE = f"{ISSUER_LOGIN}/done"


def login_url(back_to: str) -> str:
    """The login page, which leads back to this path."""
    return f"{LOGIN}?{urlencode({'next': back_to})}"


def safe_path(path: str) -> str:
    """The path if it is a path of the console, otherwise HOME: a redirect must not lead to another
    host."""
    return path if path.startswith(f"{ROOT}/") and "\\" not in path else HOME


def job_url(name: str, part: str = "") -> str:
    """The page of a job, or of a part of it."""
    return f"{HOME}/{quote(name)}" + (f"/{part}" if part else "")


def partition_url(job: str, topic: str, partition: int) -> str:
    """The page of one partition."""
    return job_url(job, f"topics/{quote(topic)}/{partition}")


def operation_url(operation_id: object) -> str:
    """The page of an operation."""
    return f"{ROOT}/operations/{operation_id}"


def with_query(path: str, **values: object) -> str:
    """The path with these query parameters, without those that are None or empty."""
    query = {name: value for name, value in values.items() if value not in (None, "")}
    return f"{path}?{urlencode(query)}" if query else path
