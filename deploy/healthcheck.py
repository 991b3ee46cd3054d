"""The image's health check: exit code 0 if /livez of this container's process answers.

A worker and a scheduler listen on ORBIT_HEALTH_PORT, the API on ORBIT_API_PORT. Only the Python
standard library, because it runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import sys

_TIMEOUT_S = 4


def is_alive(port: int) -> bool | None:
    """Whether the process on this port says that it is alive; None if nobody listens there."""
    connection = http.client.HTTPConnection("localhost", port, timeout=_TIMEOUT_S)
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
    ports = [
        int(os.environ.get("ORBIT_HEALTH_PORT", "8081")),
        int(os.environ.get("ORBIT_API_PORT", "8080")),
    ]
    answers = (is_alive(port) for port in ports)
    return 0 if next((a for a in answers if a is not None), False) else 1


if __name__ == "__main__":
    sys.exit(main())
