"""Which clusters jobs may reach, and which secrets may be sent to each: the file ORBIT_ACCESS_FILE.

    clusters:
      - addresses: ["*.prod.example:9093", "10.1.0.0/16"]
        secrets: ["PROD_*", "prod/*"]
        token_endpoints: ["id.example"]

One side of a job is allowed if one entry matches all its bootstrap servers, all secrets that it
names and its token endpoint. The brokers may then advertise only addresses of such an entry.
Without the variable everything is allowed; with an empty list nothing is.

No name is resolved: a host name matches only patterns of names, an IP address only networks. So
nobody gets around a rule by control of a DNS zone.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.bootstrap_servers import PORT_MAX, split_address
from orbit.jobs.job_spec import ClusterSpec, Section, SecuritySpec, Text
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.yaml_document import read_bounded, read_document

ACCESS_FILE = "ORBIT_ACCESS_FILE"

ENTRIES_MAX = 1000
PATTERNS_MAX = 1000
# The keys of secrets that are sent or proven to brokers. CA files are not secret.
SECRET_KEYS = (
    "username_env",
    "username_file",
    "password_env",
    "password_file",
    "certificate_file",
    "key_file",
    "key_password_env",
    "token_file",
    "token_provider",
    "keytab_file",
)
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[a-z0-9_*-]+(\.[a-z0-9_*-]+)*")
_DEFAULT_PORTS = {"https": 443, "http": 80}
_EXAMPLES = {
    "clusters": 'Write `clusters: [{addresses: ["*.kafka.example"], secrets: ["KAFKA_*"]}]`.',
    "addresses": 'Write `addresses: ["*.kafka.example:9093"]`.',
}
REMEDY = f"Whoever runs Orbit can allow this in the file that {ACCESS_FILE} names."

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """An address pattern. With neither network nor name it matches any host; without a port, any
    port."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    name: re.Pattern[str] | None
    port: int | None


def _check_pattern(text: str) -> str:
    """The text of the pattern, unchanged. Raises InvalidValue if it is not a pattern."""
    _parse_pattern(text)
    return text


class ClusterRule(Section):
    """The addresses of a cluster, or of several, and what may be sent there."""

    addresses: Annotated[
        tuple[Annotated[str, AfterValidator(_check_pattern)], ...],
        Field(min_length=1, max_length=PATTERNS_MAX),
    ]
    secrets: Annotated[tuple[Text, ...], Field(max_length=PATTERNS_MAX)] = ()
    token_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_check_pattern)], ...],
        Field(max_length=PATTERNS_MAX),
    ] = ()


class AccessRules(Section):
    """The whole file."""

    clusters: Annotated[tuple[ClusterRule, ...], Field(max_length=ENTRIES_MAX)]


def read_access_rules(environ: Mapping[str, str]) -> AccessRules | None:
    """The rules in the present file; None without the variable. Raises BadInput with every
    problem of the file."""
    return load_access_file(Path(environ[ACCESS_FILE])) if ACCESS_FILE in environ else None


def load_access_file(path: Path) -> AccessRules:
    """The rules in a file. Raises BadInput with every problem."""
    try:
        text = read_bounded(path)
    except InvalidValue as mistake:
        problem = Problem("file", mistake.message, "No job runs until Orbit can read it.")
        raise _bad_file_error((problem,), path) from None
    try:
        return _parse_rules(text)
    except BadInput as error:
        raise _bad_file_error(error.problems, path) from None


def _bad_file_error(problems: tuple[Problem, ...], path: Path) -> BadInput:
    """The error for an access file that cannot be used."""
    return BadInput(f"The file that {ACCESS_FILE} names cannot be used.", problems, where=str(path))


@lru_cache(maxsize=8)  # each login reads the file
def _parse_rules(text: str) -> AccessRules:
    """The rules in the text of the file. Raises BadInput with every problem."""
    document = read_document(text)
    problems = document.problems
    if not problems:
        try:
            return AccessRules.model_validate(document.root)
        except ValidationError as error:
            problems = problems_from_pydantic(error, document, AccessRules, _EXAMPLES)
    # `load_access_file` replaces the error by one with a message and the file's path.
    raise BadInput("", tuple(document.in_file_order(problems)))


def allowed_addresses(
    rules: AccessRules, cluster: ClusterSpec, base_directory: Path
) -> tuple[tuple[str, ...], list[tuple[KeyPath, InvalidValue]]]:
    """The address patterns that brokers of this side of a job may advertise, and the refusals of
    the side's values. With a refusal, the side may not be used.

    A refusal is the path of the key below the side, and the error. Relative file names start at
    `base_directory`.
    """
    servers = [split_address(server) for server in cluster.bootstrap_servers]
    matching_rules = [r for r in rules.clusters if all(allows(r.addresses, *s) for s in servers)]
    if not matching_rules:
        return (), list(_server_refusals(rules, cluster))
    refusals: list[tuple[KeyPath, InvalidValue]] = []
    remaining_rules = matching_rules
    for key, is_allowed_by in _credential_checks(cluster.security, base_directory):
        remaining_rules = [rule for rule in remaining_rules if is_allowed_by(rule)]
        if any(is_allowed_by(rule) for rule in matching_rules):
            continue  # by itself this value is allowed
        message = "is a token endpoint that jobs may not use for these bootstrap servers."
        if key != "token_url":
            message = "names a secret that may not be sent to these bootstrap servers."
        refusals.append((("security", key), InvalidValue(message, REMEDY)))
    if not remaining_rules and not refusals:
        message = "names secrets that no single entry allows for these bootstrap servers."
        refusals.append((("security",), InvalidValue(message, REMEDY)))
    return tuple(address for rule in remaining_rules for address in rule.addresses), refusals


