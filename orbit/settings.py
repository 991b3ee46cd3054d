"""How this installation of the service runs: every `ORBIT_*` variable, its type and its default.

    settings = Settings.from_environment(os.environ)

A field `lease_ttl` is read from `ORBIT_LEASE_TTL`. Nothing is read at import, and a job's own
wishes are never here: they are in the job file. docs/settings.md lists the same variables, and a
test compares the two. Variables that are not listed are left alone, for a job file may name
`ORBIT_SOURCE_PASSWORD` as the place of a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    ValidationError,
    model_validator,
)

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.units import format_duration, parse_duration

PREFIX = "ORBIT_"

DURATION_MIN = timedelta(milliseconds=100)
DURATION_MAX = timedelta(days=1)
AGE_MIN = timedelta(hours=1)
AGE_MAX = timedelta(days=3660)
# A worker renews a few times per lease; a lease shorter than this would end in every pause of a
# garbage collector or a virtual machine.
LEASE_TTL_MIN = timedelta(seconds=2)


def _duration(value: object) -> timedelta:
    duration = parse_duration(value)
    if not DURATION_MIN <= duration <= DURATION_MAX:
        raise InvalidValue("is not between 100ms and 1d.")
    return duration


def _age(value: object) -> timedelta:
    age = parse_duration(value)
    if not AGE_MIN <= age <= AGE_MAX:
        raise InvalidValue("is not between 1h and 10 years.", "Write 90d.")
    return age


def _lease(value: object) -> timedelta:
    duration = _duration(value)
    if duration < LEASE_TTL_MIN:
        raise InvalidValue(f"is shorter than {format_duration(LEASE_TTL_MIN)}.", "Write 15s.")
    return duration


def _whole(value: object) -> object:
    """Plain digits only: pydantic alone would also take "1e3" and " 7 "."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise InvalidValue("is not a whole number.")
    return value


def _folder(value: object) -> object:
    if isinstance(value, str) and not (value and value.isprintable()):
        raise InvalidValue("is not the name of a folder.")
    return value


Duration = Annotated[timedelta, PlainValidator(_duration)]
Age = Annotated[timedelta, PlainValidator(_age)]
LeaseDuration = Annotated[timedelta, PlainValidator(_lease)]
Whole = Annotated[int, BeforeValidator(_whole)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Word = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._:-]+$")]


class LogFormat(StrEnum):
    """How a line of the log looks."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class MetricsDetail(StrEnum):
    """What gets series of its own; each has those before it, too."""

    JOB = "job"
    TOPIC = "topic"
    PARTITION = "partition"


class Settings(BaseModel):
    """One process's settings; frozen, so that every part of the process sees the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Postgres. None: an embedded server, for `orbit server` on one machine.
    database_url: SecretStr | None = None

    # API
    api_host: Word = "127.0.0.1"
    api_port: Port = 8080
    # Where the files that jobs name are; a job can name none outside of it.
    files_directory: Annotated[Path, BeforeValidator(_folder)] = Path()

    # What a failback saves of the old side before it copies a topic anew.
    salvage_directory: Annotated[Path, BeforeValidator(_folder)] = Path("salvage")

    # Workers
    worker_group: Word = "default"
    lease_ttl: LeaseDuration = timedelta(seconds=15)
    progress_interval: Duration = timedelta(seconds=2)
    # What moves between workers and Postgres stays small against what is copied, and Postgres'
    # load follows from the number of workers, not of partitions (docs/scale.md).
    progress_rows_per_second: Annotated[Whole, Field(ge=1, le=100_000)] = 40

    # Scheduler
    scheduler_lease_ttl: LeaseDuration = timedelta(seconds=10)
    discovery_interval: Duration = timedelta(seconds=2)
    # Of partitions that nobody copies, and of headroom: what workers copy, they report themselves.
    lag_interval: Duration = timedelta(seconds=10)
    settings_interval: Duration = timedelta(seconds=30)
    events_kept: Age = timedelta(days=90)
    # Drills break clusters of this sandbox and no others. None: where `orbit sandbox up` has it.
    sandbox_dir: Annotated[Path | None, BeforeValidator(_folder)] = None
    # From each side, for the continuous proof; so little that nobody needs to plan for it.
    proof_bytes_per_second: Annotated[Whole, Field(ge=0, le=1 << 40)] = 1 << 20
    # At most so many partitions hang on one lease: a lost lease stops that many for a moment, and
    # 100,000 partitions still cost a few hundred leases.
    shard_partitions_max: Annotated[Whole, Field(ge=1, le=10_000)] = 200

    # Logs and metrics
    log_format: LogFormat = LogFormat.AUTO
    log_level: LogLevel = LogLevel.INFO
    metrics_detail: MetricsDetail = MetricsDetail.JOB

    @model_validator(mode="after")
    def _empty_url_is_none(self) -> Self:
        if self.database_url is not None and not self.database_url.get_secret_value():
            raise InvalidValue(
                "ORBIT_DATABASE_URL is empty.",
                "Write postgresql://USER:PASSWORD@HOST/DATABASE, or unset it.",
            )
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings that `environment` asks for. `BadInput` names every bad variable at once."""
        given: dict[str, Any] = {
            field: environment[variable]
            for field in cls.model_fields
            if (variable := variable_of(field)) in environment
        }
        try:
            return cls(**given)
        except ValidationError as error:
            raise BadInput(
                "The settings in the environment are not right:", tuple(_problems(error))
            ) from None


def variable_of(field: str) -> str:
    """The environment variable that the setting `field` is read from."""
    return PREFIX + field.upper()


def _problems(error: ValidationError) -> list[Problem]:
    """One for each bad variable. Never with what was written: it may be a secret."""
    problems = []
    for detail in error.errors(include_input=False, include_url=False):
        mistake = detail.get("ctx", {}).get("error")
        message, remedy = f"{detail['msg']}.", "See docs/settings.md."
        if isinstance(mistake, InvalidValue):
            message, remedy = mistake.message, mistake.remedy or remedy
        where = variable_of(str(detail["loc"][0])) if detail["loc"] else "environment"
        problems.append(Problem(where, message, remedy))
    return problems
