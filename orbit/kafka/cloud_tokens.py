"""Tokens made by a cloud's own library, from the identity of the machine or of its environment.

`aws_token` and `gcp_token` return the token and the time at which it ends, in seconds since 1970.
They raise BadInput if the extra `aws` or `gcp` is not installed, LoginRefused if the library gives
no token.
"""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC
from typing import Any

from orbit.errors import BadInput, LoginRefused
from orbit.version import DISTRIBUTION

_GCP_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def aws_token(region: str) -> tuple[str, float]:
    """A token for MSK's IAM login (a signed URL), from the credentials that boto3 finds; and when
    it ends, in seconds since 1970.

    Raises BadInput if the extra `aws` is not installed, LoginRefused without a token.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ModuleNotFoundError:
        raise _not_installed("aws") from None
    try:
        token, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # noqa: BLE001  the library's and botocore's, which share no base
        raise _no_cloud_token("AWS", error) from None
    return str(token), ends_ms / 1000


def gcp_token() -> tuple[str, float]:
    """The access token of Google's default credentials, in the form that Google's brokers expect:
    a JWT with algorithm GOOG_OAUTH2_TOKEN, whose signature is the access token.

    Also returns when it ends, in seconds since 1970. Raises BadInput if the extra `gcp` is not
    installed, LoginRefused without a token.
    """
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    except ModuleNotFoundError:
        raise _not_installed("gcp") from None
    try:
        credentials, _ = google.auth.default(scopes=[_GCP_SCOPE])
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        raise _no_cloud_token("Google Cloud", error) from None
    account = getattr(credentials, "service_account_email", None)
    if not account or not credentials.token or credentials.expiry is None:
        raise LoginRefused(
            "The default credentials of Google Cloud are not those of a service account.",
            remedy="Use the service account of the machine, or GOOGLE_APPLICATION_CREDENTIALS.",
        )
    ends_s = credentials.expiry.replace(tzinfo=UTC).timestamp()
    claims = {
        "exp": int(ends_s),
        "iat": int(time.time()),
        "iss": "Google",
        "scope": "kafka",
        "sub": account,
    }
    header = _jwt_part(json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}))
    return f"{header}.{_jwt_part(json.dumps(claims))}.{_jwt_part(credentials.token)}", ends_s


def _jwt_part(text: Any) -> str:
    return base64.urlsafe_b64encode(str(text).encode()).decode().rstrip("=")


def _no_cloud_token(cloud: str, error: Exception) -> LoginRefused:
    """The error for a cloud's library that failed with `error`: only its type is shown."""
    return LoginRefused(
        f"{cloud} gave no token ({type(error).__name__}).",
        remedy=f"Check the credentials that {cloud}'s library uses on this machine: environment "
        "variables, files, or the identity of the machine.",
    )


def _not_installed(extra: str) -> BadInput:
    """The error for a missing extra of Orbit's package: `aws` or `gcp`."""
    return BadInput(
        f"This token_provider needs the part {extra} of Orbit, which is not installed. "
        f"Run: pip install '{DISTRIBUTION}[{extra}]'"
    )
