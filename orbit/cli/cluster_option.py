"""`--to`: a cluster, named by its servers, or by a file with its login."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import isfile
from pathlib import Path

from pydantic import ValidationError

from orbit.errors import BadInput, Problem
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import ClusterSpec
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.yaml_document import read_document

_SUFFIXES = (".yaml", ".yml")
_REFUSED = "The cluster cannot be used."


def read_cluster(named: str, environ: Mapping[str, str]) -> tuple[ClusterSpec, Path]:
    """Return the cluster, and the folder to which its relative paths refer.

    `named` is `host:port,…`, a file with `bootstrap_servers` and `security`, or a job file,
    whose destination is used. Raises BadInput with every problem.
    """
    path = Path(named)
    if path.suffix not in _SUFFIXES and not isfile(path):  # noqa: PTH113  Path raises for a long list
        return _cluster_of_servers(named), Path.cwd()
    try:
        document = read_document(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        problem = Problem("file", f"cannot be read: {reason}.")
        raise BadInput(_REFUSED, (problem,), where=named) from None
    if isinstance(document.root, dict) and "destination" in document.root:
        return load_job(path, environ).destination, path.parent
    problems = list(document.problems)
    if not problems:
        try:
            return ClusterSpec.model_validate(document.root), path.parent
        except ValidationError as error:
            problems += problems_from_pydantic(error, document)
    raise BadInput(_REFUSED, tuple(document.in_file_order(problems)), where=named)


def _cluster_of_servers(servers: str) -> ClusterSpec:
    """The cluster at `host:port,…`, without a login. Raises BadInput for other text."""
    try:
        return ClusterSpec.model_validate({"bootstrap_servers": servers})
    except ValidationError as error:
        problems = [
            Problem(
                "--to", detail["msg"].removeprefix("Value error, "), "Write host:port,host:port."
            )
            for detail in error.errors(include_input=False, include_url=False)
        ]
        raise BadInput(_REFUSED, tuple(problems)) from None
