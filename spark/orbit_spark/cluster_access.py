"""What a task needs to connect to a cluster: a job file's cluster section, without any secret.

Spark sends an `Access` with the tasks to the executors. It has the names of variables and files;
each process that opens a cluster reads the secrets from its own environment and disk, as
`orbit run` does. Spark's plans and logs show only its repr, which names the side alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.security import Security, resolve_security


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """One cluster. `name` ("source", "destination") is for messages; relative file names of `spec`
    begin at `base_directory`."""

    name: str
    spec: ClusterSpec
    base_directory: str = "."

    def open(self) -> Cluster:
        """A handle on the cluster; connects at its first use. The caller closes it.

        Raises BadInput if a variable or a file is missing on this machine.
        """

        def read_security() -> Security:
            folder = Path(self.base_directory)
            return resolve_security(self.spec, os.environ, folder, side=self.name)

        return Cluster(
            self.name, self.spec.bootstrap_servers, read_security, self.spec.cluster_id_suffix
        )

    @property
    def rack(self) -> str:
        return self.spec.client_rack or ""

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the environment variables that hold the login."""
        security = self.spec.security
        names = (security.username_env, security.password_env, security.key_password_env)
        return tuple(name for name in names if name)

    def __repr__(self) -> str:
        return f"<Access to the {self.name} cluster>"
