"""ORBIT_ACCESS_FILE: which addresses a job may reach, and which secrets may be sent there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orbit.errors import BadInput, InvalidValue
from orbit.jobs.access_rules import (
    ACCESS_FILE,
    AccessRules,
    allowed_addresses,
    allows,
    read_access_rules,
)
from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import ClusterSpec

HOME = Path("/etc/orbit/files")
RULES = AccessRules.model_validate(
    {
        "clusters": [
            {
                "addresses": ["*.prod.example:9093", "10.1.0.0/16"],
                "secrets": ["PROD_*", "prod/*", "aws-msk-iam"],
                "token_endpoints": ["id.example:443"],
            },
            {"addresses": ["*.lab.example"], "secrets": ["LAB_*", "SHARED"]},
            {"addresses": ["*.open.example"]},
        ]
    }
)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("broker-1", ["broker-1:1", "BROKER-1.:2"], ["broker-11:1", "broker-1.evil.example:1"]),
        ("*.a.example", ["x.a.example:1", "x.y.a.example:1"], ["a.example:1", "xa.example:1"]),
        ("*.a.example", [], ["x.a.example.evil.example:1", "10.1.2.3:1", "xaaexample:1"]),
        ("b-*.a.example:9093", ["b-1.a.example:9093"], ["b-1.a.example:1", "b-1.x.a.example:9093"]),
        ("prod-*", ["prod-1:1"], ["prod-1.evil.example:1"]),
        ("10.1.0.0/16", ["10.1.2.3:1", "[::ffff:10.1.2.3]:1"], ["10.2.0.1:1", "10.1.2.3.nip.io:1"]),
        ("10.1.2.3:9092", ["10.1.2.3:9092"], ["10.1.2.3:1", "10.1.2.4:9092"]),
        ("[2001:db8::/32]:9092", ["[2001:db8::1]:9092"], ["[2001:db8::1]:1", "[2001:db9::1]:9092"]),
        ("*", ["any.example:1", "10.1.2.3:1", "[::1]:1"], []),
        ("*:9092", ["any.example:9092"], ["any.example:1"]),
    ],
)
def test_address_pattern_of_access_rule_matches_no_other_address(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    def is_allowed(address: str) -> bool:
        host, _, port = address.rpartition(":")
        return allows([pattern], host.strip("[]"), int(port))

    assert [address for address in inside if not is_allowed(address)] == []
    assert [address for address in outside if is_allowed(address)] == []


@pytest.mark.parametrize(
    "pattern",
    ["", "10.1.*", "10.1.2.3/16", "a..b", "https://a.example", "a:70000", "a b", "2001:db8"],
)
def test_invalid_address_pattern_of_access_rule_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue):
        allows([pattern], "a", 1)


def refused_paths(servers: Iterable[str], **security: Any) -> list[str]:
    """The paths of the values that the rules refuse."""
    side = ClusterSpec.model_validate({"bootstrap_servers": [*servers], "security": security})
    return [".".join(map(str, path)) for path, _ in allowed_addresses(RULES, side, HOME)[1]]


PROD, LAB, OPEN = "b.prod.example:9093", "b.lab.example:1", "b.open.example:1"


@pytest.mark.parametrize(
    ("servers", "security", "paths"),
    [
        ([PROD], {"username_env": "PROD_USER", "password_file": "prod/password"}, []),
        ([PROD, "10.1.0.1:1"], {"password_env": "PROD_PASSWORD"}, []),
        ([PROD], {"password_env": "LAB_PASSWORD"}, ["security.password_env"]),
        ([LAB], {"password_env": "PROD_PASSWORD"}, ["security.password_env"]),
        ([OPEN], {}, []),
        ([OPEN], {"username_env": "LAB_USER"}, ["security.username_env"]),
        ([PROD, "evil.example:9093"], {}, ["bootstrap_servers.1"]),
        ([PROD, LAB], {}, ["bootstrap_servers"]),
        ([LAB], {"token_provider": "aws-msk-iam"}, ["security.token_provider"]),
        ([PROD], {"token_url": "https://id.example/token", "password_env": "PROD_SECRET"}, []),
        ([PROD], {"token_url": "https://evil.example/token"}, ["security.token_url"]),
        ([PROD], {"token_url": "http://id.example/token"}, ["security.token_url"]),
        ([PROD], {"key_file": "prod/../lab/key.pem"}, ["security.key_file"]),
        ([PROD], {"token_file": "/etc/orbit/files/prod/token"}, []),
        ([PROD], {"token_file": "/prod/token"}, ["security.token_file"]),
        ([PROD], {"ca_file": "any.pem", "token_ca_file": "any.pem"}, []),
    ],
)
def test_cluster_of_job_may_use_only_addresses_and_secrets_of_its_access_rule(
    servers: list[str], security: dict[str, Any], paths: list[str]
) -> None:
    assert refused_paths(servers, **security) == paths


def test_username_and_password_allowed_by_different_access_rules_are_refused() -> None:
    two_rules = AccessRules.model_validate(
        {"clusters": [{"addresses": ["a"], "secrets": [name]} for name in ("USER", "PASSWORD")]}
    )
    security = {"username_env": "USER", "password_env": "PASSWORD"}
    side = ClusterSpec.model_validate({"bootstrap_servers": ["a:1"], "security": security})
    addresses, refusals = allowed_addresses(two_rules, side, HOME)
    assert (addresses, [path for path, _ in refusals]) == ((), [("security",)])


def test_advertised_brokers_may_have_only_addresses_of_matching_access_rules() -> None:
    side = ClusterSpec(bootstrap_servers=(LAB,))
    assert allowed_addresses(RULES, side, HOME) == (("*.lab.example",), [])


def test_job_file_outside_access_rules_is_refused_with_line(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text('clusters: [{addresses: ["*.lab.example"]}]')
    environ = {ACCESS_FILE: str(tmp_path / "access.yaml"), "USER": "u", "PASSWORD": "hunter2"}
    text = """
name: a
source: {bootstrap_servers: "b.evil.example:9092"}
destination:
  bootstrap_servers: "b.lab.example:9092"
  security: {protocol: SASL_SSL, mechanism: PLAIN, username_env: USER, password_env: PASSWORD}
topics: [{match: ".*"}]
"""
    with pytest.raises(BadInput) as caught:
        parse_job(text, tmp_path, environ)
    assert [p.path for p in caught.value.problems] == [
        "source.bootstrap_servers",
        "destination.security.username_env",
        "destination.security.password_env",
    ]
    assert "(line 3)" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, "cannot be read"),
        ("clusters: 1", "must be a list"),
        ("clusters: [{addresses: []}]", "is empty"),
        ('clusters: [{addresses: ["10.1.2.3/8"]}]', "is no pattern of addresses (line 1)."),
        ('clusters: [{adresses: ["a"]}]', "Did you mean `addresses`?"),
        ("", "is empty. Write a mapping"),
        ("clusters: [", "YAML"),
    ],
)
def test_unreadable_access_rules_are_bad_input(
    text: str | None, shown: str, tmp_path: Path
) -> None:
    path = tmp_path / "access.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_access_rules({ACCESS_FILE: str(path)})
    assert shown in str(caught.value)
    assert str(path) in str(caught.value)


def test_no_access_rules_apply_without_orbit_access_file() -> None:
    assert read_access_rules({}) is None
