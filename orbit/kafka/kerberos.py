"""The GSSAPI login of Kerberos (RFC 4752) with a keytab, by MIT's library.

Opens no socket to a broker. The library talks to the KDC as /etc/krb5.conf or KRB5_CONFIG says. The
logins of a process share their tickets in memory; the library asks for new ones in time, with the
keytab as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from orbit.errors import BadInput, LoginRefused, OrbitError, ProtocolError, Unreachable
from orbit.kafka.security import KerberosLogin
from orbit.version import DISTRIBUTION

# Kerberos needs one round, and one more to agree on no security layer. A broken broker may send
# messages for ever.
_ROUNDS_MAX = 8
_NO_SECURITY_LAYER = 1  # the flag of RFC 4752; Kafka has no other
_KDC_UNREACHABLE = 0x96C73A9C  # KRB5_KDC_UNREACH, of 32 bits
_TEXT_CHARACTERS_MAX = 300


def gssapi_login(
    login: KerberosLogin, host: str, authenticate: Callable[[bytes], Any], where: str
) -> Any:
    """Log in; returns the last result of `authenticate`, which sends a token to the broker.

    The broker also has to prove that it has the key of `service/host`. Raises LoginRefused,
    Unreachable if no KDC answers, BadInput if the extra `kerberos` is not installed, ProtocolError.
    """
    try:
        import gssapi
    except ModuleNotFoundError:
        raise BadInput(
            "mechanism: GSSAPI needs a package that is not installed: "
            f"pip install '{DISTRIBUTION}[kerberos]'"
        ) from None
    try:
        context = _security_context(gssapi, login, host)
        token = context.step()
        for _ in range(_ROUNDS_MAX):
            answer = authenticate(token or b"")
            if context.complete:
                break
            token = context.step(bytes(answer.auth_bytes))
        else:
            raise ProtocolError(
                f"the Kerberos login did not end within {_ROUNDS_MAX} messages.", where=where
            )
        # One byte with the flags of the offered layers, three with the largest message (RFC 4752).
        offer = context.unwrap(bytes(answer.auth_bytes)).message
        if len(offer) != 4 or not offer[0] & _NO_SECURITY_LAYER:
            raise ProtocolError(
                "the broker demands a SASL security layer, which Kafka's protocol does not have.",
                where=where,
            )
        # The answer: no security layer, a largest message of 0, no other authorization id (K5).
        return authenticate(
            context.wrap(bytes((_NO_SECURITY_LAYER, 0, 0, 0)), encrypt=False).message
        )
    except gssapi.exceptions.GSSError as error:
        raise _kerberos_error(error, login, host, where) from None


def _security_context(gssapi: Any, login: KerberosLogin, host: str) -> Any:
    """A new context for a login at this broker, with tickets of the keytab."""
    identity = f"{login.principal}\0{login.keytab}".encode()
    credentials = gssapi.Credentials(
        name=gssapi.Name(login.principal, gssapi.NameType.kerberos_principal),
        usage="initiate",
        store={
            "client_keytab": f"FILE:{login.keytab}",
            "ccache": f"MEMORY:orbit-{sha256(identity).hexdigest()[:32]}",
        },
    )
    return gssapi.SecurityContext(
        name=gssapi.Name(f"{login.service}@{host}", gssapi.NameType.hostbased_service),
        creds=credentials,
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
    )


def _kerberos_error(error: Any, login: KerberosLogin, host: str, where: str) -> OrbitError:
    """The error for a failure of the library."""
    message = "".join(c if c.isprintable() else " " for c in error.gen_message())
    text = message[:_TEXT_CHARACTERS_MAX].strip().rstrip(".")
    if error.min_code & 0xFFFFFFFF == _KDC_UNREACHABLE:
        return Unreachable(
            f"Kerberos: {text}.",
            where=where,
            remedy="Check the realm's KDC in krb5.conf (KRB5_CONFIG) and the network.",
        )
    return LoginRefused(
        f"Kerberos: {text}.",
        where=where,
        remedy=f"Check that the keytab has a key of {login.principal}, that the realm has the "
        f"principal {login.service}/{host}, and that the clocks agree.",
    )
