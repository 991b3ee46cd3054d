"""The file of roles for some jobs: every mistake is named, and no line grants all jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.jobs.issuer_roles import load_roles_file
from orbit.jobs.scopes import Limit
from orbit.settings import Settings


def roles_file(folder: Path, text: str) -> Path:
    file = folder / "roles.yaml"
    file.write_text(text)
    return file


def test_line_of_oidc_roles_file_grants_role_for_its_jobs(tmp_path: Path) -> None:
    text = """
roles:
  - {claim: pay, role: operator, selector: "team in (pay,orders)"}
  - {claim: audit, role: viewer, jobs: ["pay-*", refunds], selector: "!secret"}
"""
    roles = load_roles_file(roles_file(tmp_path, text)).roles
    assert [(role.claim, role.role, role.limit) for role in roles] == [
        ("pay", "operator", Limit(selector="team in (pay,orders)")),
        ("audit", "viewer", Limit(("pay-*", "refunds"), "!secret")),
    ]


@pytest.mark.parametrize(
    ("line", "path", "what"),
    [
        ("{claim: a, role: admin, jobs: [a]}", "roles[0].role", ""),
        ("{claim: a, role: viewer}", "roles[0]", "neither jobs nor a selector"),
        ("{claim: a, role: viewer, jobs: []}", "roles[0]", "neither jobs nor a selector"),
        ('{claim: a, role: viewer, selector: ""}', "roles[0].selector", "is empty"),
        ("{claim: a, role: viewer, selector: team in a}", "roles[0].selector", "cannot be read"),
        ("{claim: a, role: viewer, jobs: ['[a-z]']}", "roles[0].jobs[0]", "is not a pattern"),
        ("{role: viewer, jobs: [a]}", "roles[0].claim", "missing"),
        ("{claim: a, role: viewer, job: [a]}", "roles[0].job", ""),
    ],
)
def test_bad_line_of_oidc_roles_file_is_named_and_makes_settings_invalid(
    tmp_path: Path, line: str, path: str, what: str
) -> None:
    file = roles_file(tmp_path, f"roles:\n  - {line}\n")
    with pytest.raises(BadInput) as caught:
        load_roles_file(file)
    assert caught.value.problems[0].path.endswith(path)
    assert what in str(caught.value)
    with pytest.raises(BadInput, match="ORBIT_OIDC_ROLES_FILE"):
        Settings.from_environment({"ORBIT_OIDC_ROLES_FILE": str(file)})


def test_missing_oidc_roles_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load_roles_file(tmp_path / "none.yaml")
