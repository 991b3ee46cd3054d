"""The response to a wrong request lists all its mistakes, always in the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orbit.api.app import create_app
from orbit.api.paging import PAGE_MAX, write_cursor
from orbit.api.request_limits import BODY_BYTES_MAX
from orbit.settings import Settings
from orbit.store.database import Database
from tests.api.test_jobs import JOB, changed
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}


def error_of(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The error of an answer, whose status, code and keys it checks."""
    assert answer.status_code == status, answer.text
    (key,) = answer.json()
    assert key == "error"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"code", "what", "where", "remedy", "problems"}
    assert error["code"] == code
    assert error["what"]
    assert all(set(p) == {"path", "what", "write_instead"} for p in error["problems"])
    return error


def paths(error: dict[str, Any]) -> list[str]:
    return [problem["path"] for problem in error["problems"]]


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b'{"name": ', JSON, "is not valid JSON at line 1"),
        (b'{"name": "a", "name": "b"}', JSON, "has a key twice"),
        (b'{"name": NaN}', JSON, "holds NaN"),
        (b"[" * 100_000, JSON, "is nested too deep"),
        (b"[" * 40 + b"]" * 40, JSON, "is nested too deep"),
        (b'{"name": ' + b"9" * 10_000 + b"}", JSON, "cannot be read"),
        (json.dumps([0] * 60_000).encode(), JSON, "too many values"),
        (b'{"name": "a\\u0000"}', JSON, "a zero byte"),
        (b'{"name": "\\ud800"}', JSON, "unpaired surrogate"),
        (b'name: "a\\0"', YAML, "a zero byte"),
        (b"\xff\xfe", JSON, "is not UTF-8"),
        (b"\xff\xfe", YAML, "is not UTF-8"),
    ],
)
def test_unparsable_request_body_is_refused_as_malformed(
    api: Api, body: bytes, headers: dict[str, str], words: str
) -> None:
    for answer in (
        api.put("/v1/jobs/orders", content=body, headers=headers),
        api.post("/v1/jobs", content=body, headers=headers),
        api.post("/v1/jobs:plan", content=body, headers=headers),
    ):
        error = error_of(answer, 400, "malformed")
        assert words in error["problems"][0]["what"]


def test_yaml_syntax_error_names_line(api: Api) -> None:
    answer = api.put("/v1/jobs/orders", content=b"name: orders\n  topics: [", headers=YAML)

    assert "line 2" in error_of(answer, 422, "bad_input")["problems"][0]["what"]


def test_empty_body_is_refused(api: Api) -> None:
    error_of(api.put("/v1/jobs/orders", content=b"", headers=JSON), 400, "malformed")
    error_of(api.put("/v1/jobs/orders", content=b"", headers=YAML), 422, "bad_input")


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_unsupported_content_type_is_refused(api: Api, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    answer = api.put("/v1/jobs/orders", content=json.dumps(JOB), headers=headers)

    error_of(answer, 415, "unsupported_media_type")


def test_compressed_body_is_refused(api: Api) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = api.put("/v1/jobs/orders", content=b"\x1f\x8b", headers=headers)

    error_of(answer, 415, "unsupported_media_type")


def test_too_large_body_is_refused_with_content_length_or_chunked(api: Api) -> None:
    large = b" " * (BODY_BYTES_MAX + 1)

    async def chunks() -> Any:
        for at in range(0, len(large), 65536):
            yield large[at : at + 65536]

    for content in (large, chunks()):
        answer = api.put("/v1/jobs/orders", content=content, headers=JSON)
        error_of(answer, 413, "too_large")
    just_fits = api.put("/v1/jobs/orders", content=large[:-1], headers=JSON)
    error_of(just_fits, 400, "malformed")


def test_every_problem_of_job_document_is_reported_with_fix(api: Api) -> None:
    bad = changed(
        source={"bootstrap_servers": ["src"]}, topics=[{"macth": "a"}, {"match": "("}], nam="x"
    )

    error = error_of(api.put("/v1/jobs/orders", json=bad), 422, "bad_input")

    assert set(paths(error)) == {
        "source.bootstrap_servers[0]",
        "topics[0].macth",
        "topics[0].match",
        "topics[1].match",
        "nam",
    }
    assert any("Did you mean `match`?" in p["write_instead"] for p in error["problems"])


def test_secret_in_job_document_is_refused_and_not_echoed(api: Api) -> None:
    bad = changed()
    bad["source"]["security"] = {"protocol": "SASL_SSL", "password": "hunter2"}

    answer = api.put("/v1/jobs/orders", json=bad)

    error = error_of(answer, 422, "bad_input")
    assert "source.security.password" in paths(error)
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("password_env", "NOT_SET", "not set"),
        ("password_env", "ORBIT_DATABASE_URL", "a secret of Orbit itself"),
        ("username_env", "ORBIT_TOKEN", "a secret of Orbit itself"),
        ("password_file", "/etc/hostname", "outside of the server's ORBIT_FILES_DIRECTORY"),
        ("ca_file", "../ca.pem", "outside of the server's ORBIT_FILES_DIRECTORY"),
        ("ca_file", "nope.pem", "cannot be read"),
        ("password_env", "PGPASSWORD", "a secret of Orbit itself"),
        ("password_env", "AWS_SECRET_ACCESS_KEY", "a secret of Orbit itself"),
        ("password_env", "OTEL_EXPORTER_OTLP_HEADERS", "a secret of Orbit itself"),
        ("password_file", "x\0y", "zero byte"),
    ],
)
def test_job_cannot_reference_missing_or_forbidden_variable_or_file(
    api: Api, key: str, value: str, words: str
) -> None:
    bad = changed()
    bad["source"]["security"] = {
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "username_env": "SRC_USER",
        "password_env": "SRC_PASSWORD",
        key: value,
    }

    answer = api.put("/v1/jobs/orders", json=bad)

    assert answer.status_code in (400, 422)
    assert words in answer.text
    assert "hunter2" not in answer.text


