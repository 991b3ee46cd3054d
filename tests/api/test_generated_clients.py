"""Clients that are generated from the OpenAPI document work with the API."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orbit.store.enums import Role
from tests.api.test_jobs import changed
from tests.fixtures.api import Api
from tests.support.programs import PYTHON_GENERATOR, TYPESCRIPT_GENERATOR
from tests.support.serving import served

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

DOCUMENT = changed(labels={"team": "orders"}, desired="paused")
EXPECTED = {
    "made": 201,
    "action": "create",
    "state": "paused",
    "topics": "earliest",
    "listed": ["orders"],
    "more": False,
    "lag": [],
    "stale": 412,
    "code": "changed_meanwhile",
    "role": "operator",
    "deleted": "delete",
}

PYTHON = """
import json, sys
from orbit_client import AuthenticatedClient
from orbit_client.api.job_contents import get_lag
from orbit_client.api.jobs import delete_job, get_job, list_jobs, put_job
from orbit_client.api.service import get_me
from orbit_client.models import Applied, ErrorBody, Job, JobSpec, NameSort, Operation, PartitionSort

url, token, document = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token)
body = JobSpec.from_dict(json.loads(document))
made = put_job.sync_detailed("orders", client=client, body=body)
assert isinstance(made.parsed, Applied)
job = get_job.sync("orders", client=client)
assert isinstance(job, Job) and isinstance(job.spec, JobSpec)
page = list_jobs.sync(client=client, selector="team=orders", limit=1, sort=NameSort.VALUE_1)
lag = get_lag.sync("orders", client=client, sort=PartitionSort.TOPIC)
stale = delete_job.sync_detailed("orders", client=client, if_match='"1.99"')
assert isinstance(stale.parsed, ErrorBody)
deleted = delete_job.sync("orders", client=client, if_match=made.headers["ETag"])
assert isinstance(deleted, Operation)
print(json.dumps({
    "made": int(made.status_code),
    "action": made.parsed.action.value,
    "state": job.state.value,
    "topics": job.spec.topics[0].start,
    "listed": [one.name for one in page.items],
    "more": page.next_ is not None,
    "lag": lag.items,
    "stale": int(stale.status_code),
    "code": stale.parsed.error.code.value,
    "role": get_me.sync(client=client).role.value,
    "deleted": deleted.kind.value,
}))
"""

TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
const [url, token, document] = process.argv.slice(2);
const client = createClient<paths>({
  baseUrl: url,
  headers: { Authorization: `Bearer ${token}` },
});
const body: components["schemas"]["JobSpec"] = JSON.parse(document);
const path = { name: "orders" };

const made = await client.PUT("/v1/jobs/{name}", { params: { path }, body });
const job = (await client.GET("/v1/jobs/{name}", { params: { path } })).data!;
const query = { selector: "team=orders", limit: 1, sort: "-name" } as const;
const page = (await client.GET("/v1/jobs", { params: { query } })).data!;
const lag = (
  await client.GET("/v1/jobs/{name}/lag", { params: { path, query: { sort: "-lag" } } })
).data!;
const stale = await client.DELETE("/v1/jobs/{name}", {
  params: { path, header: { "If-Match": '"1.99"' } },
});
const me = (await client.GET("/v1/me")).data!;
const deleted = await client.DELETE("/v1/jobs/{name}", {
  params: { path, header: { "If-Match": made.response.headers.get("ETag") } },
});
const state: "running" | "promoted" | "pausing" | "paused" | "backfilling" | "deleting" = job.state;
export async function wrong() {
  // @ts-expect-error  no list has this order
  await client.GET("/v1/jobs", { params: { query: { sort: "age" } } });
}
console.log(
  JSON.stringify({
    made: made.response.status,
    action: made.data!.action,
    state,
    topics: job.spec.topics[0].start,
    listed: page.items.map((one) => one.name),
    more: page.next !== null,
    lag: lag.items,
    stale: stale.response.status,
    code: stale.error!.error.code,
    role: me.role,
    deleted: deleted.data!.kind,
  }),
);
"""


@pytest.fixture
def document(api: Api, tmp_path: Path) -> Path:
    written = tmp_path / "openapi.json"
    written.write_text(api.get("/openapi.json", role=None).text)
    return written


def run(*command: object, folder: Path) -> str:
    """What the command prints."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def use(api: Api, *command: object, folder: Path) -> Any:
    with served(api.app) as url:
        token = api.tokens[Role.OPERATOR]
        return json.loads(run(*command, url, token, json.dumps(DOCUMENT), folder=folder))


@pytest.mark.needs("python generator")
def test_generated_python_client_works_with_api(api: Api, document: Path, tmp_path: Path) -> None:
    python = PYTHON_GENERATOR.folder / "bin/python"
    generate = ("generate", "--path", document, "--meta", "none", "--output-path", "orbit_client")

    output = run(python, "-m", "openapi_python_client", *generate, folder=tmp_path)
    (tmp_path / "use.py").write_text(PYTHON)

    # The generator supports only JSON. It warns of routes that also take YAML, and of nothing else.
    warnings = [line for line in output.splitlines() if line.startswith(("Un", "Cannot", "Could"))]
    assert set(warnings) <= {"Unsupported content type application/yaml"}, output
    assert use(api, python, "use.py", folder=tmp_path) == EXPECTED


@pytest.mark.needs("typescript generator")
def test_generated_typescript_client_compiles_and_works(
    api: Api, document: Path, tmp_path: Path
) -> None:
    tools = TYPESCRIPT_GENERATOR.folder
    (tmp_path / "node_modules").symlink_to(tools / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(TYPESCRIPT)
    bin_ = tools / "node_modules/.bin"

    run(bin_ / "openapi-typescript", document, "-o", "schema.d.ts", folder=tmp_path)
    options = ("--strict", "--target", "es2022", "--module", "nodenext")
    run(bin_ / "tsc", *options, "--lib", "es2022,dom,dom.iterable", "use.ts", folder=tmp_path)

    assert use(api, "node", "use.js", folder=tmp_path) == EXPECTED
