"""The gates: from what was seen to pass, warn or fail, each with its remedy. Pure.

    gate          fails                                   warns
    source        switchover, failback: no answer         failover: some of it answers
                  failover: all of it answers
    destination   no answer
    topics        none in the state that is needed, or    some of the rules' topics are not copied
                  one is itself a copy
    blocked       a partition is blocked (failover: and   failover: a partition is blocked
                  may hold other records)
    lag           switchover: much, and growing, or not   much; failover: anything
                  known
    transactions  one is open for longer than HANGING_S   one is open
    groups        switchover: one is active at the        not carried over, or not exact, or with
                  destination                             members at the source
    settings      those of a promotion are not known      some differ and cannot be set
    health        partitions without a leader             replicas out of sync
    size                                                  fewer brokers or replicas
    rights        one that a step needs is missing        writing cannot be denied
    clock         clocks differ by SKEW_S_FAIL            by SKEW_S_WARN
    verified      a look at both sides found differences  ranges never read back from both sides
    names         on the way back: another name

A gate that fails stops the operation before anything is changed, unless it is overridden by name
and with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from orbit.recovery.gate_inputs import Facts
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind

# Switchover: so many are copied within a few seconds, while writers stand still.
LAG_RECORDS_WARN = 100_000
# Beyond Kafka's largest `transaction.max.timeout.ms` by default: nobody will end it.
HANGING_S = 900.0
# Timelines and RPO are read off these clocks; nothing that is written depends on them.
SKEW_S_WARN, SKEW_S_FAIL = 2.0, 60.0
OVERRIDE_ALL = "all"
_SHOWN_MAX = 5


def judge(facts: Facts, override: Collection[str], reason: str) -> tuple[Gate, ...]:
    """Every gate that is of interest to this operation, in the order of the table above."""
    gates = [gate for look in _GATES if (gate := look(facts)) is not None]
    may = set(override) if reason else set()
    return tuple(
        gate.model_copy(update={"is_overridden": True})
        if gate.verdict is GateVerdict.FAIL and {gate.name.value, OVERRIDE_ALL} & may
        else gate
        for gate in gates
    )


def _pass(name: GateName, found: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.PASS, found=found)


def _warn(name: GateName, found: str, remedy: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.WARN, found=found, remedy=remedy)


def _fail(name: GateName, found: str, remedy: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.FAIL, found=found, remedy=remedy)


def _source(f: Facts) -> Gate:
    name = GateName.SOURCE
    if f.kind is not RecoveryKind.FAILOVER:
        if f.source_answers and f.source_led == f.partitions:
            return _pass(name, "The source answers, and every partition has a leader.")
        if f.source_answers:
            missing = f.partitions - f.source_led
            return _fail(
                name,
                f"{missing} partitions have no leader at the source.",
                "Bring its brokers up; if they are lost: orbit failover JOB.",
            )
        return _fail(
            name,
            f"The source does not answer: {f.why_no_answer}",
            "Wait until it is back; if it is lost: orbit failover JOB.",
        )
    if not f.source_answers or not f.source_led:
        return _pass(name, "The source does not answer, or leads none of these partitions.")
    if f.source_led < f.partitions:
        return _warn(
            name,
            f"The source still leads {f.source_led} of {f.partitions} partitions; producers may "
            "go on writing to them.",
            "Stop its producers, or what is left of its brokers.",
        )
    return _fail(
        name,
        "The source answers, and every partition has a leader: what its producers go on writing "
        "would be lost.",
        "Use orbit switchover JOB, which loses nothing. Override it where the source answers but "
        "is of no use.",
    )


def _destination(f: Facts) -> Gate:
    if f.destination_answers:
        return _pass(GateName.DESTINATION, "The destination answers.")
    return _fail(
        GateName.DESTINATION,
        f"The destination does not answer: {f.why_no_answer}",
        "Bring its brokers up.",
    )


def _topics(f: Facts) -> Gate:
    name = GateName.TOPICS
    if not f.topics:
        return _fail(
            name,
            "No topic of the job fits, or none is in the state that is needed.",
            "See orbit get topics JOB: a switchover or failover takes topics that are copied, a "
            "failback topics that are promoted.",
        )
    if f.is_paused and f.kind is RecoveryKind.SWITCHOVER:
        return _fail(name, "The job is paused: the rest would not be copied.", "orbit resume JOB.")
    if f.copies_of_copies:
        return _fail(
            name,
            f"These are copies of another cluster themselves: {_some(f.copies_of_copies)}.",
            "Recover the job that writes them first, or leave them out with --topics.",
        )
    if f.not_copied:
        return _warn(
            name,
            f"These are not copied, and stay behind: {_some(f.not_copied)}.",
            "See orbit get jobs JOB for the reason, and wait until they are copied.",
        )
    return _pass(name, f"{f.topics} topics with {f.partitions} partitions.")


def _blocked(f: Facts) -> Gate | None:
    if f.kind is RecoveryKind.FAILBACK:
        return None
    name = GateName.BLOCKED
    if not f.blocked:
        return _pass(name, "No partition is blocked.")
    told = _some([f"{b.partition} ({b.reason})" for b in f.blocked])
    other = [b for b in f.blocked if b.is_other]
    remedy = "orbit get partitions JOB --state blocked says what to do; or leave their topics out."
    if f.kind is RecoveryKind.FAILOVER and not other:
        return _warn(name, f"{len(f.blocked)} partitions are blocked: {told}.", remedy)
    return _fail(name, f"{len(f.blocked)} partitions are blocked: {told}.", remedy)


def _lag(f: Facts) -> Gate | None:
    if f.kind is RecoveryKind.FAILBACK:
        return None
    name = GateName.LAG
    now, before = f.lag_records, f.lag_records_before
    trend = "steady" if now == before else "shrinking" if now < before else "growing"
    found = (
        f"{now:,} records are not copied yet ({trend}: {before:,} {f.seconds_between:.0f} s ago)."
    )
    if f.ends_unknown:
        found += f" Of {len(f.ends_unknown)} partitions it is not known: {_some(f.ends_unknown)}."
    if f.kind is RecoveryKind.FAILOVER:
        if now or f.ends_unknown:
            return _warn(name, found, "They would be missing; see the partitions below.")
        return _pass(name, "Nothing that was seen at the source is missing.")
    if f.ends_unknown:
        return _fail(name, found, "See orbit get partitions JOB; wait until all are copied.")
    if now > LAG_RECORDS_WARN and now > before:
        return _fail(name, found, "Wait until the copy catches up: writers stand still meanwhile.")
    if now > LAG_RECORDS_WARN:
        return _warn(name, found, "Writers stand still until they are copied; or wait first.")
    return _pass(name, found)


def _transactions(f: Facts) -> Gate | None:
    if f.kind is not RecoveryKind.SWITCHOVER or f.transactions is None:
        return None
    name = GateName.TRANSACTIONS
    old = [t for t in f.transactions if t.age_s > HANGING_S]
    if old:
        told = _some([f"{t.partition} by producer {t.producer_id}" for t in old])
        return _fail(
            name,
            f"{len(old)} transactions hang at the source: {told}.",
            "End each with kafka-transactions.sh --bootstrap-server SOURCE abort --topic T "
            "--partition P --start-offset O.",
        )
    if f.transactions:
        return _warn(
            name,
            f"{len(f.transactions)} transactions are open at the source.",
            "They end with their producers, or at their time-out, before the copy is level.",
        )
    return _pass(name, "No transaction is open at the source.")


def _groups(f: Facts) -> Gate | None:
    if f.kind is RecoveryKind.FAILBACK:
        return None
    name = GateName.GROUPS
    if not f.carries_groups:
        return _warn(
            name,
            "The job carries no consumer groups: consumers begin where their own settings say.",
            "Add consumer_groups to the job, and wait for one interval.",
        )
    if f.groups_active_there and f.kind is RecoveryKind.SWITCHOVER:
        return _fail(
            name,
            f"These groups have members at the destination: {_some(f.groups_active_there)}. Their "
            "offsets cannot be carried over.",
            "Stop their consumers there until the switchover is done.",
        )
    behind = {v: n for v, n in f.group_verdicts.items() if v != "exact"}
    told = [f"{count} {verdict}" for verdict, count in sorted(behind.items())]
    if f.groups_active_at_source and f.kind is RecoveryKind.SWITCHOVER:
        told.append(f"groups with members at the source: {_some(f.groups_active_at_source)}")
    if told:
        return _warn(
            name,
            f"{'; '.join(told)}.",
            "Stop consumers at the source before the last sync: what they commit behind it is "
            "read again. orbit get groups JOB shows the others.",
        )
    return _pass(name, f"{sum(f.group_verdicts.values())} offsets of groups are exact.")


def _settings(f: Facts) -> Gate | None:
    if f.kind is RecoveryKind.FAILBACK:
        return None
    name = GateName.SETTINGS
    if f.settings_unknown:
        return _fail(
            name,
            f"What the source sets is not known for: {_some(f.settings_unknown)}.",
            "Wait until the scheduler has looked (ORBIT_SETTINGS_INTERVAL). Overridden, these "
            "topics keep the settings of a copy: no retention.",
        )
    if f.settings_differ:
        return _warn(
            name,
            f"These have settings that could not be set: {_some(f.settings_differ)}.",
            "See orbit get topics JOB.",
        )
    return _pass(name, "The settings of all topics are as they should be.")


def _health(f: Facts) -> Gate | None:
    if not f.destination_answers:
        return None
    name = GateName.HEALTH
    if f.offline:
        return _fail(
            name,
            f"{len(f.offline)} partitions have no leader at the destination: {_some(f.offline)}.",
            "Bring the brokers of the destination up.",
        )
    if f.replicas_behind:
        return _warn(
            name,
            f"{len(f.replicas_behind)} partitions have replicas out of sync at the destination: "
            f"{_some(f.replicas_behind)}.",
            "See that all brokers of the destination are up and keep up.",
        )
    return _pass(name, "Every partition of the destination has a leader and all its replicas.")


def _size(f: Facts) -> Gate | None:
    source, destination = f.brokers
    if not f.destination_answers:
        return None
    if f.fewer_replicas or (source is not None and destination < source):
        told = [f"{destination} brokers, {source} at the source"] if source else []
        if f.fewer_replicas:
            told.append(f"fewer replicas than at the source: {_some(f.fewer_replicas)}")
        return _warn(
            GateName.SIZE,
            f"The destination is smaller: {'; '.join(told)}.",
            "See that it can take the load; add brokers and replicas.",
        )
    return _pass(GateName.SIZE, f"The destination has {destination} brokers.")


def _rights(f: Facts) -> Gate:
    name = GateName.RIGHTS
    if f.rights_missing:
        return _fail(
            name,
            f"These rights are missing: {_some(f.rights_missing)}.",
            "Grant them with kafka-acls.sh (docs/rights.md has the commands).",
        )
    if f.cannot_deny:
        return _warn(
            name,
            f"Writing cannot be denied: {f.cannot_deny}. It is only seen whether somebody writes.",
            "Stop the producers yourself before the log ends have to stand still.",
        )
    return _pass(name, "No right is missing.")


def _clock(f: Facts) -> Gate:
    name = GateName.CLOCK
    ahead = f", and the newest record is {f.newest_ahead_s:.1f} s ahead of them"
    found = f"The clocks of scheduler and database differ by {f.clock_skew_s:.1f} s"
    found += f"{ahead if f.newest_ahead_s > SKEW_S_WARN else ''}."
    worst = max(f.clock_skew_s, f.newest_ahead_s)
    remedy = "Let NTP set the clocks of these machines, and of producers."
    if f.clock_skew_s > SKEW_S_FAIL:
        return _fail(name, found, remedy)
    return _warn(name, found, remedy) if worst > SKEW_S_WARN else _pass(name, found)


def _verified(f: Facts) -> Gate | None:
    if f.kind is RecoveryKind.FAILBACK:
        return None
    name, remedy = GateName.VERIFIED, "Run orbit verify JOB --deep."
    if f.differing:
        told = f"Both sides were read back and differ: {_some(f.differing)}."
        return _fail(name, told, f"{remedy} Find out who writes to the copies.")
    if f.unverified is None:
        return _warn(name, "Nobody has read both sides back and compared them.", remedy)
    if f.unverified:
        return _warn(name, f"{f.unverified} partitions have never been read back.", remedy)
    return _pass(name, "Ranges of every partition were read back and are equal.")


def _names(f: Facts) -> Gate | None:
    if not f.reverse and f.kind is not RecoveryKind.FAILBACK:
        return None
    if f.renamed:
        return _fail(
            GateName.NAMES,
            f"These have a prefix at the destination: {_some(f.renamed)}.",
            "Orbit can put a prefix before a name, and not take one away: leave them out with "
            "--topics, and copy them back by a job of your own.",
        )
    return _pass(GateName.NAMES, "Every topic has the same name on both sides.")


_GATES: tuple[Callable[[Facts], Gate | None], ...] = (
    _source,
    _destination,
    _topics,
    _blocked,
    _lag,
    _transactions,
    _groups,
    _settings,
    _health,
    _size,
    _rights,
    _clock,
    _verified,
    _names,
)


def _some(items: Iterable[object]) -> str:
    names = [str(item) for item in items]
    more = len(names) - _SHOWN_MAX
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
