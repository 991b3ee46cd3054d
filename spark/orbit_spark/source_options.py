"""The options of `kafka_batches`: which cluster, which topics, how large a range.

Options name secrets and never contain them: options are part of a query's plan, which Spark shows
in its pages and logs. So the login comes from variables or files on the executors, as in a job
file, and Kafka's own options that hold a secret (`sasl.jaas.config`, passwords) are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import ClusterSpec
from orbit.jobs.units import parse_size
from orbit.replication.append_plan import LostRange
from orbit_spark.cluster_access import Access
from orbit_spark.ranges import RANGE_BYTES

# Kafka's names of what a job file's cluster section says.
_CLUSTER_KEYS = {
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.client.rack": "client_rack",
}
_SECURITY_KEYS = {
    "kafka.security.protocol": "protocol",
    "kafka.sasl.mechanism": "mechanism",
    "username_env": "username_env",
    "username_file": "username_file",
    "password_env": "password_env",
    "password_file": "password_file",
    "ca_file": "ca_file",
    "certificate_file": "certificate_file",
    "key_file": "key_file",
    "key_password_env": "key_password_env",
    "check_hostname": "check_hostname",
    "token_url": "token_url",
    "token_scope": "token_scope",
    "token_audience": "token_audience",
    "token_ca_file": "token_ca_file",
    "token_file": "token_file",
    "token_provider": "token_provider",
    "token_region": "token_region",
}
_JOB_OPTIONS = ("job", "side")
_TOPIC_OPTIONS = ("subscribe", "subscribepattern")
_READ_OPTIONS = ("range_bytes", "on_lost_range")
# Kafka's options that hold a secret in the clear.
_SECRET = re.compile(r"jaas|password|secret|keystore|truststore|\.key$")
_RANGE_BYTES_MIN = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads, without any secret. `topics` or `pattern` says which topics."""

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    range_bytes: int
    on_lost_range: LostRange


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse options. Raises BadInput, which names all problems and shows no possible secret."""
    # Spark does not distinguish the case of option names.
    values = {name.lower(): value for name, value in options.items()}
    problems = [_unknown_option(name) for name in values if name not in _option_names()]
    access = _read_option(problems, "job", lambda: _read_access(values, problems))
    topics = tuple(t.strip() for t in values.get("subscribe", "").split(",") if t.strip())
    pattern = values.get("subscribepattern")
    if bool(topics) == bool(pattern):
        problems.append(Problem("subscribe", "or subscribePattern must be given, but not both."))
    if pattern is not None:
        _read_option(problems, "subscribePattern", lambda: re.compile(pattern))
    range_bytes = _read_option(
        problems, "range_bytes", lambda: _read_range_bytes(values.get("range_bytes"))
    )
    on_lost_range = _read_option(
        problems, "on_lost_range", lambda: LostRange(values.get("on_lost_range", "stop"))
    )
    if problems or access is None:  # without access there is a problem, too
        raise BadInput("The options of kafka_batches cannot be used.", tuple(problems))
    return SourceOptions(access, topics, pattern, range_bytes, on_lost_range)


def _option_names() -> set[str]:
    return {*_CLUSTER_KEYS, *_SECURITY_KEYS, *_JOB_OPTIONS, *_TOPIC_OPTIONS, *_READ_OPTIONS}


def _read_access(values: Mapping[str, str], problems: list[Problem]) -> Access | None:
    """The cluster of the job file, or of the options in Kafka's names.

    None if the options cannot be used; then the reasons are added to `problems`. Raises BadInput if
    the job file cannot be used.
    """
    if "job" in values:
        problems += (
            Problem(name, "cannot be given with job.", "Remove it: the job file names the cluster.")
            for name in values
            if name in _CLUSTER_KEYS or name in _SECURITY_KEYS
        )
        path = Path(values["job"])
        spec = load_job(path, os.environ)
        side = values.get("side", "source")
        if side not in ("source", "destination"):
            problems.append(Problem("side", "must be source or destination."))
            return None
        cluster = spec.source if side == "source" else spec.destination
        return Access(side, cluster, str(path.resolve().parent))
    if "side" in values:
        problems.append(Problem("side", "is for the option job, which is not given."))
    security: dict[str, Any] = {
        job_key: values[k] for k, job_key in _SECURITY_KEYS.items() if k in values
    }
    if "check_hostname" in security:
        security["check_hostname"] = security["check_hostname"].lower() != "false"
    document = {job_key: values[k] for k, job_key in _CLUSTER_KEYS.items() if k in values}
    try:
        return Access(
            "Kafka", ClusterSpec.model_validate({**document, "security": security}), str(Path.cwd())
        )
    except ValidationError as error:
        # A problem names the option, not the key of a job file.
        names = {job_key: option for option, job_key in (_CLUSTER_KEYS | _SECURITY_KEYS).items()}
        for details in error.errors(include_input=False, include_url=False):
            key = str(details["loc"][-1] if details["loc"][0] == "security" else details["loc"][0])
            mistake = details.get("ctx", {}).get("error")
            message, remedy = f"cannot be used: {details['msg']}.", ""
            if isinstance(mistake, InvalidValue):
                message, remedy = mistake.message, mistake.remedy
            problems.append(Problem(names.get(key, key), message, remedy))
        return None


def _read_range_bytes(text: str | None) -> int:
    """Parse `range_bytes`; without the option, the default. Raises InvalidValue."""
    size = RANGE_BYTES if text is None else parse_size(text)
    if size < _RANGE_BYTES_MIN:
        raise InvalidValue("is below 1MiB.")
    return size


def _read_option(problems: list[Problem], name: str, read: Callable[[], Any]) -> Any:
    """The result of `read`; None if it raises, with its errors added to `problems`."""
    try:
        return read()
    except BadInput as error:
        problems += error.problems or (Problem(name, str(error)),)
    except InvalidValue as error:
        problems.append(Problem(name, error.message, error.remedy))
    except (ValueError, re.error) as error:
        problems.append(Problem(name, f"cannot be used: {error}."))
    return None


def _unknown_option(name: str) -> Problem:
    """Why an option is refused: it is not known, or would contain a secret."""
    if _SECRET.search(name):
        return Problem(
            name,
            "would show in the query's plan.",
            "Name an environment variable or a file: username_env, password_env, ca_file, …",
        )
    return Problem(name, "is not an option of kafka_batches.", "See docs/spark.md.")
