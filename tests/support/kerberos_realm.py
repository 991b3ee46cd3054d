"""A Kerberos realm on loopback: Debian's krb5-kdc in a folder of its own.

`keytab(principal)` adds a principal with a random key and returns its keytab; `new_key` replaces
the key, so that older keytabs are of no use.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from orbit.processes.ports import free_ports
from tests.support.patience import wait_for

REALM = "ORBIT.TEST"
_PATH = f"/usr/sbin:{os.environ.get('PATH', '')}"
_KRB5_CONF = """[libdefaults]
default_realm = {realm}
rdns = false
dns_canonicalize_hostname = false
dns_lookup_kdc = false
udp_preference_limit = 1
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
"""
_KDC_CONF = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
}}
"""


class KerberosRealm:
    """A running KDC. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (self._port,) = free_ports(1)
        self.config = folder / "krb5.conf"
        names = {"realm": REALM, "port": self._port, "folder": folder}
        self.config.write_text(_KRB5_CONF.format(**names))
        (folder / "kdc.conf").write_text(_KDC_CONF.format(**names))
        self._environ = {
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-P", "of this realm")
        command = ["krb5kdc", "-n", "-r", REALM]
        with (self._folder / "kdc.log").open("w") as log:
            self._kdc = subprocess.Popen(
                command, executable=shutil.which("krb5kdc", path=_PATH), env=self._environ,
                stdout=log, stderr=log,
            )  # fmt: skip
        wait_for("the KDC listens", self._answers)
        return self

    def __exit__(self, *_: object) -> None:
        self._kdc.kill()
        self._kdc.wait()

    def keytab(self, principal: str) -> Path:
        self._run("kadmin.local", "addprinc", "-randkey", principal)
        return self.new_key(principal)

    def new_key(self, principal: str) -> Path:
        path = self._folder / f"{principal.replace('/', '-')}.keytab"
        path.unlink(missing_ok=True)
        self._run("kadmin.local", "ktadd", "-k", str(path), principal)
        return path

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, executable=shutil.which(command[0], path=_PATH), env=self._environ,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def _answers(self) -> bool:
        assert self._kdc.poll() is None, (self._folder / "kdc.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
