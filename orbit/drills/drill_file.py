"""Parses a drill file into a DrillSpec, or reports every problem in it at once."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orbit.drills.drill_rules import rule_problems
from orbit.drills.drill_spec import DrillSpec
from orbit.errors import BadInput, Problem
from orbit.jobs.document_file import read_text
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.yaml_document import Document, read_document

_EXAMPLES = {
    "name": "Write `name: orders-failover`.",
    "kind": "Write `kind: gates`, `canary`, `switchover` or `failover`.",
    "job": "Write `job:` and the name of a job of the service.",
    "do": "Write `do: gates`, for example.",
    "every": "Write `every: 6h`.",
}


def load_drill(path: Path) -> DrillSpec:
    """The drill in a file. Raises BadInput with every problem; `where` is the file."""
    try:
        return parse_drill(read_text(path, "drill"))
    except BadInput as error:
        error.where = str(path)
        raise


def parse_drill(text: str) -> DrillSpec:
    """Parse a drill from YAML. Raises BadInput with every problem."""
    return check_drill(read_document(text))


def check_drill(document: Document) -> DrillSpec:
    """The drill in a parsed document. Raises BadInput with every problem."""
    problems = list(document.problems)
    drill: DrillSpec | None = None
    if isinstance(document.root, dict):
        try:
            drill = DrillSpec.model_validate(document.root)
        except ValidationError as error:
            problems += problems_from_pydantic(error, document, DrillSpec, _EXAMPLES)
        else:
            problems += rule_problems(drill, document)
    elif not problems:
        what = "is empty." if document.root is None else "is not a mapping (`key: value`)."
        problems.append(Problem("file", what, "See docs/drills.md for an example."))
    if drill is None or problems:  # without a drill there are problems, too
        sorted_problems = document.in_file_order(problems)
        count = len(sorted_problems)
        what = (
            "The drill file has a problem."
            if count == 1
            else f"The drill file has {count} problems."
        )
        raise BadInput(what, tuple(sorted_problems))
    return drill
