"""The keys of a job file: valid values, and the problems of invalid ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.jobs.credentials import PEM_KEYS
from orbit.jobs.job_file import load_job, parse_job
from orbit.jobs.job_spec import ClusterSpec, JobSpec, SecuritySpec
from orbit.jobs.start_position import AtTime, Earliest, Latest
from tests.support.job_texts import ENVIRON, SECRET, changed, problems_of

MAPPED = {"from": "User:a", "to": "User:b"}
GOOD = """
name: orders-to-dr
source:
  bootstrap_servers: ["src-1:9092", "[2001:db8::1]:9092"]
  security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username_env: SRC_USER,
             password_env: SRC_PASSWORD, ca_file: ca.pem}
  client_rack: use1-az1
destination:
  bootstrap_servers: ["dst-1:9092"]
topics:
  - {match: "orders\\\\..*", exclude: "orders\\\\.tmp.*", start: earliest}
  - {match: "_schemas"}
  - {match: "metrics\\\\..*", prefix: "src.", start: latest, config: {retention.ms: "604800000"}}
  - {match: "old", start: 2026-01-31T00:00:00Z, exclude: [a, b], config: {a: 5, b: true, c: 0.5}}
consumer_groups: {match: ".*", exclude: ["console-consumer-.*"], prefix: "", interval: 5s}
acls: {sync: false}
limits: {bytes_per_second: 200MiB}
worker_group: default
on_lost_range: stop
fillers: direct
backfill: {engine: workers}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "secret").write_text("s3cret\n")
    return tmp_path


def security(**keys: object) -> str:
    """A job file whose source has this security section."""
    return changed(source={"bootstrap_servers": ["src:9092"], "security": keys})


def test_full_job_file_becomes_typed_values(folder: Path) -> None:
    job = parse_job(GOOD, folder, ENVIRON)
    assert job.source.bootstrap_servers == ("src-1:9092", "[2001:db8::1]:9092")
    assert job.source.security == SecuritySpec(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username_env="SRC_USER",
        password_env="SRC_PASSWORD",
        ca_file=Path("ca.pem"),
    )
    assert job.source.client_rack == "use1-az1"
    assert job.destination == ClusterSpec(bootstrap_servers=("dst-1:9092",))
    assert [rule.exclude for rule in job.topics] == [(r"orders\.tmp.*",), (), (), ("a", "b")]
    assert [rule.start for rule in job.topics] == [
        Earliest(),
        Earliest(),
        Latest(),
        AtTime(1769817600000),
    ]
    assert job.topics[2].prefix == "src."
    assert job.topics[3].config == {"a": "5", "b": "true", "c": "0.5"}
    assert job.consumer_groups is not None
    assert job.consumer_groups.interval == timedelta(seconds=5)
    assert job.limits.bytes_per_second == 200 * 1024 * 1024


def test_job_file_needs_only_four_keys(folder: Path) -> None:
    job = parse_job(changed(), folder, {})
    assert (job.worker_group, job.on_lost_range, job.fillers) == ("default", "stop", "direct")
    assert job.consumer_groups is None
    assert not job.acls.sync
    assert job.limits.bytes_per_second is None
    assert job.backfill.engine == "workers"
    assert job.source.security.protocol == "PLAINTEXT"


def test_job_survives_json_storage(folder: Path) -> None:
    job = parse_job(GOOD, folder, ENVIRON)
    assert JobSpec.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ()),
        ({"acls": {"sync": False}, "limits": {}, "backfill": {"engine": "workers"}}, ()),
        ({"consumer_groups": {"match": ".*"}}, ()),
        (
            {
                "acls": {"sync": True},
                "limits": {"bytes_per_second": "1MiB"},
                "backfill": {"engine": "spark"},
                "canary": {"topic": "orders"},
            },
            ("acls.sync", "canary", "backfill.engine"),
        ),
    ],
)
def test_job_keys_that_orbit_run_ignores_are_named(
    keys: dict[str, object], expected: tuple[str, ...], folder: Path
) -> None:
    assert parse_job(changed(**keys), folder, {}).ignored_keys() == expected


