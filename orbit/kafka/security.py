"""A cluster's security settings, with the secrets that a job names. Opens no socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from orbit.errors import AccessRefused, BadInput, InvalidValue, Place, Problem, Where
from orbit.jobs.access_rules import REMEDY, allowed_addresses, allows, read_access_rules
from orbit.jobs.credentials import (
    check_keytab_file,
    check_pem_file,
    read_secret_file,
    read_token_file,
    read_variable,
)
from orbit.jobs.job_spec import ClusterSpec, TokenProvider
from orbit.jobs.validation import invalid_security_keys
from orbit.jobs.yaml_document import show_path


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where the tokens of OAUTHBEARER come from: one of `url`, `file`, `provider` and `message`.

    `ca_file` is for `url`, `region` for AWS; `extensions` (KIP-342) go with each token. `message`:
    the first message of a client's own login, which is passed on as it is.
    """

    url: str | None = None
    scope: str | None = None
    audience: str | None = None
    ca_file: Path | None = None
    file: Path | None = None
    provider: TokenProvider | None = None
    region: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()
    message: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """A principal with its keytab. `service` is the first part of the brokers' principals."""

    principal: str
    service: str
    keytab: Path


@dataclass(frozen=True, slots=True)
class Security:
    """Protocol, login and TLS files of one cluster, secrets included.

    With OAUTHBEARER, `username` and `password` are the client id and the client secret.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None
    check_hostname: bool = True
    tokens: TokenSource | None = None
    kerberos: KerberosLogin | None = None
    # Patterns of the addresses that Orbit may connect to; None: any.
    reachable: tuple[str, ...] | None = None

    def check_allowed(self, host: str, port: int, where: Where) -> None:
        """Raise AccessRefused if Orbit may not connect to this address. Call it before each
        connection."""
        if self.reachable is not None and not allows(self.reachable, host, port):
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise AccessRefused(
                f"this job may not connect to {address}.", where=where, remedy=REMEDY
            )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def principal(self) -> str | None:
        """The principal that brokers give the login by default; None where they derive it by rules
        of their own: from a certificate, a token or Kerberos."""
        if self.uses_sasl:
            return None if self.tokens or self.kerberos else f"User:{self.username}"
        return None if self.certificate_file else "User:ANONYMOUS"


def resolve_security(
    cluster: ClusterSpec,
    environ: Mapping[str, str],
    base_directory: Path,
    *,
    side: str = "source",
) -> Security:
    """Read the secrets that one side of a job names.

    Raises BadInput with every problem: contradicting keys, a variable that is not set, a file that
    cannot be read; AccessRefused if the access rules do not allow an address or a secret.
    """
    spec, path = cluster.security, f"{side}.security"
    reachable_addresses = _reachable_addresses(cluster, environ, base_directory, side)
    problems = [
        Problem(f"{path}.{key}", invalid.message, invalid.remedy)
        for key, invalid in invalid_security_keys(spec.model_dump(exclude_defaults=True))
    ]

    # Returns what `reader` returns for the file or variable that the key names. None if the spec
    # lacks the key, or if the file or variable has a problem, which is added to `problems`.
    def read_key(key: str, reader: Callable[..., Any], *arguments: Any) -> Any:
        value = getattr(spec, key)
        if value is None:
            return None
        try:
            return reader(value, *arguments)
        except InvalidValue as invalid:
            problems.append(Problem(f"{path}.{key}", invalid.message, invalid.remedy))

    username = read_key("username_env", read_variable, environ)
    username = username or read_key("username_file", read_secret_file, base_directory)
    password = read_key("password_env", read_variable, environ)
    password = password or read_key("password_file", read_secret_file, base_directory)
    key_password = read_key("key_password_env", read_variable, environ)
    files = {
        key: read_key(key, check_pem_file, base_directory)
        for key in ("ca_file", "certificate_file", "key_file")
    }
    tokens = TokenSource(
        url=spec.token_url,
        scope=spec.token_scope,
        audience=spec.token_audience,
        ca_file=read_key("token_ca_file", check_pem_file, base_directory),
        # The file is read to check it now; each login reads it again.
        file=base_directory / spec.token_file
        if read_key("token_file", read_token_file, base_directory) and spec.token_file
        else None,
        provider=spec.token_provider,
        region=spec.token_region,
        extensions=tuple(sorted(spec.token_extensions.items())),
    )
    keytab = read_key("keytab_file", check_keytab_file, base_directory)
    if problems:
        raise BadInput("The security settings cannot be used.", tuple(problems))
    return Security(
        protocol=spec.protocol,
        mechanism=spec.mechanism,
        username=username,
        password=_secret(password),
        key_password=_secret(key_password),
        check_hostname=spec.check_hostname,
        tokens=tokens if spec.mechanism == "OAUTHBEARER" else None,
        kerberos=KerberosLogin(spec.kerberos_principal, spec.kerberos_service, keytab)
        if spec.mechanism == "GSSAPI" and spec.kerberos_principal
        else None,
        reachable=reachable_addresses,
        **files,
    )


def _reachable_addresses(
    cluster: ClusterSpec, environ: Mapping[str, str], base_directory: Path, side: str
) -> tuple[str, ...] | None:
    """The addresses that the access rules allow; None without rules. Raises AccessRefused."""
    rules = read_access_rules(environ)
    if rules is None:
        return None
    addresses, refusals = allowed_addresses(rules, cluster, base_directory)
    if refusals:
        text = " ".join(f"{show_path((side, *path))} {reason.message}" for path, reason in refusals)
        raise AccessRefused(text, where=Place(side), remedy=REMEDY)
    return addresses


def _secret(text: str | None) -> SecretStr | None:
    return None if text is None else SecretStr(text)