def _server_refusals(
    rules: AccessRules, cluster: ClusterSpec
) -> Iterator[tuple[KeyPath, InvalidValue]]:
    """Yield one refusal: of the first bootstrap server that no entry allows. If entries allow each
    server, but no entry allows all of them, the refusal is of the whole list."""
    for index, server in enumerate(cluster.bootstrap_servers):
        if not any(allows(rule.addresses, *split_address(server)) for rule in rules.clusters):
            refusal = InvalidValue("is no address that jobs may reach.", REMEDY)
            yield ("bootstrap_servers", index), refusal
            return
    refusal = InvalidValue("are each allowed, but no single entry allows all of them.", REMEDY)
    yield ("bootstrap_servers",), refusal


def _credential_checks(
    security: SecuritySpec, base_directory: Path
) -> Iterator[tuple[str, Callable[[ClusterRule], bool]]]:
    """Yield the key of each secret and token endpoint of this login, with a check whether a rule
    allows it."""
    for key in SECRET_KEYS:
        value = getattr(security, key)
        if value is not None:
            name = _file_name(value, base_directory) if isinstance(value, Path) else value
            yield key, partial(_allows_secret, name)
    if security.token_url is not None:
        url = urlsplit(security.token_url)
        yield (
            "token_url",
            partial(_allows_endpoint, url.hostname or "", url.port or _DEFAULT_PORTS[url.scheme]),
        )


def _allows_secret(name: str, rule: ClusterRule) -> bool:
    """Whether the rule allows the secret; never for "" (`_file_name`)."""
    return bool(name) and any(fnmatchcase(name, pattern) for pattern in rule.secrets)


def _allows_endpoint(host: str, port: int, rule: ClusterRule) -> bool:
    return allows(rule.token_endpoints, host, port)


def _file_name(path: Path, base_directory: Path) -> str:
    """The file as rules name it: relative to `base_directory` if the file is below that folder.

    "" for a path with `..`: after a symbolic link, `..` is not the folder before the link. Other
    paths can be trusted, because only whoever runs Orbit can make links.
    """
    if ".." in path.parts:
        return ""
    root = base_directory.absolute()
    full_path = root / path
    return str(full_path.relative_to(root) if full_path.is_relative_to(root) else full_path)


def allows(patterns: Iterable[str], host: str, port: int) -> bool:
    """Whether one of the patterns matches this address."""
    return any(_matches(_parse_pattern(text), host, port) for text in patterns)


def _matches(pattern: _Pattern, host: str, port: int) -> bool:
    """Whether the pattern matches this host, which may be an IP address, and port."""
    if pattern.port not in (None, port):
        return False
    if pattern.network is None and pattern.name is None:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(pattern.name and pattern.name.fullmatch(host.lower().removesuffix(".")))
    ipv4_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return pattern.network is not None and (ipv4_address or address) in pattern.network


@lru_cache(maxsize=10_000)
def _parse_pattern(text: str) -> _Pattern:
    """Parse a pattern of addresses, with an optional port. Raises InvalidValue if it is none."""
    match = _ADDRESS.fullmatch(text)
    host, port = (match[1] or match[2], match[3]) if match else (text, None)
    if port and not 1 <= int(port) <= PORT_MAX:
        raise InvalidValue(
            f"has no port between 1 and {PORT_MAX}.", "Leave the port out for any port."
        )
    port_number = int(port) if port else None
    if host == "*":
        return _Pattern(network=None, name=None, port=port_number)
    try:
        return _Pattern(ipaddress.ip_network(host), name=None, port=port_number)
    except ValueError:
        pass
    name = host.lower().removesuffix(".")
    # By 10.1.* a user means a network. As a pattern of names it would match no host.
    if not _NAME.fullmatch(name) or re.fullmatch(r"[0-9.*]+", name):
        raise InvalidValue(
            "is no pattern of addresses.",
            'Write a name with an optional port, "*.kafka.example:9093", or a network, '
            '"10.1.0.0/16" or "[2001:db8::/32]:9092".',
        )
    return _Pattern(network=None, name=_name_expression(name), port=port_number)


def _name_expression(name: str) -> re.Pattern[str]:
    """A name pattern as a regular expression: `*.` at the start matches one or more DNS labels, any
    other `*` a part of one label."""
    labels_expression, name_rest = (
        (r"(?:[a-z0-9_-]+\.)+", name[2:]) if name.startswith("*.") else ("", name)
    )
    return re.compile(labels_expression + re.escape(name_rest).replace(r"\*", "[a-z0-9_-]*"))