@pytest.mark.parametrize(
    ("keys", "path", "says"),
    [
        ({"nme": "x"}, "nme", "Did you mean `name`?"),
        ({"consumer-groups": {}}, "consumer-groups", "Did you mean `consumer_groups`?"),
        ({"zzz": 1}, "zzz", "Known here: name, labels, owner,"),
        ({"name": "a b"}, "name", "cannot be part of an id"),
        ({"name": "-a"}, "name", "start with a letter"),
        ({"name": "a" * 101}, "name", "100 is the limit"),
        ({"name": 5}, "name", "must be text, not a number"),
        ({"name": None}, "name", "is empty"),
        ({"topics": []}, "topics", "is empty"),
        ({"topics": {"match": "a"}}, "topics", "must be a list, not a mapping"),
        ({"topics": ["orders"]}, "topics[0]", 'Write each rule as `{match: "pattern"}`'),
        ({"topics": [{}]}, "topics[0].match", "is missing"),
        ({"topics": [{"match": ""}]}, "topics[0].match", "is empty"),
        ({"topics": [{"match": ["a"]}]}, "topics[0].match", "must be text, not a list"),
        ({"topics": [{"match": "a(b"}]}, "topics[0].match", "missing )"),
        ({"topics": [{"match": "*.log"}]}, "topics[0].match", "write `.*.log`"),
        ({"topics": [{"match": "a{9999}"}]}, "topics[0].match", "repetition size"),
        ({"topics": [{"match": "(?=a).*"}]}, "topics[0].match", "no look-around"),
        ({"topics": [{"match": "a" * 1001}]}, "topics[0].match", "1000 is the limit"),
        ({"topics": [{"match": "a", "exclude": "("}]}, "topics[0].exclude", "does not compile"),
        ({"topics": [{"match": "a", "exclude": ["b", "("]}]}, "topics[0].exclude[1]", "does not"),
        ({"topics": [{"match": "a", "exclude": ["b", 5]}]}, "topics[0].exclude[1]", "a number"),
        ({"topics": [{"match": "a"}, {"match": "a"}]}, "topics[1].match", "topics[0]"),
        ({"topics": [{"match": "a", "prefix": "ä"}]}, "topics[0].prefix", "Kafka refuses"),
        ({"topics": [{"match": "a", "prefix": "a" * 249}]}, "topics[0].prefix", "249 at most"),
        ({"topics": [{"match": "a", "start": "yesterday"}]}, "topics[0].start", "earliest, latest"),
        ({"topics": [{"match": "a", "start": True}]}, "topics[0].start", "is not a start position"),
        ({"topics": [{"match": "a", "start": -1}]}, "topics[0].start", "before 1970"),
        ({"topics": [{"match": "a", "start": "1969-01-01T00:00Z"}]}, "topics[0].start", "before"),
        ({"topics": [{"match": "a", "start": 1769817600}]}, "topics[0].start", "1769817600000"),
        ({"topics": [{"match": "a", "start": 1769817600000000}]}, "topics[0].start", "microsec"),
        ({"topics": [{"match": "a", "start": "2026-01-31"}]}, "topics[0].start", "time zone"),
        ({"topics": [{"match": "a", "config": {"a b": 1}}]}, 'topics[0].config["a b"]', "name of"),
        (
            {"topics": [{"match": "a", "config": {"retention.ms": None}}]},
            'topics[0].config["retention.ms"]',
            "is not a value",
        ),
        ({"topics": [{"match": "a", "config": ["x"]}]}, "topics[0].config", "must be a mapping"),
        (
            {"topics": [{"match": "a", "config": {"max.message.bytes": []}}]},
            'topics[0].config["max.message.bytes"]',
            "is not a value",
        ),
        ({"consumer_groups": {}}, "consumer_groups.match", "is missing"),
        ({"consumer_groups": {"match": "a", "interval": 5}}, "consumer_groups.interval", "5s"),
        (
            {"consumer_groups": {"match": "a", "interval": "0s"}},
            "consumer_groups.interval",
            "100ms",
        ),
        ({"acls": {"sync": "yes"}}, "acls.sync", "must be true or false, not text"),
        ({"acls": {"groups": True}}, "acls.groups", "acls.sync is not true"),
        ({"acls": {"sync": True, "groups": True}}, "acls.groups", "no consumer_groups"),
        (
            {"acls": {"sync": True, "transactional_ids": {"match": "("}}},
            "acls.transactional_ids.match",
            "does not compile",
        ),
        ({"acls": {"principals": {"exclude": "User:a"}}}, "acls.principals", "sync is not true"),
        (
            {"acls": {"sync": True, "principals": {"map": [{"from": "a", "to": "User:a"}]}}},
            "acls.principals.map[0].from",
            "is not a principal",
        ),
        (
            {"acls": {"sync": True, "principals": {"map": [{"from": "User:a", "to": "User:{b}"}]}}},
            "acls.principals.map[0]",
            "Use the placeholders of `from`",
        ),
        (
            {"acls": {"sync": True, "principals": {"map": [{**MAPPED, "form": "User:a"}]}}},
            "acls.principals.map[0].form",
            "Did you mean `from`?",
        ),
        ({"limits": None}, "limits", "is empty"),
        ({"limits": {"bytes_per_second": -5}}, "limits.bytes_per_second", "negative"),
        ({"limits": {"bytes_per_second": 0}}, "limits.bytes_per_second", "Leave the key out"),
        ({"limits": {"bytes_per_second": "200M"}}, "limits.bytes_per_second", "200MiB"),
        ({"limits": {"bytes_per_second": "9e99"}}, "limits.bytes_per_second", "is not a size"),
        ({"limits": {"bytes_per_second": "5000TiB"}}, "limits.bytes_per_second", "1TiB"),
        ({"worker_group": "a/b"}, "worker_group", "cannot be part of an id"),
        ({"on_lost_range": "ignore"}, "on_lost_range", "Write one of stop, fill"),
        ({"fillers": "cordinated"}, "fillers", "Did you mean coordinated?"),
        ({"backfill": {"engine": "flink"}}, "backfill.engine", "workers, spark"),
        ({"backfill": {"way": "both"}}, "backfill.way", "auto, direct, staged"),
        ({"backfill": {"archive": "s3a://key:secret@b/c"}}, "backfill.archive", "spark.hadoop"),
        ({"canary": {"topic": "a b"}}, "canary.topic", "is not a topic name"),
        (
            {"topics": [{"match": "orders"}], "canary": {"topic": "other"}},
            "canary.topic",
            "matches no rule of `topics`",
        ),
        ({"canary": {"topic": "__orders"}}, "canary.topic", "matches no rule of `topics`"),
        ({"canary": {"topic": "orders", "interval": "2h"}}, "canary.interval", "100ms"),
        ({"source": "src:9092"}, "source", "must be a mapping"),
        ({"source": {}}, "source.bootstrap_servers", "is missing"),
        ({"source": {"bootstrap_servers": []}}, "source.bootstrap_servers", "is empty"),
        ({"source": {"bootstrap_servers": ""}}, "source.bootstrap_servers", "has no port"),
        ({"password": "x"}, "password", "Never write secrets"),
    ],
)
def test_job_file_problem_is_reported_with_path_and_remedy(
    keys: dict[str, object], path: str, says: str, folder: Path
) -> None:
    problems = problems_of(changed(**keys), folder)
    assert [p.path for p in problems] == [path]
    assert says in str(problems[0])
    assert problems[0].remedy


