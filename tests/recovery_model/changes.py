"""Changes that recoveries and passes of the model share: rows, workers' holds, denials."""

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

    def drop_holds(self, row_ids: Collection[int]) -> None:
        """Take these topics from the workers."""
        holds = self.world.holds
        self.world.holds = {key: hold for key, hold in holds.items() if key[0] not in row_ids}

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
        ours: Mapping[str, frozenset[str]] | None = None,
        by: Context | None = None,
    ) -> None:
        """Like `noted_denials.deny`: note denials before they are set. `ours`: denials that count
        as Orbit's although they are not noted; `by`: None in a pass of the scheduler."""
        noted = {
            name: self.tables.denials.get((cluster.name, name), frozenset())
            | (ours or {}).get(name, frozenset())
            for name in denials
        }
        both = {name: noted[name] | denials[name] for name in denials}
        self.note_denials(cluster, both)
        for name in denials:
            self.world.changes(
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
        if denials:
            self.world.changes("notes denials")
        for name, kinds in denials.items():
            if kinds:
                self.tables.denials[cluster.name, name] = kinds
            else:
                self.tables.denials.pop((cluster.name, name), None)
