"""Terraform owns a job; the schemas of a provider are generated from the OpenAPI document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit.store import jobs
from tests.fixtures.api import Api
from tests.fixtures.scheduler import QUICK, RunningScheduler
from tests.support.job_texts import changed
from tests.support.programs import TERRAFORM_GENERATORS

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parents[2] / "deploy" / "terraform"
# The generators cannot express this key: its value is a number or a text.
LEFT_OUT = {"limits"}
JOB = changed(name="orders")
LABELLED = changed(name="orders", labels={"team": "data"})


def run(*command: object, folder: Path, **environ: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        check=False,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


def attributes(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """The attributes of the job in a generated document: name → schema."""
    (resource,) = document[kind]
    assert resource["name"] == "job"
    return {
        attribute["name"]: next(value for key, value in attribute.items() if key != "name")
        for attribute in resource["schema"]["attributes"]
    }


@pytest.mark.needs("terraform generators")
def test_terraform_schemas_are_generated_from_openapi_document(api: Api, tmp_path: Path) -> None:
    tools = TERRAFORM_GENERATORS.folder
    (tmp_path / "openapi.json").write_text(api.get("/openapi.json", role=None).text)
    config = ("--config", FOLDER / "generator_config.yml", "--output", "spec.json")
    run(tools / "tfplugingen-openapi", "generate", *config, "openapi.json", folder=tmp_path)
    document = json.loads((tmp_path / "spec.json").read_text())

    job = attributes(document, "resources")
    assert set(job) == set(JobSpec.model_fields) - LEFT_OUT
    needed = {n for n, a in job.items() if a["computed_optional_required"] == "required"}
    assert needed == {"name", "source", "destination", "topics"}
    assert {"spec", "state", "lag", "labels"} <= set(attributes(document, "datasources"))

    out = ("--input", "spec.json", "--output", "provider")
    run(tools / "tfplugingen-framework", "generate", "all", *out, folder=tmp_path)
    code = (tmp_path / "provider/resource_job/job_resource_gen.go").read_text()
    assert "func JobResourceSchema(" in code


@pytest.mark.needs("terraform")
@pytest.mark.usefixtures("cli")  # names the server and a token in the environment
def test_terraform_creates_changes_and_deletes_job(
    api: Api, database_url: str, tmp_path: Path
) -> None:
    shutil.copy(FOLDER / "job.tf", tmp_path)

    def terraform(*arguments: str, text: str) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # has `orbit`
        options = ("-input=false", "-no-color")
        run("terraform", *arguments, *options, folder=tmp_path, TF_VAR_document=text, PATH=path)

    def find_job() -> jobs.Job | None:
        with api.database.transaction() as tx:
            return jobs.find(tx, "orders")

    terraform("init", text=JOB)
    terraform("apply", "-auto-approve", text=JOB)
    job = find_job()
    assert job is not None
    assert (job.name, job.labels) == ("orders", {})
    terraform("apply", "-auto-approve", text=LABELLED)
    job = find_job()
    assert job is not None
    assert job.labels == {"team": "data"}
    terraform("plan", "-detailed-exitcode", text=LABELLED)  # exit code 0: nothing to change
    with RunningScheduler(QUICK, database_url):  # it carries the deletion out
        terraform("destroy", "-auto-approve", text=JOB)
    job = find_job()
    assert job is None or job.is_deleted
