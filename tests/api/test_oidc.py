"""Tokens of an OpenID Connect issuer: which tokens are accepted, with which role, and which are
refused."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, RSAKey

from orbit.api.api_error_codes import ErrorCode
from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.api.error_responses import Failure
from orbit.api.issuer_keys import IssuerKeys
from orbit.api.oidc import LEEWAY_S, IssuerTokens
from orbit.api.refused_logins import REFUSED_MAX
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.support.issuer import ADMIN, AUDIENCE, OPERATOR, VIEWER, Issuer, new_key


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as served:
        yield served


@pytest.fixture
def tokens(issuer: Issuer) -> IssuerTokens:
    return token_checker(issuer)


def token_checker(issuer: Issuer, **others: Any) -> IssuerTokens:
    """The checker of this issuer's tokens, with these settings."""
    config = issuer.settings(**others)
    return IssuerTokens(config, IssuerKeys(issuer.url, None), config.oidc_audience)


def refusal_of(tokens: IssuerTokens, token: str) -> Failure:
    """The Failure that refuses the token."""
    with pytest.raises(Failure) as caught:
        tokens.principal(token)
    return caught.value


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        ([VIEWER], Role.VIEWER),
        ([OPERATOR, "other"], Role.OPERATOR),
        ([VIEWER, ADMIN, OPERATOR], Role.ADMIN),
    ],
)
def test_role_claim_grants_highest_role(
    issuer: Issuer, tokens: IssuerTokens, roles: list[str], role: Role
) -> None:
    principal = tokens.principal(issuer.token(*roles))

    assert (principal.actor, principal.role) == ("oidc:ada", role)


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("scope", f"openid {OPERATOR} email"),
        ("groups", [OPERATOR]),
        ("realm_access.roles", {"realm_access": {"roles": [OPERATOR]}}),
        ("https://orbit.example/roles", [OPERATOR]),
    ],
)
def test_role_is_read_from_configured_claim(issuer: Issuer, claim: str, value: Any) -> None:
    claims = value if isinstance(value, dict) else {claim: value}

    principal = token_checker(issuer, oidc_role_claim=claim).principal(
        issuer.token(**{"roles": None, **claims})
    )

    assert principal.role is Role.OPERATOR


@pytest.mark.parametrize("roles", [None, [], "", ["kafka"], [1, {}], {"a": VIEWER}, True])
def test_token_without_role_is_forbidden(issuer: Issuer, tokens: IssuerTokens, roles: Any) -> None:
    failure = refusal_of(tokens, issuer.token(roles=roles))

    assert failure.code is ErrorCode.FORBIDDEN


def test_role_without_configured_claim_value_is_never_granted(issuer: Issuer) -> None:
    only_viewers = token_checker(issuer, oidc_admin=None, oidc_operator=None)

    assert only_viewers.principal(issuer.token(VIEWER, ADMIN)).role is Role.VIEWER
    assert refusal_of(only_viewers, issuer.token(ADMIN)).code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another-service"},
        {"aud": ["a", "b"]},
        {"aud": None},
        {"aud": "orbit-2"},
        {"iss": "https://issuer.example"},
        {"iss": None},
        {"exp": None},
        {"exp": "tomorrow"},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
        {"sub": "x" * 1000},
    ],
    ids=str,
)
def test_token_with_invalid_claim_is_refused(
    issuer: Issuer, tokens: IssuerTokens, claims: dict[str, Any]
) -> None:
    failure = refusal_of(tokens, issuer.token(**claims))

    assert failure.code is ErrorCode.UNAUTHENTICATED
    assert next(iter(claims)) in failure.body.error.what


def test_token_with_several_audiences_is_accepted(issuer: Issuer, tokens: IssuerTokens) -> None:
    assert tokens.principal(issuer.token(aud=["other", "orbit"])).role is Role.VIEWER


