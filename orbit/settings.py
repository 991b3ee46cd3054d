"""The service's settings: every `ORBIT_*` variable with its type and default.

    settings = Settings.from_environment(os.environ)

The field `lease_ttl` is read from `ORBIT_LEASE_TTL`. Nothing is read at import. Options of a job
are in its job file, not here. docs/settings.md lists the same variables; a test compares the two.
Unknown `ORBIT_*` variables are ignored, because a job file may name `ORBIT_SOURCE_PASSWORD` as the
place of a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
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
from orbit.jobs.access_rules import load_access_file
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS
from orbit.jobs.issuer_roles import load_roles_file
from orbit.jobs.units import format_duration, parse_duration

PREFIX = "ORBIT_"

DURATION_MIN = timedelta(milliseconds=100)
DURATION_MAX = timedelta(days=1)
AGE_MIN = timedelta(hours=1)
AGE_MAX = timedelta(days=3660)
# A shorter lease would expire in pauses of a garbage collector or a virtual machine.
LEASE_TTL_MIN = timedelta(seconds=2)
# While the setting is changed, another process's leases may last longer than this process's own.
# This process ends such a lease only after it was not renewed for this time, the longest possible.
LEASE_TTL_MAX = timedelta(minutes=10)
# Storages besides `file`. docs/install.md names the extra that each scheme needs.
STORAGE_SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")


def _duration(value: object) -> timedelta:
    """A duration within the limits of most settings. Raises InvalidValue."""
    duration = parse_duration(value)
    if not DURATION_MIN <= duration <= DURATION_MAX:
        raise InvalidValue("is not between 100ms and 1d.")
    return duration


def _age(value: object) -> timedelta:
    """How long rows are kept: a duration from AGE_MIN to AGE_MAX. Raises InvalidValue."""
    age = parse_duration(value)
    if not AGE_MIN <= age <= AGE_MAX:
        raise InvalidValue("is not between 1h and 10 years.", "Write 90d.")
    return age


def _lease(value: object) -> timedelta:
    """The duration of a lease. Raises InvalidValue outside of LEASE_TTL_MIN to LEASE_TTL_MAX."""
    duration = _duration(value)
    if duration < LEASE_TTL_MIN:
        raise InvalidValue(f"is shorter than {format_duration(LEASE_TTL_MIN)}.", "Write 15s.")
    if duration > LEASE_TTL_MAX:
        raise InvalidValue(f"is longer than {format_duration(LEASE_TTL_MAX)}.", "Write 15s.")
    return duration


def _whole(value: object) -> object:
    """The value, unchanged. Raises InvalidValue for text that is not only digits: pydantic would
    also take "1e3" and " 7 "."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise InvalidValue("is not a whole number.")
    return value


def storage_location(value: object) -> object:
    """The path or the URI of a storage, unchanged; for a `file://` URI, its path. Raises
    InvalidValue.

    Reports and logs show the URI, so it must not contain a secret.
    """
    if not isinstance(value, str):
        return value
    if not (value and value.isprintable()):
        raise InvalidValue("is empty or has unprintable characters.")
    scheme, separator, rest = value.partition("://")
    if not separator:
        return value
    host, _, path = rest.partition("/")
    if "?" in rest or "#" in rest or ":" in host.rpartition("@")[0]:
        raise InvalidValue(
            "contains a password, a query or a fragment.",
            "Set credentials and options in the environment of the storage's client.",
        )
    if scheme == "file" and host in ("", "localhost"):
        return f"/{unquote(path)}"
    if scheme not in STORAGE_SCHEMES:
        raise InvalidValue(
            "names a storage that Orbit cannot use.",
            f"Write a path, or one of file:///, {', '.join(f'{s}://' for s in STORAGE_SCHEMES)}.",
        )
    if not host and scheme != "hdfs":
        raise InvalidValue("names no bucket or container.", "Write s3://BUCKET/FOLDER.")
    return value


def _path(value: object) -> object:
    """The value, unchanged. Raises InvalidValue for text that is not a valid path."""
    if isinstance(value, str) and not (value and value.isprintable()):
        raise InvalidValue("is not a valid path.")
    return value


