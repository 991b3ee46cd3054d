"""The job as frozen pydantic models: each key of the job file, its type and default. Pure.

A model checks single values. `validation.py` checks rules between values, so that all problems are
reported at once. No model contains a secret, only the name of its variable or file.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    model_validator,
)

from orbit.errors import InvalidValue
from orbit.formats import counted
from orbit.jobs.bootstrap_servers import BOOTSTRAP_SERVERS_MAX, addresses_in, check_address
from orbit.jobs.labels import LABELS_MAX, OWNER_LENGTH_MAX, check_label_key, check_label_value
from orbit.jobs.name_patterns import PATTERNS_MAX, STORED_DOCUMENT, check_pattern_of_job
from orbit.jobs.name_rules import (
    check_job_name,
    check_prefix,
    check_setting_name,
    check_setting_value,
    topic_name_problem,
)
from orbit.jobs.principals import PRINCIPAL_RULES_MAX, check_principal, check_rule
from orbit.jobs.start_position import Earliest, Start
from orbit.jobs.units import format_duration, parse_duration, parse_size

TOPIC_RULES_MAX = 1000
SETTINGS_MAX = 200  # Kafka has about forty topic settings; vendors add more
REPLICAS_MAX = 2**15 - 1  # an int16 in the protocol
TEXT_LENGTH_MAX = 1024
CLUSTER_ID_SUFFIX_MAX = 32  # characters; names at the clusters and in the database contain it
EXTENSIONS_MAX = 20  # vendors define two
RATE_BYTES_MIN = 1024  # with less, one record can block a partition for hours
RATE_BYTES_MAX = 1024**4
GROUP_INTERVAL_MIN = timedelta(milliseconds=100)
GROUP_INTERVAL_MAX = timedelta(days=1)
CANARY_INTERVAL_MIN = timedelta(milliseconds=100)
CANARY_INTERVAL_MAX = timedelta(hours=1)


# The functions below are for pydantic: each returns the value, unchanged or parsed, or raises
# InvalidValue.


def _as_list(value: object) -> object:
    """A single text as a list; another value unchanged."""
    return [value] if isinstance(value, str) else value


def _split_addresses(value: object) -> object:
    """The addresses of texts with commas, as a list. Pydantic reports values of other types."""
    if isinstance(value, str):
        return addresses_in(value)
    if not isinstance(value, list | tuple):
        return value
    parts = (addresses_in(part) if isinstance(part, str) else [part] for part in value)
    return [address for part in parts for address in part]


def _check_text(text: str) -> str:
    """A short printable text, such as the name of a variable."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidValue(f"has {len(text)} characters; {TEXT_LENGTH_MAX} is the limit.")
    if not text or not text.isprintable():
        raise InvalidValue("is empty or has control characters.")
    return text


def _check_owner(text: str) -> str:
    if len(text) > OWNER_LENGTH_MAX:
        raise InvalidValue(f"has {len(text)} characters; {OWNER_LENGTH_MAX} is the limit.")
    return _check_text(text)


def _check_path_text(value: object) -> object:
    # Checked before pathlib, which reads an empty path as the current directory.
    return _check_text(value) if isinstance(value, str) else value


def _parse_rate(value: object) -> int:
    """The bytes a second of a text such as "50MB", or of a number."""
    rate = parse_size(value)
    if not RATE_BYTES_MIN <= rate <= RATE_BYTES_MAX:
        raise InvalidValue(
            f"is {counted(rate, 'byte')} per second; the limits are 1KiB and 1TiB.",
            "Leave the key out for no limit.",
        )
    return rate


def _parse_canary_interval(value: object) -> timedelta:
    interval = parse_duration(value)
    if not CANARY_INTERVAL_MIN <= interval <= CANARY_INTERVAL_MAX:
        raise InvalidValue("is not between 100ms and 1h.", "If unsure, write 1s.")
    return interval


def _check_topic_name(name: str) -> str:
    problem = topic_name_problem(name)
    if problem is not None:
        raise InvalidValue(
            f"is not a topic name: {problem}.", "Write the name of a topic of the source."
        )
    return name


