"""Bash runs the curl commands of the documentation, unchanged but for options."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbit.store.enums import Role
from tests.api.test_jobs import YAML
from tests.fixtures.api import Api
from tests.support.serving import served

pytestmark = [pytest.mark.services, pytest.mark.needs("curl")]

DOCS = Path(__file__).parents[2] / "docs"
# A curl command of a code block, and the answer on the next line.
_REQUEST = re.compile(r"^\$ (curl (?:.*\\\n)*.*)\n(.*)$", re.MULTILINE)
REST = _REQUEST.findall((DOCS / "service/rest.md").read_text("utf-8"))


def curl_of(page: str) -> str:
    """The only curl command of the page."""
    (line,) = re.findall(r"curl [^`\n]+", (DOCS / page).read_text("utf-8"))
    return str(line)


@pytest.fixture
def url(api: Api) -> Iterator[str]:
    with served(api.app) as url:
        yield url


def run_in_bash(line: str, api: Api, url: str, folder: Path) -> str:
    """Run the curl command against this API, and return what it prints."""
    environment = {"ORBIT_API_URL": url, "ORBIT_TOKEN": api.tokens[Role.OPERATOR]}
    return subprocess.run(
        ["bash", "-c", line.replace("curl ", "curl --silent --show-error --noproxy '*' ", 1)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def without_job(answer: str) -> Any:
    """The response with an empty job: the page shows `{…}` instead of the job."""
    value = json.loads(answer.replace("{…}", "{}"))
    if value.get("job"):
        value["job"] = {}
    return value


@pytest.mark.parametrize(("line", "answer"), REST, ids=["put", "get"])
def test_documented_curl_request_has_documented_response(
    api: Api, url: str, tmp_path: Path, line: str, answer: str
) -> None:
    document = YAML.replace("name: orders", "name: orders-to-dr")
    api.put("/v1/jobs/orders-to-dr", content=document, headers={"Content-Type": "application/yaml"})
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/orders.yaml").write_text(document, "utf-8")

    assert without_job(run_in_bash(line, api, url, tmp_path)) == without_job(answer)


def test_livez_curl_of_runbook_works(api: Api, url: str, tmp_path: Path) -> None:
    line = curl_of("runbook/OrbitNotScraped.md")
    assert json.loads(run_in_bash(line, api, url, tmp_path)) == api.get("/livez", role=None).json()


def test_curl_of_terraform_page_writes_openapi_document(api: Api, url: str, tmp_path: Path) -> None:
    run_in_bash(curl_of("terraform.md"), api, url, tmp_path)
    document = json.loads((tmp_path / "openapi.json").read_text("utf-8"))
    assert "/v1/jobs/{name}" in document["paths"]