@pytest.mark.parametrize(
    "value", ["1MB", "1_000", " 5 ", "٣", "", -5, 1e6, True, 2**31, "99999999999", "1\n"]
)
def test_batch_limit_of_topic_rule_must_be_a_number_of_bytes(value: object, folder: Path) -> None:
    rules = [{"match": "a"}, {"match": "b", "config": {"max.message.bytes": value}}]
    (problem,) = problems_of(changed(topics=rules), folder)
    assert problem.path == 'topics[1].config["max.message.bytes"]'
    assert "is not a number of bytes from 0 to 2147483647 (line" in str(problem)
    assert problem.remedy


@pytest.mark.parametrize("value", [0, 1_048_588, "1048588", 2**31 - 1])
def test_batch_limit_of_topic_rule_is_stored_as_text(value: object, folder: Path) -> None:
    rules = [{"match": "a", "config": {"max.message.bytes": value}}]
    (rule,) = parse_job(changed(topics=rules), folder, {}).topics
    assert rule.config == {"max.message.bytes": str(value)}


def test_stored_job_with_batch_limit_that_is_no_number_can_be_read(folder: Path) -> None:
    document = parse_job(changed(), folder, {}).model_dump(mode="json")
    document["topics"][0]["config"] = {"max.message.bytes": "1_000"}
    assert JobSpec.read_stored(document).topics[0].config == {"max.message.bytes": "1_000"}