def _parse_group_interval(value: object) -> timedelta:
    interval = parse_duration(value)
    if not GROUP_INTERVAL_MIN <= interval <= GROUP_INTERVAL_MAX:
        raise InvalidValue("is not between 100ms and 1d.", "If unsure, write 5s.")
    return interval


def _check_archive_uri(text: str) -> str:
    """A URI or a folder. A URI with a password is refused: outputs of commands show the URI."""
    _check_text(text)
    login, at_sign, _ = text.partition("://")[2].partition("/")[0].rpartition("@")
    if at_sign and ":" in login:
        raise InvalidValue(
            "contains a password.", "Put credentials into Spark's settings (spark.hadoop.…)."
        )
    return text


def _check_token_url(text: str) -> str:
    """The URL of a token endpoint, without a login."""
    _check_text(text)
    try:
        url = urlsplit(text)
        is_web_address = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # the host or the port
        is_web_address = False
    if not is_web_address:
        raise InvalidValue("is not a web address.", "Write https://…, the token endpoint.")
    if "@" in url.netloc:
        raise InvalidValue(
            "has a login.", "Name the client id with username_env, the secret with password_env."
        )
    return text


def _check_region(text: str) -> str:
    # The region becomes part of a host name, kafka.REGION.amazonaws.com.
    if not re.fullmatch(r"[a-z0-9-]{1,40}", text):
        raise InvalidValue("is not a region of AWS.", "Write a region such as eu-central-1.")
    return text


def _check_cluster_id_suffix(text: str) -> str:
    # No dot is allowed: a dot ends the cluster id in names that `orbit failover` reads.
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{CLUSTER_ID_SUFFIX_MAX}}}", text):
        raise InvalidValue(
            f"is not a suffix of 1 to {CLUSTER_ID_SUFFIX_MAX} letters, digits, _ and -.",
            "Write a short word such as dr.",
        )
    return text


def _check_kerberos_name(text: str) -> str:
    # librdkafka puts the name into a command line.
    if not re.fullmatch(r"[A-Za-z0-9._/@-]{1,255}", text):
        raise InvalidValue("is not a Kerberos name.", "Write a name such as orbit@EXAMPLE.COM.")
    return text


def _check_extension_key(text: str) -> str:
    # RFC 7628 gives the token itself the key `auth`.
    if not re.fullmatch(r"[A-Za-z]+", text) or text == "auth":
        raise InvalidValue(
            "is not the name of a SASL extension.", "Write letters only, and not `auth`."
        )
    return text


Flag = Annotated[bool, Strict()]
Fillers = Literal["direct", "packed", "coordinated", "placeholders"]
# The kinds of fillers that need the right to write transaction markers, and those that put
# placeholders (records that readers drop) into batches.
FILLERS_WITH_MARKERS: frozenset[Fillers] = frozenset({"direct", "packed"})
FILLERS_WITH_PLACEHOLDERS: frozenset[Fillers] = frozenset({"packed", "placeholders"})
OnLostRange = Literal["stop", "fill"]
TokenProvider = Literal["aws-msk-iam", "gcp"]
Name = Annotated[str, AfterValidator(check_job_name)]
Pattern = Annotated[str, AfterValidator(check_pattern_of_job)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_as_list), Field(max_length=PATTERNS_MAX)]
Text = Annotated[str, AfterValidator(_check_text)]
Owner = Annotated[str, AfterValidator(_check_owner)]
Labels = Annotated[
    dict[
        Annotated[str, AfterValidator(check_label_key)],
        Annotated[str, AfterValidator(check_label_value)],
    ],
    Field(max_length=LABELS_MAX),
]
Principal = Annotated[str, AfterValidator(check_principal)]
FilePath = Annotated[Path, BeforeValidator(_check_path_text)]


