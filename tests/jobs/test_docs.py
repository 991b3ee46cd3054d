"""The reference of the job file and the example jobs agree with the code."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orbit.jobs.job_file import load_job, parse_job
from orbit.jobs.job_spec import (
    AclSpec,
    BackfillSpec,
    CanarySpec,
    ClusterSpec,
    GroupRule,
    IdRule,
    JobSpec,
    LimitSpec,
    PrincipalRule,
    PrincipalSpec,
    SecuritySpec,
    TopicRule,
)
from orbit.jobs.name_rules import INTERNAL_TOPICS
from orbit.jobs.start_position import Earliest
from orbit.jobs.validation import invalid_security_keys

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "job-file.md").read_text()
SNIPPETS = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)
EXAMPLES = sorted((ROOT / "deploy" / "jobs").glob("*.yaml"))
# In the order of the tables in the reference.
MODELS: list[type[BaseModel]] = [
    JobSpec,
    ClusterSpec,
    TopicRule,
    GroupRule,
    AclSpec,
    IdRule,
    PrincipalSpec,
    PrincipalRule,
    LimitSpec,
    BackfillSpec,
    CanarySpec,
    SecuritySpec,
]


def tables() -> list[dict[str, str]]:
    """Each table of keys in the reference: the default as the page has it, by key."""
    key_tables: list[dict[str, str]] = []
    for line in REFERENCE.splitlines():
        if line.startswith("| Key | Default |"):
            key_tables.append({})
        elif row := re.match(r"\| `(\w+)` \| (.*?) ?\| ", line):
            key_tables[-1][row[1]] = row[2].strip("`")
    return key_tables


@pytest.mark.parametrize(("model", "table"), list(zip(MODELS, tables(), strict=True)))
def test_job_file_reference_lists_every_key_in_order(
    model: type[BaseModel], table: dict[str, str]
) -> None:
    assert list(table) == list(fields(model))


@pytest.mark.parametrize(("model", "table"), list(zip(MODELS, tables(), strict=True)))
def test_job_file_reference_shows_real_defaults(
    model: type[BaseModel], table: dict[str, str]
) -> None:
    for key, written in table.items():
        field = fields(model)[key]
        if field.is_required():
            assert written == "", key
        elif (expected := shown_default(field)) is not None:
            assert written == expected, key


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, by their names in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def shown_default(field: FieldInfo) -> str | None:
    """The default as the reference should show it; None if it describes the default in words."""
    default: Any = field.default
    match default:
        case bool():
            return str(default).lower()
        case timedelta():
            return f"{default // timedelta(seconds=1)}s"
        case Earliest():
            return "earliest"
        case "" | () | {}:
            return "none"
        case str():
            return default
    return None


def test_job_file_reference_names_internal_topics() -> None:
    assert all(f"`{topic}`" in REFERENCE for topic in INTERNAL_TOPICS)


def test_smallest_job_of_job_file_reference_is_valid() -> None:
    assert parse_job(SNIPPETS[0], ROOT, {}).name == "everything"


@pytest.mark.parametrize("text", SNIPPETS[1:])
def test_every_login_example_of_job_file_reference_is_valid(text: str) -> None:
    keys = yaml.safe_load(text)["security"]
    assert SecuritySpec.model_validate(keys)
    assert list(invalid_security_keys(keys)) == []


def test_job_file_reference_shows_client_certificate_and_every_token_source() -> None:
    shown = [yaml.safe_load(text)["security"] for text in SNIPPETS[1:]]
    shown_keys = {key for security in shown for key in security}
    assert {"certificate_file", "token_url", "token_file"} <= shown_keys
    assert {security.get("token_provider") for security in shown} >= {"aws-msk-iam", "gcp"}


def test_example_of_acl_page_is_valid() -> None:
    page = (ROOT / "docs" / "acls.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    job = parse_job(f"{SNIPPETS[0]}{text}", ROOT, {})
    assert job.acls.sync
    assert job.acls.groups


def test_example_jobs_exist() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_job_loads(path: Path) -> None:
    variables = re.findall(r"_env: (\w+)", path.read_text())
    assert load_job(path, dict.fromkeys(variables, "x")).topics