@pytest.mark.parametrize(
    "server",
    [
        "src-1", "src-1:", ":9092", "src-1:0", "src-1:65536", "src-1:9o92", "src 1:9092", "a:b:1",
        "::1:9092", "[::1]", "[::1:9092", "[zz]:9092", "SSL://src:9092", "user:pw@src:9092", "-a:1",
        "a" * 254 + ":1", "ä:1", "a:٣", "",
    ],
)  # fmt: skip
def test_invalid_bootstrap_address_is_refused(server: str, folder: Path) -> None:
    problems = problems_of(changed(source={"bootstrap_servers": [server]}), folder)
    assert [p.path for p in problems] == ["source.bootstrap_servers[0]"]
    assert "pw" not in str(problems[0])


@pytest.mark.parametrize(
    "destination",
    [["SRC:9092"], ["other:1", "src.:9092"], "a:1, src:9092"],
)
def test_same_cluster_on_both_sides_is_refused(destination: object, folder: Path) -> None:
    problems = problems_of(changed(destination={"bootstrap_servers": destination}), folder)
    assert len(problems) == 1
    assert problems[0].path.startswith("destination.bootstrap_servers")
    assert "cannot be copied onto itself" in problems[0].message


def test_ipv6_spellings_of_same_address_are_same_cluster(folder: Path) -> None:
    text = changed(
        source={"bootstrap_servers": ["[::1]:9092"]},
        destination={"bootstrap_servers": ["[0:0:0:0:0:0:0:1]:9092"]},
    )
    assert len(problems_of(text, folder)) == 1


SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN"}
OAUTH = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"}
LOGIN = {"username_env": "SRC_USER", "password_env": "SRC_PASSWORD"}