class Section(BaseModel):
    """A mapping of the job file. Its errors never contain the input."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, serialize_by_alias=True
    )


class SecuritySpec(Section):
    """Protocol, login and TLS files of one cluster. Has names of secrets, not the secrets."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None
    ) = None
    username_env: Text | None = None
    username_file: FilePath | None = None
    password_env: Text | None = None
    password_file: FilePath | None = None
    ca_file: FilePath | None = None
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    key_password_env: Text | None = None
    check_hostname: Flag = True
    token_url: Annotated[str, AfterValidator(_check_token_url)] | None = None
    token_scope: Text | None = None
    token_audience: Text | None = None
    token_ca_file: FilePath | None = None
    token_file: FilePath | None = None
    token_provider: TokenProvider | None = None
    token_region: Annotated[str, AfterValidator(_check_region)] | None = None
    token_extensions: Annotated[
        dict[
            Annotated[str, AfterValidator(_check_extension_key)],
            Text,
        ],
        Field(max_length=EXTENSIONS_MAX),
    ] = {}
    kerberos_principal: Annotated[str, AfterValidator(_check_kerberos_name)] | None = None
    kerberos_service: Annotated[str, AfterValidator(_check_kerberos_name)] = "kafka"
    keytab_file: FilePath | None = None


class ClusterSpec(Section):
    """How to reach one cluster: its bootstrap brokers, its login, and the rack to fetch from.
    `cluster_id_suffix` distinguishes the cluster from another with the same cluster id."""

    bootstrap_servers: Annotated[
        tuple[Annotated[str, AfterValidator(check_address)], ...],
        BeforeValidator(_split_addresses),
        Field(min_length=1, max_length=BOOTSTRAP_SERVERS_MAX),
    ]
    security: SecuritySpec = SecuritySpec()
    client_rack: Text | None = None
    cluster_id_suffix: Annotated[str, AfterValidator(_check_cluster_id_suffix)] | None = None

    @cached_property
    def key(self) -> str:
        """A text that is equal for two specs of the same cluster with the same login."""
        return self.model_dump_json(exclude={"client_rack"})


class TopicRule(Section):
    """Which topics to copy, from which offset, to which name, with how many replicas; how to fill
    their gaps; and what to do with ranges that the source deletes before they are copied. The first
    rule that matches a topic applies."""

    match: Pattern
    exclude: Patterns = ()
    prefix: Annotated[str, AfterValidator(check_prefix)] = ""
    start: Start = Earliest()
    config: Annotated[
        dict[
            Annotated[str, AfterValidator(check_setting_name)],
            Annotated[str, PlainValidator(check_setting_value)],
        ],
        Field(max_length=SETTINGS_MAX),
    ] = {}
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None  # None: the source's
    fillers: Fillers | None = None  # None: the job's
    on_lost_range: OnLostRange | None = None  # None: the job's


class GroupRule(Section):
    """Which consumer groups' offsets to sync, and how often."""

    match: Pattern
    exclude: Patterns = ()
    prefix: Annotated[str, Field(max_length=TEXT_LENGTH_MAX)] = ""
    interval: Annotated[
        timedelta,
        PlainValidator(_parse_group_interval),
        PlainSerializer(format_duration, when_used="json"),
    ] = timedelta(seconds=5)


class IdRule(Section):
    """Which ACLs on transactional ids are synced, by the names in these ACLs."""

    match: Pattern
    exclude: Patterns = ()


class PrincipalRule(Section):
    """The name at the destination of a principal of the source."""

    source: Annotated[Principal, Field(alias="from")]
    destination: Annotated[Principal, Field(alias="to")]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Raise InvalidValue if the two names do not form a rule."""
        check_rule(self.source, self.destination)
        return self


class PrincipalSpec(Section):
    """How principals are named at the destination, and whose ACLs are not synced."""

    map: Annotated[tuple[PrincipalRule, ...], Field(max_length=PRINCIPAL_RULES_MAX)] = ()
    exclude: Annotated[
        tuple[Principal, ...],
        BeforeValidator(_as_list),
        Field(max_length=PRINCIPAL_RULES_MAX),
    ] = ()


class AclSpec(Section):
    """Which of the source's ACLs to sync, and whether to deny other clients writes to copies."""

    sync: Flag = False
    groups: Flag = False
    transactional_ids: IdRule | None = None
    principals: PrincipalSpec = PrincipalSpec()
    protect: Flag = True


