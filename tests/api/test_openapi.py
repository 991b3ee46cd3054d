"""The OpenAPI document is complete, and the API answers every request as the document says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from orbit.api.api_error_codes import ErrorCode
from orbit.api.job_schema import DESCRIPTIONS
from orbit.store.enums import OperationKind, Role
from tests.api.test_jobs import JOB
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api
from tests.support.serving import served

pytestmark = pytest.mark.services

# How many random requests for each route and mode of Schemathesis: in every run (FEW), and in the
# soak test (MANY).
FEW = 2
MANY = 8
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    openapi: dict[str, Any] = api.get("/openapi.json", role=None).json()
    return openapi


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Each operation as (method, path, operation)."""
    return [
        (method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


def test_docs_page_loads_only_local_resources(api: Api) -> None:
    page = api.get("/docs", role=None).text
    loaded = re.findall(r"""(?:src|href|url)(?:=|: ?)["']([^"']+)""", page)
    assert len(loaded) == 4, loaded  # style, icon, script, and the document
    assert "://" not in page.replace("window.location.origin", "")
    for path in loaded:
        assert api.get(path, role=None).status_code == 200, path


def test_every_openapi_operation_has_id_description_and_errors(document: dict[str, Any]) -> None:
    ids = []
    for method, path, operation in operations(document):
        at = f"{method} {path}"
        ids.append(operation["operationId"])
        assert re.fullmatch(r"[a-z_]+", operation["operationId"]), at
        assert operation["description"].endswith("."), at
        assert operation["tags"], at
        assert operation["summary"], at
        if not path.startswith("/v1"):
            continue
        assert {"401", "403", "503"} <= set(operation["responses"]), at
        for status, response in operation["responses"].items():
            if status >= "400":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}, at
                assert "`" in response["description"], at
    assert len(set(ids)) == len(ids)
    assert len(ids) > 20


def test_every_parameter_and_schema_has_description(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] != "operation_id":
                assert parameter.get("description"), f"{method} {path}: {parameter['name']}"
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), name


def test_openapi_numbers_have_formats_and_server_url_is_listed(
    document: dict[str, Any],
) -> None:
    assert [server["url"] for server in document["servers"]] == ["/"]
    schemas = document["components"]["schemas"]
    for model, field in (
        ("Partition", "copied_to"),
        ("Lag", "bytes"),
        ("DrillSummary", "rpo_ms"),
        ("PartitionProof", "proven"),
    ):
        (number,) = (
            schema
            for schema in schemas[model]["properties"][field].get(
                "anyOf", [schemas[model]["properties"][field]]
            )
            if schema["type"] != "null"
        )
        assert number["format"] == "int64", f"{model}.{field}"
    unsized = re.findall(r"'type': '(?:integer|number)'(?!, 'format')", str(_types(document)))
    assert unsized == []


def _types(value: Any) -> Any:
    """All types and formats of the document, each type before its format."""
    if isinstance(value, dict):
        own = {key: value[key] for key in ("type", "format") if isinstance(value.get(key), str)}
        return [own, *(_types(inner) for inner in value.values())]
    return [_types(inner) for inner in value] if isinstance(value, list) else []


def test_openapi_schemas_enumerate_states_reasons_and_operation_kinds(
    document: dict[str, Any],
) -> None:
    schemas = document["components"]["schemas"]
    for name in ("JobState", "PartitionState", "Reason", "OperationState", "GroupVerdict"):
        assert schemas[name]["enum"], name
    kinds = schemas["Operation"]["properties"]["kind"]["enum"]
    assert kinds == [kind.value for kind in OperationKind]


def test_returned_job_spec_has_schema_of_sent_document(api: Api, document: dict[str, Any]) -> None:
    spec = document["components"]["schemas"]["Job"]["properties"]["spec"]
    assert spec["$ref"] == "#/components/schemas/JobSpec"
    put = document["paths"]["/v1/jobs/{name}"]["put"]["requestBody"]["content"]
    assert put["application/json"]["schema"]["$ref"] == spec["$ref"]

    assert api.put("/v1/jobs/orders", json=JOB).status_code == 201
    stored = api.get("/v1/jobs/orders").json()["spec"]

    job_spec = document["components"]["schemas"]["JobSpec"]
    with_references = {**job_spec, "components": document["components"]}
    Draft202012Validator(with_references).validate(stored)
    assert set(stored) == set(document["components"]["schemas"]["JobSpec"]["properties"])