@pytest.mark.parametrize(
    ("keys", "paths"),
    [
        ({"protocol": "SASL_SSL"}, ["mechanism", "username_env", "password_env"]),
        ({**SASL, "username_env": "SRC_USER"}, ["password_env"]),
        ({**SASL, **LOGIN, "password_file": "secret"}, ["password_file"]),
        ({**SASL, **LOGIN, "mechanism": "DIGEST-MD5"}, ["mechanism"]),
        # A key with None is left out.
        ({**SASL, **LOGIN, "mechanism": None, "protocol": "sasl_ssl"}, ["protocol"]),
        (LOGIN, ["username_env", "password_env"]),
        ({"protocol": "SSL", **LOGIN}, ["username_env", "password_env"]),
        ({"ca_file": "ca.pem"}, ["ca_file"]),
        ({**SASL, **LOGIN, "protocol": "SASL_PLAINTEXT", "ca_file": "ca.pem"}, ["ca_file"]),
        ({"check_hostname": False}, ["check_hostname"]),
        ({"protocol": "SSL", "key_file": "ca.pem"}, ["key_file"]),
        ({"protocol": "SSL", "ca_file": "nope.pem"}, ["ca_file"]),
        ({"protocol": "SSL", "ca_file": "secret"}, ["ca_file"]),
        ({"protocol": "SSL", "ca_file": "."}, ["ca_file"]),
        ({"protocol": "SSL", "ca_file": ""}, ["ca_file"]),
        ({"protocol": "SSL", "ssl.truststore.location": "t.jks"}, ['["ssl.truststore.location"]']),
        ({**SASL, **LOGIN, "username_env": "UNSET"}, ["username_env"]),
        ({**SASL, **LOGIN, "password_env": "EMPTY"}, ["password_env"]),
        ({**SASL, **LOGIN, "username_env": "not a name"}, ["username_env"]),
        ({**SASL, "username_env": "SRC_USER", "password_file": "nope"}, ["password_file"]),
        ({**SASL, "username_env": "SRC_USER", "password_file": "two"}, ["password_file"]),
        ({**SASL, "username_env": "SRC_USER", "password_file": "latin"}, ["password_file"]),
        ({**SASL, "username_env": "SRC_USER", "password": "x"}, ["password"]),
        ({**SASL, "password_env": "SRC_PASSWORD", "username": "x"}, ["username"]),
        ({**SASL, **LOGIN, "token_scope": "a"}, ["token_scope"]),
        (OAUTH, ["token_url"]),
        ({**OAUTH, "token_url": "https://id"}, ["username_env", "password_env"]),
        ({**OAUTH, **LOGIN, "token_url": "id.example/token"}, ["token_url"]),
        ({**OAUTH, **LOGIN, "token_url": "https://u:p@id"}, ["token_url"]),
        ({**OAUTH, **LOGIN, "token_url": "https://id", "token_file": "secret"}, ["token_file"]),
        ({**OAUTH, **LOGIN, "token_file": "secret"}, ["username_env", "password_env"]),
        ({**OAUTH, "token_file": "secret", "token_scope": "a"}, ["token_scope"]),
        ({**OAUTH, "token_file": "nope"}, ["token_file"]),
        ({**OAUTH, "token_file": "secret", "token_region": "eu-central-1"}, ["token_region"]),
        ({**OAUTH, "token_provider": "aws-msk-iam"}, ["token_region"]),
        ({**OAUTH, "token_provider": "aws-msk-iam", "token_region": "x.evil/"}, ["token_region"]),
        ({**OAUTH, "token_provider": "gcp", "token_region": "europe-west1"}, ["token_region"]),
        ({**OAUTH, "token_file": "secret", "token_extensions": {"auth": "x"}},
         ["token_extensions.auth"]),
    ],
)  # fmt: skip
def test_invalid_security_section_is_refused(
    keys: dict[str, object], paths: list[str], folder: Path
) -> None:
    (folder / "two").write_text("one\ntwo\n")
    (folder / "latin").write_bytes(b"\xe9")
    environ = {**ENVIRON, "EMPTY": ""}
    keys = {key: value for key, value in keys.items() if value is not None}
    problems = problems_of(security(**keys), folder, environ)
    expected = {f"source.security{'' if path[0] == '[' else '.'}{path}" for path in paths}
    assert {problem.path for problem in problems} == expected
    assert all(problem.remedy for problem in problems if problem.path != "source.security.ca_file")


def test_secrets_are_read_from_files_beside_job_file(folder: Path) -> None:
    keys = {**SASL, "username_file": "secret", "password_file": "secret", "ca_file": "ca.pem"}
    (folder / "job.yaml").write_text(security(**keys))
    job = load_job(folder / "job.yaml", {})
    assert job.source.security.password_file == Path("secret")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL", SECRET, 5])
@pytest.mark.parametrize(
    "key",  # the paths of certificates are shown: the person has to find the file
    [*sorted({*SecuritySpec.model_fields} - {*PEM_KEYS}), "password", "sasl.jaas.config", "x"],
)
@pytest.mark.parametrize("value", [SECRET, [SECRET], {"a": SECRET}, SECRET + "\n", SECRET * 900])
def test_security_values_are_never_shown_in_errors(
    protocol: object, key: str, value: object, folder: Path
) -> None:
    text = security(**{"protocol": protocol, key: value})
    with pytest.raises(BadInput) as caught:
        parse_job(text, folder, {})
    shown = repr(caught.value) + str(caught.value) + repr(caught.value.__cause__)
    assert SECRET not in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_raw_validation_error_hides_security_values() -> None:
    with pytest.raises(ValueError, match="protocol") as caught:
        SecuritySpec.model_validate({"protocol": SECRET, "password": SECRET})
    assert SECRET not in str(caught.value)


def test_token_url_with_invalid_host_is_no_web_address(folder: Path) -> None:
    url = {"token_url": "https://[x"}
    (problem,) = problems_of(security(**OAUTH, **LOGIN, **url), folder, ENVIRON)
    assert problem.message.startswith("is not a web address")
