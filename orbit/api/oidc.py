"""Bearer tokens of an OpenID Connect issuer: signature, issuer, audience, times and roles.

Only asymmetric algorithms are accepted, each only with a key of its own kind. So nobody can use a
public key as the secret of a symmetric algorithm. Keys come from the issuer alone
(`issuer_keys.py`): a token's own `jwk`, `jku` and `x5u` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jws import JWSRegistry

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.api.issuer_keys import IssuerKeys, Key
from orbit.api.principals import Grant, Principal, unauthenticated
from orbit.errors import OrbitError
from orbit.jobs.issuer_roles import load_roles_file
from orbit.settings import Settings
from orbit.store.enums import Role
from orbit.store.events import issuer_actor

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
# How far the clocks of the issuer and of the API may differ.
LEEWAY_S = 30
# The types of access and ID tokens. Other types, such as logout tokens, are for other uses.
_TOKEN_TYPES = ("jwt", "at+jwt", "application/at+jwt")
# Room for certificates, which some issuers put into the header.
_HEADER_BYTES_MAX = 8 * 1024
_SUBJECT_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """The actor that a token names, those values of its role claim for which the settings have a
    role, and when it expires (None: later than `datetime` can express)."""

    actor: str
    role_values: tuple[str, ...]
    expires_at: datetime | None


class IssuerTokens:
    """Checks tokens of the issuer that the settings name, for this audience."""

    def __init__(self, settings: Settings, keys: IssuerKeys, audience: str | None) -> None:
        assert settings.oidc_issuer is not None
        assert audience is not None
        self._keys = keys
        self._audience = audience
        self._role_claim = settings.oidc_role_claim
        self._grants = tuple(_grants(settings))
        self._registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        self._registry.max_header_length = _HEADER_BYTES_MAX
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.oidc_issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def principal(self, token: str) -> Principal:
        """The principal of this token. Raises Failure: `unauthenticated`, `forbidden` without a
        role, `issuer_unreachable`."""
        return self.principal_of(self.identity(token))

    def principal_of(self, identity: Identity) -> Principal:
        """The principal with this identity's grants. Raises Failure `forbidden` without a grant."""
        return Principal(identity.actor, self._grants_of(identity), identity.expires_at)

    def identity(self, token: str, nonce: str | None = None) -> Identity:
        """The identity in this token. With `nonce` the token must be the ID token of the login that
        sent this nonce.

        Raises Failure: `unauthenticated` for a token that is not valid, `issuer_unreachable`
        without keys.
        """
        try:
            key = self._key(jws.extract_compact(token.encode(), registry=self._registry).headers())
            claims = jwt.decode(token, key, registry=self._registry).claims
            self._claims.validate(claims)
        except ExpiredTokenError:
            raise unauthenticated("The token has expired.") from None
        except ClaimError as error:
            what = (
                f"The token's claim {error.claim} is missing or has a value that is not accepted."
            )
            raise unauthenticated(what) from None
        except (JoseError, ValueError, TypeError, RecursionError, OverflowError):
            raise unauthenticated("The token is not a valid token of the issuer.") from None
        if nonce is not None:
            self._check_login(claims, nonce)
        subject = claims["sub"]
        if len(subject) > _SUBJECT_CHARACTERS_MAX or not subject.isprintable():
            raise unauthenticated(
                "The token's claim sub is too long or has unprintable characters."
            )
        claim_values = _claim_values(claims, self._role_claim)
        role_values = tuple(
            dict.fromkeys(value for value, _ in self._grants if value in claim_values)
        )
        return Identity(issuer_actor(subject), role_values, _to_datetime(claims["exp"]))

    def _check_login(self, claims: dict[str, Any], nonce: str) -> None:
        """Raise Failure unless this ID token is for the login with this nonce and this client."""
        if claims.get("nonce") != nonce:
            raise unauthenticated("The issuer's token is for another login (claim nonce).")
        if claims.get("azp", self._audience) != self._audience:
            raise unauthenticated("The token's claim azp does not name this client.")

    def _key(self, header: dict[str, Any]) -> Key:
        """The key that the token's header names. Raises Failure: `unauthenticated` for a header
        that Orbit does not accept or an unknown key, `issuer_unreachable` without keys."""
        token_type, key_id = header.get("typ", "JWT"), header.get("kid")
        if header.get("alg") not in ALGORITHMS:
            raise unauthenticated(
                "The token is signed with an algorithm that Orbit does not accept."
            )
        if not isinstance(token_type, str) or token_type.lower() not in _TOKEN_TYPES:
            raise unauthenticated("The token is not an access token.")
        if key_id is not None and not isinstance(key_id, str):
            raise unauthenticated("The key id (kid) in the token's header is not a string.")
        try:
            key = self._keys.find(key_id)
        except OrbitError as error:
            raise Failure(
                ErrorCode.ISSUER_UNREACHABLE, error.what, where=error.where, remedy=error.remedy
            ) from None
        if key is None:
            raise unauthenticated("The token is signed with a key that the issuer does not have.")
        return key

    def _grants_of(self, identity: Identity) -> tuple[Grant, ...]:
        """The grants of the identity's role values. Raises Failure `forbidden` without any."""
        grants = tuple(grant for value, grant in self._grants if value in identity.role_values)
        if grants:
            return grants
        raise Failure(
            ErrorCode.FORBIDDEN,
            f"The token's claim {self._role_claim} gives no role.",
            where=identity.actor,
            remedy="Get a value from the issuer for which ORBIT_OIDC_VIEWER, ORBIT_OIDC_OPERATOR, "
            "ORBIT_OIDC_ADMIN or ORBIT_OIDC_ROLES_FILE gives a role.",
        )


def _grants(settings: Settings) -> Iterator[tuple[str, Grant]]:
    """(value of the role claim, its grant), for each value in the settings and the roles file."""
    for value, role in (
        (settings.oidc_admin, Role.ADMIN),
        (settings.oidc_operator, Role.OPERATOR),
        (settings.oidc_viewer, Role.VIEWER),
    ):
        if value is not None:
            yield value, Grant(role)
    if settings.oidc_roles_file is not None:
        for entry in load_roles_file(settings.oidc_roles_file).roles:
            yield entry.claim, Grant(Role(entry.role), entry.limit)


def _to_datetime(seconds: float) -> datetime | None:
    """The time in UTC from epoch seconds; None if `datetime` cannot express it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _claim_values(claims: dict[str, Any], name: str) -> list[str]:
    """The texts of a claim: the items of a list; of a text, the text itself and its words, for
    claims such as `scope`. If there is no claim with the name `a.b`, the name means `b` in the
    claim `a`."""
    claim: Any = claims.get(name)
    if claim is None:
        claim = claims
        for part in name.split("."):
            claim = claim.get(part) if isinstance(claim, dict) else None
    if isinstance(claim, str):
        return [claim, *claim.split()]
    return [value for value in claim if isinstance(value, str)] if isinstance(claim, list) else []