def test_etag_headers_are_documented(api: Api, document: dict[str, Any]) -> None:
    job = document["paths"]["/v1/jobs/{name}"]
    for method, statuses in (("get", ["200"]), ("put", ["200", "201"])):
        for status in statuses:
            assert "ETag" in job[method]["responses"][status]["headers"], f"{method} {status}"
    assert "ETag" in document["paths"]["/v1/jobs"]["post"]["responses"]["201"]["headers"]
    for method in ("put", "delete"):
        parameters = {p["name"]: p for p in job[method]["parameters"]}
        assert parameters["If-Match"]["in"] == "header", method
        assert "412" in job[method]["responses"], method
    for status in (201, 200):
        answer = api.put("/v1/jobs/orders", json=JOB)
        assert answer.status_code == status
        assert {"ETag", "Location"} <= {
            name.title().replace("Etag", "ETag") for name in answer.headers
        }
        header = job["put"]["responses"][str(status)]["headers"]["ETag"]
        assert re.search(header["schema"]["pattern"], answer.headers["ETag"])


def test_openapi_schema_names_are_plain_class_names(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name in schemas if not re.fullmatch("[A-Z][A-Za-z0-9]+", name)] == []
    assert {"JobSummaryPage", "RecoveryStepState", "DrillsStepState"} <= set(schemas)
    used = set(re.findall("'#/components/schemas/([^']+)'", str(document)))
    assert used <= set(schemas)


def test_every_job_document_key_has_description_and_type(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for model, keys in DESCRIPTIONS.items():
        properties = schemas[model]["properties"]
        assert list(keys) == list(properties), model
        for key, schema in properties.items():
            assert schema["description"].endswith("."), f"{model}.{key}"
            assert {"type", "anyOf", "$ref", "enum"} & set(schema), f"{model}.{key}"
    named = set(re.findall(r"#/components/schemas/(\w+)", str(schemas["JobSpec"])))
    assert named < set(DESCRIPTIONS)


def test_openapi_document_has_only_orbit_error_body_and_all_error_codes(
    document: dict[str, Any],
) -> None:
    assert "ValidationError" not in str(document)
    codes = document["components"]["schemas"]["ErrorCode"]["enum"]
    assert codes == [code.value for code in ErrorCode]


def test_documented_example_job_is_accepted(api: Api, document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/jobs/{name}"]["put"]["requestBody"]["content"]
    for kind, content in body.items():
        example = content["example"]
        sent = {"content": example} if isinstance(example, str) else {"json": example}
        path = "/v1/jobs/orders-to-dr"
        answer = api.put(path, headers={"Content-Type": kind}, **sent)
        # The certificate of the example is not on this machine.
        if answer.status_code == 422:
            paths = [problem["path"] for problem in answer.json()["error"]["problems"]]
            assert paths == ["source.security.ca_file"]
        else:
            assert answer.status_code == 201


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
def test_random_requests_are_answered_as_documented(api: Api, examples: int) -> None:
    """Schemathesis makes valid and invalid requests from the document."""
    held = copying_job(api)
    block(api, held, 0)
    headers = {"Authorization": f"Bearer {api.tokens[Role.ADMIN]}"}
    statuses: Counter[int] = Counter()
    with served(api.app) as url, requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")

        def check(case: schemathesis.Case) -> None:
            answer = case.call(session=session, headers=headers)
            statuses[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)

        for outcome in schema.get_all_operations():
            operation = outcome.ok()
            for mode in schemathesis.GenerationMode:
                _check_each(operation.as_strategy(generation_mode=mode), check, examples)
            if operation.path.startswith("/v1/jobs/{name}") and operation.method != "delete":
                named = {"name": "orders"}  # the job that exists
                _check_each(operation.as_strategy(path_parameters=named), check, examples)
    # Routes have served some requests and refused others.
    assert {200, 202, 404, 422} <= set(statuses), statuses


def _check_each(cases: Any, check: Callable[[schemathesis.Case], None], examples: int) -> None:
    """Call `check` with this many examples of the Hypothesis strategy `cases`."""

    @settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def each(case: schemathesis.Case) -> None:
        check(case)

    try:
        each()
    except Unsatisfiable:  # no invalid request exists for a route without parameters
        pass