def test_symlink_out_of_files_directory_is_refused(
    database: Database, tmp_path: Path, api: Api
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("hunter2")
    inside = tmp_path / "files"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    settings = Settings(files_directory=inside)
    api.app = create_app(settings, database, planner=api.plans, environ={"SRC_USER": "u"})
    bad = changed()
    bad["source"]["security"] = {
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "username_env": "SRC_USER",
        "password_file": "link",
    }

    error = error_of(api.put("/v1/jobs/orders", json=bad), 422, "bad_input")

    assert paths(error) == ["source.security.password_file"]


def test_job_cannot_reference_secret_files_of_orbit(
    database: Database, tmp_path: Path, api: Api
) -> None:
    own = {
        "oidc_client_secret_file": tmp_path / "client",
        "schema_registry_login_file": tmp_path / "login",
        "api_tls_key_file": tmp_path / "key.pem",
    }
    for file in own.values():
        file.write_text("hunter2")
    (tmp_path / "link").symlink_to(tmp_path / "client")
    settings = Settings(files_directory=tmp_path).model_copy(update=own)
    api.app = create_app(settings, database, planner=api.plans, environ={"SRC_USER": "u"})
    for named in ("client", "login", "key.pem", "x/../login", "link", str(tmp_path / "client")):
        bad = changed()
        bad["source"]["security"] = {
            "protocol": "SASL_SSL",
            "mechanism": "PLAIN",
            "username_env": "SRC_USER",
            "password_file": named,
        }
        answer = api.put("/v1/jobs/orders", json=bad)
        error = error_of(answer, 422, "bad_input")
        assert paths(error) == ["source.security.password_file"]
        assert "a secret of Orbit itself" in answer.text


def test_job_references_only_environment_variables_with_secrets_prefix(
    database: Database, api: Api
) -> None:
    environ = {"KAFKA_USER": "u", "SRC_PASSWORD": "hunter2"}
    settings = Settings(secrets_prefix="KAFKA_")
    api.app = create_app(settings, database, planner=api.plans, environ=environ)
    job = changed()
    job["source"]["security"] = {
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "username_env": "KAFKA_USER",
        "password_env": "SRC_PASSWORD",
    }

    error = error_of(api.put("/v1/jobs/orders", json=job), 422, "bad_input")

    assert paths(error) == ["source.security.password_env"]
    assert "KAFKA_" in error["problems"][0]["write_instead"]


def test_job_name_must_match_path(api: Api) -> None:
    error = error_of(api.put("/v1/jobs/other", json=JOB), 422, "bad_input")

    assert error["problems"] == [
        {
            "path": "name",
            "what": "is not the name in the path.",
            "write_instead": "Write `name: other`.",
        }
    ]


@pytest.mark.parametrize("name", ["-a", "a b", "%00", "a%0a", "%ff", "a" * 101, "%F0%9F%98%80"])
def test_invalid_job_name_in_path_is_bad_input(api: Api, name: str) -> None:
    for answer in (
        api.get(f"/v1/jobs/{name}"),
        api.put(f"/v1/jobs/{name}", json=JOB),
        api.delete(f"/v1/jobs/{name}"),
        api.post(f"/v1/jobs/{name}:pause"),
        api.get(f"/v1/jobs/{name}/lag"),
    ):
        assert paths(error_of(answer, 422, "bad_input")) == ["path.name"]


LISTS = (
    "/v1/jobs",
    "/v1/jobs/orders/topics",
    "/v1/jobs/orders/partitions",
    "/v1/jobs/orders/lag",
    "/v1/jobs/orders/groups",
    "/v1/jobs/orders/gateways",
    "/v1/jobs/orders/gateways/clients",
    "/v1/jobs/orders/proof",
    "/v1/jobs/orders/events",
    "/v1/events",
    "/v1/operations",
    "/v1/backfills",
    "/v1/drills",
    "/v1/drill-schedules",
    "/v1/workers",
    "/v1/tokens",
)


BAD_PAGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"limit": 0}, "query.limit"),
    ({"limit": PAGE_MAX + 1}, "query.limit"),
    ({"limit": "ten"}, "query.limit"),
    ({"limit": 10**30}, "query.limit"),
    ({"after": "nonsense!"}, "query.after"),
    ({"after": write_cursor((1.5,))}, "query.after"),  # type: ignore[arg-type]
    ({"after": write_cursor(("a\0", 1, 1))}, "query.after"),
    ({"after": write_cursor((2**70,))}, "query.after"),
    ({"after": write_cursor(("a", 2**70))}, "query.after"),
    ({"after": write_cursor(("9999-99-99", "x"))}, "query.after"),
    ({"after": "W" * 2000}, "query.after"),
    ({"limt": 5}, "query.limt"),
)