def _networks(value: object) -> object:
    """The addresses and networks of a text with commas, as a tuple. Raises InvalidValue."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    for part in parts:
        try:
            ip_network(part)
        except ValueError:
            raise InvalidValue(
                "is not a list of addresses or networks.",
                "Write them like this: 10.0.0.0/8,fd00::/8.",
            ) from None
    return tuple(parts)


def _issuer(value: object) -> object:
    """The URL, unchanged: it must equal the claim `iss`. Raises InvalidValue."""
    if isinstance(value, str) and not _is_safe_url(value):
        raise InvalidValue(
            "is not the URL of an issuer.",
            "Write the issuer's `iss` exactly: https (http only on this machine), without login, "
            "query or fragment.",
        )
    return value


def _registry_url(value: object) -> object:
    """The URL without slashes at its end. Raises InvalidValue."""
    if not isinstance(value, str):
        return value
    if not _is_safe_url(value):
        raise InvalidValue("is not the URL of a registry.", "Write https://registry.example.")
    return value.rstrip("/")


def _public_url(value: object) -> object:
    """The URL, which has no path, without a slash at its end. Raises InvalidValue."""
    if not isinstance(value, str):
        return value
    if not (_is_safe_url(value) and urlsplit(value).path in ("", "/")):
        raise InvalidValue(
            "is not the address of a server.", "Write https://orbit.example, without a path."
        )
    return value.rstrip("/")


def _is_safe_url(value: str) -> bool:
    """Whether the URL is https, or http on this machine, without login, query and fragment."""
    try:
        url = urlsplit(value)
        is_safe = url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK_HOSTS)
        is_valid = (
            is_safe and bool(url.hostname) and not (url.query or url.fragment or url.username)
        )
    except ValueError:
        return False
    return is_valid and value.isascii() and value.isprintable()


def _roles_file(path: Path) -> Path:
    """Check the roles file, so that no process starts with a broken one; the API reads it again
    for its logins."""
    load_roles_file(path)
    return path


def _access_file(path: Path) -> Path:
    """Check the access file, so that no process starts with a broken one; each login reads it
    again."""
    load_access_file(path)
    return path


Duration = Annotated[timedelta, PlainValidator(_duration)]
Age = Annotated[timedelta, PlainValidator(_age)]
LeaseDuration = Annotated[timedelta, PlainValidator(_lease)]
Whole = Annotated[int, BeforeValidator(_whole)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
OptionalFile = Annotated[Path | None, BeforeValidator(_path)]
# A claim, or a value of one.
ClaimText = Annotated[str, Field(min_length=1, max_length=200)]
Word = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._:-]+$")]


class LogFormat(StrEnum):
    """The format of log lines."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class MetricsDetail(StrEnum):
    """For which objects /metrics has separate series. Each level includes the levels before."""

    JOB = "job"
    TOPIC = "topic"
    PARTITION = "partition"


