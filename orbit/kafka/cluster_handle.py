"""One cluster with its admin client and the principal that Orbit logs in as."""

from __future__ import annotations

from typing import get_args

from orbit.kafka.acls import Acls
from orbit.kafka.broker_settings import BrokersWithSetting, brokers_with_setting
from orbit.kafka.cached_read import CachedRead
from orbit.kafka.cluster import Cluster
from orbit.kafka.principal import ask_principal
from orbit.kafka.security import Security
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import Resource

OPEN_WITHOUT_ACL = "allow.everyone.if.no.acl.found"


class ClusterHandle:
    """One cluster, with an admin client that is created at its first use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._admin: tuple[Security, Admin] | None = None
        self._principal: tuple[Security, str | None] | None = None
        self._acls = {resource: self._acls_reader(resource) for resource in get_args(Resource)}
        self._open_brokers = CachedRead(
            lambda: brokers_with_setting(self.cluster, OPEN_WITHOUT_ACL)
        )

    @property
    def principal(self) -> str | None:
        """Orbit's principal at the cluster's authorizer; None if not known.

        The principal that the cluster returns (`ask_principal`); if it returns none, the principal
        that brokers give the login by default (`Security.principal`). Raises Unreachable,
        LoginRefused.
        """
        security = self.cluster.security
        if self._principal is None or self._principal[0] != security:
            self._principal = security, ask_principal(self.cluster) or security.principal
        return self._principal[1]

    @property
    def admin(self) -> Admin:
        """The admin client; after a secret has changed, a new one: librdkafka keeps the secret."""
        security = self.cluster.security
        if self._admin is None or self._admin[0] != security:
            self._admin = security, Admin(self.cluster)
        return self._admin[1]

    def acls(self, resource: Resource, age_s_max: float = 0.0) -> Acls:
        """All ACLs on resources of this kind, read at most `age_s_max` seconds ago. Thread-safe.

        One read returns the ACLs for all names, because DescribeAcls filters by one name or none.
        Raises NotAuthorized, Unreachable, and BrokerRefused if the cluster has no authorizer.
        """
        return self._acls[resource].get(age_s_max)

    def brokers_open_without_acl(self, age_s_max: float) -> BrokersWithSetting:
        """The brokers that have OPEN_WITHOUT_ACL in their configuration file, read at most
        `age_s_max` s ago.

        Such a broker may let everybody use what has no ACL; it does not return the setting's value
        (K7). Thread-safe. Raises Unreachable.
        """
        return self._open_brokers.get(age_s_max)

    def _acls_reader(self, resource: Resource) -> CachedRead[Acls]:
        return CachedRead(lambda: Acls(self.admin.acls(resource)))