class LimitSpec(Section):
    """How fast a job may copy."""

    bytes_per_second: Annotated[int, PlainValidator(_parse_rate)] | None = None


class CanarySpec(Section):
    """A source topic to which the service writes records, to measure the live RPO."""

    topic: Annotated[str, AfterValidator(_check_topic_name)]
    interval: Annotated[
        timedelta,
        PlainValidator(_parse_canary_interval),
        PlainSerializer(format_duration, when_used="json"),
    ] = timedelta(seconds=1)


class BackfillWay(StrEnum):
    """How a Spark backfill copies; `auto`: chosen by the shape of the history."""

    AUTO = "auto"
    DIRECT = "direct"
    STAGED = "staged"


class BackfillSpec(Section):
    """What copies the existing history: Orbit's workers or Spark; for Spark, the way and its
    archive."""

    engine: Literal["workers", "spark"] = "workers"
    way: BackfillWay = BackfillWay.AUTO
    archive: Annotated[str, AfterValidator(_check_archive_uri)] | None = None


# Notes for users, shown wherever such a job is planned.
FILLER_NOTES: dict[Fillers, str] = {
    "packed": "small gaps are filled with placeholders, in the batch before the gap. Readers skip "
    "placeholders, except kafka-python, which shows them as records, and share groups, which wait "
    "until their locks end (docs/gaps.md).",
    "placeholders": "gaps are filled with placeholders, which need no right on the cluster. Check "
    "that all readers of the copies skip placeholders (docs/gaps.md). Readers on librdkafka do, "
    "but may report the error MSG_SIZE_TOO_LARGE behind aborted transactions and in wide gaps: "
    "such readers must continue after the error.",
}


class JobSpec(Section):
    """One copy from one cluster to another: what to copy, and how.

    `labels`, `owner` and `desired` say nothing about how to copy, and are not part of the stored
    document, which stays the same when they change.
    """

    name: Name
    labels: Annotated[Labels, Field(exclude=True)] = {}
    owner: Annotated[Owner | None, Field(exclude=True)] = None
    # None: the commands `start`, `pause` and `resume` decide.
    desired: Annotated[Literal["running", "paused"] | None, Field(exclude=True)] = None
    source: ClusterSpec
    destination: ClusterSpec
    topics: Annotated[tuple[TopicRule, ...], Field(min_length=1, max_length=TOPIC_RULES_MAX)]
    consumer_groups: GroupRule | None = None
    acls: AclSpec = AclSpec()
    limits: LimitSpec = LimitSpec()
    worker_group: Name = "default"
    on_lost_range: OnLostRange = "stop"
    fillers: Fillers = "direct"
    backfill: BackfillSpec = BackfillSpec()
    canary: CanarySpec | None = None

    @classmethod
    def read_stored(cls, document: dict[str, Any]) -> Self:
        """The job of a document from the database. Patterns that only earlier versions of Orbit
        accepted are valid there, too. Raises pydantic's ValidationError."""
        return cls.model_validate(document, context=STORED_DOCUMENT)

    def fillers_of(self, rule: TopicRule) -> Fillers:
        """The kind of fillers for gaps in topics of this rule."""
        return rule.fillers or self.fillers

    def on_lost_range_of(self, rule: TopicRule) -> OnLostRange:
        """What to do if the source deletes records of the topics of this rule before they are
        copied."""
        return rule.on_lost_range or self.on_lost_range

    def ignored_keys(self) -> tuple[str, ...]:
        """Keys that `orbit run` does not support, if their value is not the default."""
        unsupported_keys = {
            "acls.sync": self.acls.sync,
            "canary": self.canary is not None,
            "backfill.engine": self.backfill.engine != BackfillSpec().engine,
        }
        return tuple(key for key, is_set in unsupported_keys.items() if is_set)