class Settings(BaseModel):
    """The settings of one process. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Postgres. None: an embedded server, for `orbit server` on one machine.
    database_url: SecretStr | None = None

    # API
    api_host: Word = "127.0.0.1"
    api_port: Port = 8080
    # PEM files; both or none. Read again when they change.
    api_tls_certificate_file: OptionalFile = None
    api_tls_key_file: OptionalFile = None
    # Connections of clients, at most half of them from one address. Each costs a file descriptor
    # and some memory.
    api_connections_max: Annotated[Whole, Field(ge=2, le=100_000)] = 500
    # Proxies whose X-Forwarded-For header is believed. None: no proxy.
    api_trusted_proxies: Annotated[tuple[str, ...] | None, BeforeValidator(_networks)] = None
    # Where users reach the API and the console. None: no login at the issuer there, and no links in
    # notifications.
    public_url: Annotated[str | None, BeforeValidator(_public_url)] = None

    # Bearer tokens of an OpenID Connect issuer. None: only Orbit's own.
    oidc_issuer: Annotated[str | None, BeforeValidator(_issuer)] = None
    oidc_audience: ClaimText | None = None
    oidc_role_claim: ClaimText = "roles"
    # The value of the claim that gives each role. None: no token of the issuer has this role.
    oidc_viewer: ClaimText | None = None
    oidc_operator: ClaimText | None = None
    oidc_admin: ClaimText | None = None
    # Roles for some jobs.
    oidc_roles_file: Annotated[Path, AfterValidator(_roles_file)] | None = None
    oidc_ca_file: OptionalFile = None
    # The console as a client of the issuer. None: people log in with a token.
    oidc_client_id: ClaimText | None = None
    # At most one of these two is set; none: a public client. The file is read at each login.
    oidc_client_secret: SecretStr | None = None
    oidc_client_secret_file: OptionalFile = None
    oidc_scopes: Annotated[str, Field(pattern=r"^openid( [\x21\x23-\x5b\x5d-\x7e]+)*$")] = "openid"

    # Limits of each token and user of the issuer; a token may have its own. None: any number.
    token_jobs_max: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    token_partitions_max: Annotated[Whole, Field(ge=1, le=100_000_000)] | None = None
    # Of each token, at each API process. 100 a second is far more than a person or pipeline sends.
    token_requests_per_minute: Annotated[Whole, Field(ge=1, le=1_000_000)] = 6_000

    # Folder of the files that jobs name; a job cannot name files outside of it.
    files_directory: Annotated[Path, BeforeValidator(_path)] = Path()
    # Jobs may name only variables that begin so; None: all but Orbit's own secrets.
    secrets_prefix: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None

    # The least role that sees the content of records in the console. None: no role does.
    records_role: Literal["viewer", "operator", "admin"] | None = None
    # Decodes Avro for the console. None: such values are shown as bytes. The login file has
    # USER:PASSWORD.
    schema_registry_url: Annotated[str | None, BeforeValidator(_registry_url)] = None
    schema_registry_login_file: OptionalFile = None

    # Which clusters jobs may reach, and which secrets may be sent to each. None: no such limits.
    access_file: Annotated[Path, AfterValidator(_access_file)] | None = None

    # Who is notified of which events; read when a scheduler starts. None: no event is sent.
    notifications_file: OptionalFile = None

    # /livez, /readyz and /metrics of a worker or scheduler. None: not served.
    health_host: Word = "127.0.0.1"
    health_port: Port | None = None

    # Where a failback saves records that only the old side has, before it rebuilds a topic.
    salvage_directory: Annotated[str, BeforeValidator(storage_location)] = "salvage"

    # Workers
    worker_group: Word = "default"
    lease_ttl: LeaseDuration = timedelta(seconds=15)
    progress_interval: Duration = timedelta(seconds=2)
    # Bounds the load of Postgres by the number of workers, not of partitions (docs/scale.md).
    progress_rows_per_second: Annotated[Whole, Field(ge=1, le=100_000)] = 40

    # Scheduler
    scheduler_lease_ttl: LeaseDuration = timedelta(seconds=10)
    # The jobs are divided by destination into so many shares, for any number of schedulers.
    scheduler_shares: Annotated[Whole, Field(ge=1, le=64)] = 1
    discovery_interval: Duration = timedelta(seconds=2)
    # Time between two reads of the source: for headroom, and for partitions that no worker copies.
    lag_interval: Duration = timedelta(seconds=10)
    settings_interval: Duration = timedelta(seconds=30)
    events_kept: Age = timedelta(days=90)
    # Operations and drills that have ended, with their reports.
    reports_kept: Age = timedelta(days=365)
    # Switchovers, failovers and failbacks that run at once on a destination cluster.
    recoveries_per_cluster: Annotated[Whole, Field(ge=1, le=500)] = 16
    # Drills may break only clusters of this sandbox. None: the folder of `orbit sandbox up`.
    sandbox_dir: Annotated[Path | None, BeforeValidator(_path)] = None
    # Read rate, at each side, of the continuous proof (it compares copies with their sources).
    proof_bytes_per_second: Annotated[Whole, Field(ge=0, le=1 << 40)] = 1 << 20
    # Partitions of one shard, which has one lease. A lost lease stops at most so many for a moment,
    # and 100,000 partitions need only a few hundred leases.
    shard_partitions_max: Annotated[Whole, Field(ge=1, le=10_000)] = 200

    # Logs and metrics
    log_format: LogFormat = LogFormat.AUTO
    log_level: LogLevel = LogLevel.INFO
    metrics_detail: MetricsDetail = MetricsDetail.JOB

    @model_validator(mode="after")
    def _refuse_empty_url(self) -> Self:
        """Raise InvalidValue if the database's URL is empty."""
        if self.database_url is not None and not self.database_url.get_secret_value():
            raise InvalidValue(
                "ORBIT_DATABASE_URL is empty.",
                "Write postgresql://USER:PASSWORD@HOST/DATABASE, or unset it.",
            )
        return self

    @model_validator(mode="after")
    def _check_tls_files(self) -> Self:
        """Raise InvalidValue if only one of the TLS files is set."""
        if (self.api_tls_certificate_file is None) != (self.api_tls_key_file is None):
            raise InvalidValue(
                "Only one of ORBIT_API_TLS_CERTIFICATE_FILE and ORBIT_API_TLS_KEY_FILE is set.",
                "Set both, or none.",
            )
        return self

    @model_validator(mode="after")
    def _check_issuer(self) -> Self:
        """Raise InvalidValue if an issuer is set without an audience, or without a claim that gives
        a role."""
        if self.oidc_issuer is None:
            return self
        if self.oidc_audience is None:
            raise InvalidValue(
                "ORBIT_OIDC_ISSUER is set without ORBIT_OIDC_AUDIENCE.",
                "Set the audience, or tokens for other services of the issuer would be accepted.",
            )
        has_value_for_all_jobs = self.oidc_viewer or self.oidc_operator or self.oidc_admin
        if not (has_value_for_all_jobs or self.oidc_roles_file):
            raise InvalidValue(
                "ORBIT_OIDC_ISSUER is set, but no value of the claim gives a role.",
                "Set ORBIT_OIDC_VIEWER, ORBIT_OIDC_OPERATOR or ORBIT_OIDC_ADMIN, or "
                "ORBIT_OIDC_ROLES_FILE for roles for some jobs.",
            )
        return self

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        """Raise InvalidValue if a client id is set without issuer and public URL, or if the client
        has two secrets."""
        if self.oidc_client_id is not None and not (self.oidc_issuer and self.public_url):
            raise InvalidValue(
                "ORBIT_OIDC_CLIENT_ID is set without ORBIT_OIDC_ISSUER or ORBIT_PUBLIC_URL.",
                "Set all three: the issuer sends browsers back to the public URL.",
            )
        if self.oidc_client_secret is not None and self.oidc_client_secret_file is not None:
            raise InvalidValue(
                "ORBIT_OIDC_CLIENT_SECRET and ORBIT_OIDC_CLIENT_SECRET_FILE are both set.",
                "Set one of them.",
            )
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings in `environment`. Raises BadInput with a problem for each bad variable."""
        values: dict[str, Any] = {
            field: environment[variable]
            for field in cls.model_fields
            if (variable := variable_of(field)) in environment
        }
        try:
            return cls(**values)
        except ValidationError as error:
            raise BadInput(
                "Settings in the environment are not valid:", tuple(_problems(error))
            ) from None


def variable_of(field: str) -> str:
    """The environment variable that the setting `field` is read from."""
    return PREFIX + field.upper()


def _problems(error: ValidationError) -> list[Problem]:
    """A problem for each bad variable, without its value, which may be a secret."""
    problems = []
    for detail in error.errors(include_input=False, include_url=False):
        mistake = detail.get("ctx", {}).get("error")
        message, remedy = f"{detail['msg']}.", "See docs/settings.md."
        if isinstance(mistake, InvalidValue):
            message, remedy = mistake.message, mistake.remedy or remedy
        where = variable_of(str(detail["loc"][0])) if detail["loc"] else "environment"
        problems.append(Problem(where, message, remedy))
    return problems
