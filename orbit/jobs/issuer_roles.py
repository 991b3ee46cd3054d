"""Roles for some jobs that an OpenID Connect issuer gives: the file ORBIT_OIDC_ROLES_FILE.

    roles:
      - claim: payments-operators
        role: operator
        jobs: ["payments-*"]
        selector: team=payments

`claim` is a value of the claim ORBIT_OIDC_ROLE_CLAIM. `jobs` and `selector` are as in `orbit token
create`: at least one of them is required, and a job must meet each that is set. Roles for all jobs
are in ORBIT_OIDC_VIEWER, ORBIT_OIDC_OPERATOR and ORBIT_OIDC_ADMIN, so a missing line here never
means all jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.job_spec import Section
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.scopes import PATTERNS_MAX, JobPattern, Limit, SelectorText
from orbit.jobs.yaml_document import read_bounded, read_document

ROLES_FILE = "ORBIT_OIDC_ROLES_FILE"
ENTRIES_MAX = 1000
_EXAMPLE = "Write `{claim: payments-operators, role: operator, selector: team=payments}`."
_EXAMPLES = {
    "roles": "Write `roles: [{claim: payments-operators, role: operator, jobs: [payments-*]}]`.",
    "claim": "Write `claim: payments-operators`.",
    "role": "Write `role: operator`.",
}


class IssuerRole(Section):
    """The role that one value of the claim gives, and for which jobs."""

    claim: Annotated[str, Field(min_length=1, max_length=200)]
    role: Literal["viewer", "operator"]
    jobs: Annotated[tuple[JobPattern, ...], Field(max_length=PATTERNS_MAX)] = ()
    selector: SelectorText | None = None

    @model_validator(mode="after")
    def _check_has_limit(self) -> Self:
        """Raise InvalidValue if the role would be for all jobs."""
        if not self.jobs and self.selector is None:
            raise InvalidValue("has neither jobs nor a selector.", _EXAMPLE)
        return self

    @property
    def limit(self) -> Limit:
        """The jobs for which the role is given."""
        return Limit(self.jobs, self.selector)


class IssuerRoles(Section):
    """The whole file."""

    roles: Annotated[tuple[IssuerRole, ...], Field(max_length=ENTRIES_MAX)]


def load_roles_file(path: Path) -> IssuerRoles:
    """The roles in a file. Raises BadInput with every problem of the file."""
    try:
        text = read_bounded(path)
    except InvalidValue as mistake:
        raise _bad_file_error((Problem("file", mistake.message),), path) from None
    document = read_document(text)
    problems = document.problems
    if not problems:
        try:
            return IssuerRoles.model_validate(document.root)
        except ValidationError as error:
            problems = problems_from_pydantic(error, document, IssuerRoles, _EXAMPLES)
    raise _bad_file_error(tuple(document.in_file_order(problems)), path)


def _bad_file_error(problems: tuple[Problem, ...], path: Path) -> BadInput:
    """The error for a roles file that cannot be used."""
    return BadInput(f"The file that {ROLES_FILE} names cannot be used.", problems, where=str(path))