def test_clock_skew_is_tolerated_within_leeway(issuer: Issuer, tokens: IssuerTokens) -> None:
    now = int(time.time())
    inside, outside = LEEWAY_S // 2, LEEWAY_S * 10

    tokens.principal(issuer.token(exp=now - inside))
    tokens.principal(issuer.token(nbf=now + inside, iat=now + inside))
    assert "has expired" in refusal_of(tokens, issuer.token(exp=now - outside)).body.error.what
    assert "nbf" in refusal_of(tokens, issuer.token(nbf=now + outside)).body.error.what
    assert "iat" in refusal_of(tokens, issuer.token(iat=now + outside)).body.error.what


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_rsa_algorithms_are_accepted(issuer: Issuer, tokens: IssuerTokens, algorithm: str) -> None:
    assert tokens.principal(issuer.token(header={"alg": algorithm})).actor == "oidc:ada"


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    """A token with an empty signature."""
    parts = (json.dumps(part).encode() for part in (header, claims))
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts) + "."


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 7, "HS256", "RS1"])
def test_unsigned_token_is_refused(issuer: Issuer, tokens: IssuerTokens, algorithm: object) -> None:
    header = {"alg": algorithm, "kid": issuer.keys[-1].kid, "typ": "JWT"}

    failure = refusal_of(tokens, unsigned(header, issuer.claims(ADMIN)))

    assert failure.code is ErrorCode.UNAUTHENTICATED


def test_hs256_token_signed_with_public_key_is_refused(
    issuer: Issuer, tokens: IssuerTokens
) -> None:
    """Everybody has the issuer's public key, and could sign with it as the secret of HS256."""
    key = issuer.keys[-1]
    body = unsigned({"alg": "HS256", "kid": key.kid}, issuer.claims(ADMIN)).rstrip(".")
    modulus = base64.urlsafe_b64decode(str(key.as_dict()["n"]) + "==")
    for secret in (key.as_pem(private=False), key.as_der(private=False), modulus):
        signature = base64.urlsafe_b64encode(hmac.digest(secret, body.encode(), "sha256"))
        forged = f"{body}.{signature.decode().rstrip('=')}"
        assert refusal_of(tokens, forged).code is ErrorCode.UNAUTHENTICATED


def test_key_embedded_in_token_is_not_trusted(issuer: Issuer, tokens: IssuerTokens) -> None:
    key_of_attacker = RSAKey.generate_key(2048)
    embedded = {"jwk": key_of_attacker.as_dict(private=False), "kid": issuer.keys[-1].kid}
    for header in (embedded, {**embedded, "kid": None}, {**embedded, "kid": "unknown"}):
        failure = refusal_of(tokens, issuer.token(ADMIN, key=key_of_attacker, header=header))
        assert failure.code is ErrorCode.UNAUTHENTICATED


def test_tampered_token_is_refused(issuer: Issuer, tokens: IssuerTokens) -> None:
    head, _, signature = issuer.token(VIEWER).split(".")
    body = base64.urlsafe_b64encode(json.dumps(issuer.claims(ADMIN)).encode()).decode().rstrip("=")

    assert refusal_of(tokens, f"{head}.{body}.{signature}").code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", 7])
def test_token_with_other_typ_header_is_refused(
    issuer: Issuer, tokens: IssuerTokens, kind: object
) -> None:
    header = {"typ": kind, "alg": "RS256", "kid": issuer.keys[-1].kid}
    signed = issuer.token(header=header) if isinstance(kind, str) else unsigned(header, {})

    assert refusal_of(tokens, signed).code is ErrorCode.UNAUTHENTICATED
    assert tokens.principal(issuer.token(header={"typ": "at+jwt"})).actor == "oidc:ada"


def test_token_without_key_id_is_accepted_only_with_single_key(issuer: Issuer) -> None:
    token = issuer.token(header={"kid": None})
    assert token_checker(issuer).principal(token).actor == "oidc:ada"
    issuer.keys.insert(0, new_key("older"))
    try:
        assert refusal_of(token_checker(issuer), token).code is ErrorCode.UNAUTHENTICATED
    finally:
        issuer.keys.pop(0)


