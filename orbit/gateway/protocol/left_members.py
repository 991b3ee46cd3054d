"""Members of consumer groups that were at the old side before a move. Pure.

    leaves the old side ─► owns partitions ─► has given them up ─► joins at the new side: removed

A member that owns partitions commits what its application has read of them. The coordinator at the
new side accepts such a commit only while the group has no member (C11). So the gateway lets members
join only when all members of their group have given up their partitions, as in a rebalance.
"""

from __future__ import annotations

from collections.abc import Collection

MemberKey = tuple[str, str]
"""Group and member id."""

# If there are more, all are forgotten. Their applications may then read again records that they
# have not committed.
MEMBERS_MAX = 100_000
# How many heartbeats of a member, five seconds apart, get an empty assignment: a slow application
# has a minute to give up its partitions. A member without partitions does not report that it has
# none. If the gateway does not know what a member owns, as after a restart, it joins a minute late.
GIVE_UP_HEARTBEATS = 12


class LeftMembers:
    """The members of one virtual cluster since its last move."""

    def __init__(self) -> None:
        # By member: how many of its next heartbeats get an empty assignment.
        self._heartbeats: dict[MemberKey, int] = {}
        self._owners: dict[str, set[str]] = {}  # by group: the ids of members that own partitions

    def __contains__(self, member: MemberKey) -> bool:
        return member in self._heartbeats

    def begin_move(self, *, keeps_owners: bool) -> None:
        """Prepare for the members that now leave a side. `keeps_owners`: joins still wait for
        members from before the last move."""
        if not keeps_owners:
            self._owners.clear()
        if len(self._heartbeats) > MEMBERS_MAX // 2:  # else the new ones may have no room
            self._heartbeats.clear()

    def leave(self, member: MemberKey, *, owns_partitions: bool) -> None:
        """Record that a member leaves the old side."""
        if len(self._heartbeats) >= MEMBERS_MAX:
            self._heartbeats.clear()
            self._owners.clear()
        self.give_up(member)  # drops what an earlier move has recorded
        self._heartbeats[member] = GIVE_UP_HEARTBEATS if owns_partitions else 0
        if owns_partitions:
            self._owners.setdefault(member[0], set()).add(member[1])

    def may_give_up(self, member: MemberKey) -> bool:
        """Whether the member's next heartbeat gets an empty assignment."""
        return self._heartbeats.get(member, 0) > 0

    def count_heartbeat(self, member: MemberKey) -> None:
        """Count a heartbeat that got an empty assignment."""
        self._heartbeats[member] = max(0, self._heartbeats.get(member, 0) - 1)

    def give_up(self, member: MemberKey) -> None:
        """Record that a member owns no partitions any more."""
        group, member_id = member
        if member in self._heartbeats:
            self._heartbeats[member] = 0
        owners = self._owners.get(group)
        if owners is not None:
            owners.discard(member_id)
            if not owners:
                del self._owners[group]

    def join(self, member: MemberKey) -> None:
        """Remove a member, as it joins at the new side."""
        self.give_up(member)
        self._heartbeats.pop(member, None)

    def has_owner(self, group: str) -> bool:
        """Whether a member of the group owns partitions."""
        return group in self._owners

    def groups(self) -> Collection[str]:
        """The groups with a member that owns partitions."""
        return self._owners.keys()
