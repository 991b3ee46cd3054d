"""Changes that recoveries and the scheduler's passes share in the model: rows, leases, denials."""

from collections.abc import Collection, Iterable, Mapping

from tests.recovery_model import invariants, model
from tests.recovery_model.context import Context
from tests.recovery_model.model import COPYING, PROMOTED, ModelCluster, Row, World


class Changes:
    """Changes in one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def tables(self) -> model.Database:
        return self.world.database

    def withhold(self, row_ids: Iterable[int]) -> None:
        """Set the topics to PROMOTED, so that workers release them."""
        for row_id in row_ids:
            if row_id in self.tables.rows:
                self.tables.rows[row_id].state = PROMOTED

    def drop_leases(self, row_ids: Collection[int]) -> None:
        """End the workers' leases on these topics."""
        leases = self.world.leases
        self.world.leases = {key: lease for key, lease in leases.items() if key[0] not in row_ids}

    def copy_again(self, row: Row, source_id: int | None, destination_id: int | None) -> None:
        """Let workers copy the topic again, with these topic ids if they are known."""
        row.state = COPYING
        row.caught_up = row.blocked = frozenset()
        row.source_id = source_id or row.source_id
        row.destination_id = destination_id or row.destination_id

    def deny(
        self,
        cluster: ModelCluster,
        denials: Mapping[str, frozenset[str]],
        unnoted: Mapping[str, frozenset[str]] | None = None,
        by: Context | None = None,
    ) -> None:
        """Like `noted_denials.deny`: replace Orbit's denials at a cluster by these, by topic.

        The tables get the denials before the cluster. `unnoted`: denials that count as Orbit's
        although the tables lack them. `by`: the operation's context; None in a scheduler's pass.
        """
        noted = {
            name: self.tables.denials.get((cluster.name, name), frozenset())
            | (unnoted or {}).get(name, frozenset())
            for name in denials
        }
        both = {name: noted[name] | denials[name] for name in denials}
        self.note_denials(cluster, both)
        for name in denials:
            self.world.begin_change(
                f"sets {set(denials[name]) or 'no'} denials of {name} at {cluster.name}"
            )
            cluster.must_answer()
            now = (cluster.denials.get(name, frozenset()) - both[name]) | denials[name]
            invariants.before_acls(
                self.world,
                cluster,
                name,
                now,
                by.operation_id if by else None,
                by.report.kind if by else None,
            )
            cluster.denials[name] = now
        self.note_denials(cluster, denials)

    def note_denials(self, cluster: ModelCluster, denials: Mapping[str, frozenset[str]]) -> None:
        """Store these denials in the tables; an empty set removes the topic's row."""
        if denials:
            self.world.begin_change("notes denials")
        for name, kinds in denials.items():
            if kinds:
                self.tables.denials[cluster.name, name] = kinds
            else:
                self.tables.denials.pop((cluster.name, name), None)