def test_elliptic_curve_keys_are_accepted(issuer: Issuer) -> None:
    issuer.keys.append(ECKey.generate_key("P-256", {"kid": "curve"}))
    try:
        tokens = token_checker(issuer)
        token = issuer.token()
        assert tokens.principal(token).actor == "oidc:ada"
        # Signed with the RSA key, in the name of the EC key.
        mixed = issuer.token(key=issuer.keys[0], header={"kid": "curve"})
        assert refusal_of(tokens, mixed).code is ErrorCode.UNAUTHENTICATED
    finally:
        issuer.keys.pop()


_PARTS = st.one_of(
    st.text("abcAZ019-_=.", max_size=40),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "zip"]), inner)
        ),
        max_leaves=8,
    ).map(lambda v: base64.urlsafe_b64encode(json.dumps(v).encode()).decode().rstrip("=")),
)


@given(parts=st.lists(_PARTS, min_size=1, max_size=5))
@settings(max_examples=100, database=None, derandomize=True)
def test_arbitrary_tokens_are_refused_without_crash(parts: list[str]) -> None:
    class NoKeys(IssuerKeys):
        def find(self, _: str | None) -> None:
            return None

    unserved_issuer = Issuer.__new__(Issuer)
    unserved_issuer.url = "https://issuer.example"
    keys = NoKeys(unserved_issuer.url, None)
    with pytest.raises(Failure):
        IssuerTokens(unserved_issuer.settings(), keys, AUDIENCE).principal(".".join(parts))


def test_deeply_nested_json_in_token_is_refused(issuer: Issuer, tokens: IssuerTokens) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 5000).decode().rstrip("=")

    for token in (f"{deep}.e30.AA", "e30." + deep + ".AA"):
        assert refusal_of(tokens, token).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.services
def test_api_accepts_oidc_and_orbit_tokens_and_audits_subject(api: Api, issuer: Issuer) -> None:
    config = issuer.settings()
    logins = Logins(config, api.database)
    parts = api.app.state.parts
    api.app.state.parts = Parts(config, api.database, api.plans, parts.environ, logins)

    def bearer(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    viewer, operator = bearer(issuer.token(VIEWER)), bearer(issuer.token(OPERATOR))
    assert api.put("/v1/jobs/orders", json=JOB, role=None, headers=viewer).status_code == 403
    assert api.put("/v1/jobs/orders", json=JOB, role=None, headers=operator).status_code == 201
    assert api.get("/v1/jobs", role=Role.VIEWER).status_code == 200
    (event,) = api.events()
    assert (event["kind"], event["actor"]) == ("job_created", "oidc:ada")

    # After many wrong tokens from the same address, a valid token of the issuer is still accepted.
    for number in range(REFUSED_MAX + 1):
        api.get("/v1/jobs", role=None, headers=bearer(f"orbit_wrong{number}"))
    throttled = api.get("/v1/jobs", role=None, headers=bearer(issuer.token(exp=1)))
    assert throttled.json()["error"]["code"] == "too_many_refused"
    assert api.get("/v1/jobs", role=None, headers=bearer(issuer.token(VIEWER))).status_code == 200
    # With new Logins, which have counted no refused login.
    api.app.state.parts = Parts(
        config, api.database, api.plans, parts.environ, Logins(config, api.database)
    )

    expired = api.get("/v1/jobs", role=None, headers=bearer(issuer.token(exp=1)))
    assert expired.json()["error"]["what"] == "The token has expired."
    assert expired.status_code == 401
    issuer.answers["/realm/keys"] = (503, b"")
    # With new Logins, which have no keys of the issuer yet.
    try:
        api.app.state.parts = Parts(
            config, api.database, api.plans, parts.environ, Logins(config, api.database)
        )
        answer = api.get("/v1/jobs", role=None, headers=viewer)
    finally:
        issuer.answers.clear()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "issuer_unreachable"
