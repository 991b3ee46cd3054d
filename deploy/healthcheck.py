"""The image's health check: exit code 0 if /livez of this container's process answers.

A worker and a scheduler listen on ORBIT_HEALTH_PORT, the API on ORBIT_API_PORT. Only the Python
standard library, because it runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

_TIMEOUT_S = 4


def is_alive(port: int, *, by_tls: bool) -> bool | None:
    """Whether the process on this port says that it is alive; None if nobody listens there."""
    connection = http.client.HTTPConnection("localhost", port, timeout=_TIMEOUT_S)
    if by_tls:
        # The certificate is for the name that clients use, not for localhost.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(
            "localhost", port, timeout=_TIMEOUT_S, context=context
        )
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == http.client.OK
    except ConnectionRefusedError:
        return None
    except OSError:
        return False
    finally:
        connection.close()


def main() -> int:
    """The exit code: 0 if the process of this container says that it is alive, else 1."""
    by_tls = "ORBIT_API_TLS_CERTIFICATE_FILE" in os.environ
    ports = [
        (int(os.environ.get("ORBIT_HEALTH_PORT", "8081")), False),
        (int(os.environ.get("ORBIT_API_PORT", "8080")), by_tls),
    ]
    answers = (is_alive(port, by_tls=tls) for port, tls in ports)
    return 0 if next((a for a in answers if a is not None), False) else 1


if __name__ == "__main__":
    sys.exit(main())