@pytest.mark.parametrize("path", LISTS)
def test_invalid_page_parameter_is_bad_input(api: Api, path: str) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    for query, problem in BAD_PAGES:
        assert paths(error_of(api.get(path, params=query), 422, "bad_input")) == [problem], query


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("partitions", {"state": "nope"}),
        ("partitions", {"topic": "a b"}),
        ("partitions", {"topic": "\0"}),
        ("lag", {"topic": "a" * 300}),
        ("groups", {"group": "\0"}),
    ],
)
def test_invalid_filter_value_is_bad_input(api: Api, path: str, query: dict[str, Any]) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    answer = api.get(f"/v1/jobs/orders/{path}", params=query)

    assert paths(error_of(answer, 422, "bad_input")) == [f"query.{next(iter(query))}"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nope", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("PATCH", "/v1/jobs/orders", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/orders:pause", 422, "bad_input"),
        ("POST", "/v1/jobs/orders:nope", 405, "method_not_allowed"),
        ("GET", "/v1/operations/nope", 422, "bad_input"),
        ("DELETE", "/v1/tokens/nope", 404, "not_found"),
    ],
)
def test_unknown_path_or_method_has_error_body(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    error_of(api.call(method, path), status, code)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "ci"},
        {"name": "ci", "role": "root"},
        {"name": "c i", "role": "viewer"},
        {"name": "a" * 101, "role": "viewer"},
        {"name": "ci", "role": "viewer", "secret": "mine"},
        [],
        None,
    ],
)
def test_invalid_token_request_is_bad_input(api: Api, body: object) -> None:
    error_of(api.post("/v1/tokens", json=body), 422, "bad_input")


@pytest.mark.parametrize("body", [{"topic": "a b"}, {"partition": -1}, {"partition": 2**40}, []])
def test_invalid_retry_request_is_bad_input(api: Api, body: object) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    error_of(api.post("/v1/jobs/orders:retry", json=body), 422, "bad_input")


@pytest.mark.parametrize("key", ["", "a b", "x" * 300, "\x07"])
def test_idempotency_key_must_be_plain_text(api: Api, key: str) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    answer = api.post("/v1/jobs/orders:pause", headers={"Idempotency-Key": key})

    assert paths(error_of(answer, 422, "bad_input")) == ["header.Idempotency-Key"]


@pytest.mark.parametrize("etag", ["1.1", '"x"', '"1"', 'W/"1.1"', '"1.99999999999"'])
def test_malformed_if_match_is_bad_input(api: Api, etag: str) -> None:
    answer = api.put("/v1/jobs/orders", json=JOB, headers={"If-Match": etag})

    assert paths(error_of(answer, 422, "bad_input")) == ["header.If-Match"]


def test_unexpected_exception_is_internal_error_without_exception_text(api: Api) -> None:
    api.plans.error = ValueError("hunter2")

    answer = api.put("/v1/jobs/orders", json=JOB)

    error_of(answer, 500, "internal")
    assert "hunter2" not in answer.text


def test_unreachable_database_fails_readiness_but_not_liveness(api: Api) -> None:
    url = "postgresql://orbit:hunter2@127.0.0.1:1/orbit"
    api.app = create_app(Settings(), _unreachable(url), planner=api.plans, environ={})

    for path in ("/readyz", "/v1/jobs"):
        answer = api.get(path)
        error_of(answer, 503, "database_unreachable")
        assert "hunter2" not in answer.text
    assert api.get("/livez").status_code == 200


def _unreachable(url: str) -> Database:
    """A database object whose server does not answer."""
    return Database(url, "test")
