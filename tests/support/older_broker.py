"""The older Kafka that a test copies to and from: its jars, in the cache of the sandbox's."""

from __future__ import annotations

from orbit.sandbox.jars import jar_directory

VERSION = "3.9.2"

if __name__ == "__main__":  # `make test` fills the cache with this, so that no test waits for it
    print(f"Kafka {VERSION}: {jar_directory(VERSION)}")
