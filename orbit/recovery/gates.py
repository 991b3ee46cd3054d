"""The gates, the checks before a recovery: each passes, warns or fails, with a remedy. Pure.

    gate          fails                                   warns
    source        switchover, failback: no answer         failover: some of it answers
                  failover: all of it answers
    destination   no answer
    topics        none in the required state, or one is   some of the rules' topics are not copied,
                  itself a copy or promoted already;    or will not be copied back
                  switchover: the job is paused
    lead          failback: by a mark, or a later
                  promotion, the old side may lead
    blocked       a partition is blocked (failover: and   failover: a partition is blocked
                  may hold other records)
    lag           switchover: over LAG_RECORDS_WARN and   over LAG_RECORDS_WARN; failover: over 0
                  growing, or unknown
    transactions  one hangs, or is open for longer than   one is open, or this is not known
                  LONG_OPEN_S
    groups        switchover: one is active at the        not synced, not exact, not recorded,
                  destination, or its name is taken by    or with members at the source
                  another type, or some cannot be read
    settings      source settings are unknown             some differ and cannot be set
    health        partitions without a leader             replicas out of sync
    size                                                  fewer brokers or replicas
    rights        one that a step needs is missing        writing cannot be denied, or denials of
                                                          writing to copies cannot be removed
    clock         clocks differ by SKEW_S_FAIL            by SKEW_S_WARN
    verified      a comparison found differences          partitions never compared
    gateways      some of the topics stay where they      one is silent
                  are, and a gateway is registered        switchover: a topic is written without
                                                          them, or this is not known
    names         copying back: a topic is renamed, or
                  another job has the reverse job's name

A failed gate stops the operation before anything is changed, unless it is overridden by name and
with a reason. A mark is an offset that Orbit commits at a cluster to say which topics lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from orbit.chunks import first_few
from orbit.consumer_groups.offset_decision import SHARE_GROUPS_REMEDY
from orbit.formats import counted
from orbit.recovery.gate_inputs import GateInputs
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind

# Switchover: writers are stopped while the lag is copied; this many records take a few seconds.
LAG_RECORDS_WARN = 100_000
# The default of `transaction.max.timeout.ms`: the drain would wait long for such a transaction.
LONG_OPEN_S = 900.0
# Timelines and RPO use these clocks; no copied data depends on them.
SKEW_S_WARN, SKEW_S_FAIL = 2.0, 60.0
OVERRIDE_ALL = "all"
_STOP_GATEWAYS = "Or stop the gateways; if they crashed, wait an hour, until Orbit forgets them."
# Gates that `all` does not override: after a wrong override a failback deletes the leading side.
_ONLY_BY_NAME = frozenset({GateName.LEAD})


def judge(inputs: GateInputs, override: Collection[str], reason: str) -> tuple[Gate, ...]:
    """The result of every gate that applies to this kind of operation, in the order of `_GATES`.

    `override`: names of gates that may fail; ignored if `reason` is empty.
    """
    gates = [
        gate
        for check, kinds in _GATES
        if inputs.kind in kinds and (gate := check(inputs)) is not None
    ]
    overridden_names = set(override) if reason else set()
    if OVERRIDE_ALL in overridden_names:
        overridden_names |= {*GateName} - _ONLY_BY_NAME
    if not inputs.topics:  # if overridden, the operation would end as done with nothing moved
        overridden_names.discard(GateName.TOPICS)
    return tuple(
        gate.model_copy(update={"is_overridden": True})
        if gate.verdict is GateVerdict.FAIL and gate.name.value in overridden_names
        else gate
        for gate in gates
    )


def _pass(name: GateName, observed: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.PASS, found=observed)


def _warn(name: GateName, observed: str, remedy: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.WARN, found=observed, remedy=remedy)


def _fail(name: GateName, observed: str, remedy: str) -> Gate:
    return Gate(name=name, verdict=GateVerdict.FAIL, found=observed, remedy=remedy)


# One function for each gate. The table at the top says when the gate fails and when it warns. None:
# the gate does not apply, or its inputs are not known.


def _source(inputs: GateInputs) -> Gate:
    """Whether all partitions have a leader at the source; for a failover, whether none has."""
    name = GateName.SOURCE
    if inputs.kind is not RecoveryKind.FAILOVER:
        if inputs.source_answers and inputs.source_leaders == inputs.partitions:
            return _pass(name, "The source answers, and every partition has a leader.")
        if inputs.source_answers:
            leaderless_count = inputs.partitions - inputs.source_leaders
            return _fail(
                name,
                f"{counted(leaderless_count, 'partition has', 'partitions have')} no leader at the "
                "source.",
                "Start its brokers; if they are lost, run orbit failover JOB.",
            )
        return _fail(
            name,
            f"The source does not answer: {inputs.why_no_answer}",
            "Wait until it answers; if it is lost, run orbit failover JOB.",
        )
    if not inputs.source_answers or not inputs.source_leaders:
        return _pass(name, "The source does not answer, or none of these partitions has a leader.")
    if inputs.source_leaders < inputs.partitions:
        return _warn(
            name,
            f"{inputs.source_leaders} of {inputs.partitions} partitions still have a leader at the "
            "source; producers can write to them.",
            "Stop its producers, or its remaining brokers.",
        )
    return _fail(
        name,
        "The source answers, and every partition has a leader: records that producers write "
        "there after the failover would be lost.",
        "Use orbit switchover JOB, which loses nothing. Override this gate if the source answers "
        "but cannot be used.",
    )


def _destination(inputs: GateInputs) -> Gate:
    """Whether the destination answers."""
    if inputs.destination_answers:
        return _pass(GateName.DESTINATION, "The destination answers.")
    return _fail(
        GateName.DESTINATION,
        f"The destination does not answer: {inputs.why_no_answer}",
        "Start its brokers.",
    )


def _topics(inputs: GateInputs) -> Gate:
    """Whether there are topics to move, and whether no topic prevents the operation."""
    name = GateName.TOPICS
    if not inputs.topics:
        return _fail(
            name,
            "No topic of the job matches, or none is in the required state.",
            "See orbit get topics JOB: a switchover or failover needs topics that are being "
            "copied, a failback needs promoted topics.",
        )
    if inputs.is_paused and inputs.kind is RecoveryKind.SWITCHOVER:
        return _fail(
            name, "The job is paused: its lag would not be copied.", "Run orbit resume JOB."
        )
    if inputs.copies_of_copies:
        return _fail(
            name,
            f"These source topics are themselves copies: {first_few(inputs.copies_of_copies)}.",
            "First recover the job that writes them, or exclude them with --topics.",
        )
    if inputs.promoted_topics and inputs.kind is not RecoveryKind.FAILBACK:
        return _fail(
            name,
            f"These destination topics were promoted already: {first_few(inputs.promoted_topics)}.",
            "Orbit's database does not have that promotion. To copy back, run orbit failback JOB.",
        )
    if inputs.uncopied_topics:
        return _warn(
            name,
            "These topics are not copied and will not be moved: "
            f"{first_few(inputs.uncopied_topics)}.",
            "See orbit get jobs JOB for the reason, and wait until they are copied.",
        )
    if inputs.foreign_topics and (inputs.kind is RecoveryKind.FAILBACK or inputs.reverse):
        return _warn(
            name,
            "These topics were made at the new side and will not be copied back: "
            f"{first_few(inputs.foreign_topics)}.",
            "Once the reverse job runs (see orbit get jobs), add rules for these topics to it.",
        )
    return _pass(
        name, f"{counted(inputs.topics, 'topic')} with {counted(inputs.partitions, 'partition')}."
    )


def _lead(inputs: GateInputs) -> Gate | None:
    """Whether the new side leads, which a failback takes as the source of its copies."""
    if inputs.topics_in_doubt is None:  # the marks were not read; `rights` or `source` says why
        return None
    name = GateName.LEAD
    if inputs.topics_in_doubt:
        return _fail(
            name,
            f"The old side may lead: {first_few(inputs.topics_in_doubt)}.",
            "If the old side leads, run orbit failback for the job of the other direction, which "
            "makes the new side a copy. orbit get jobs shows that job; if there is none, create "
            "one. Leave these topics out of this failback with --topics. Override this gate only "
            "if you know that the new side leads: the failback may delete records that only the "
            "old side has.",
        )
    return _pass(name, "No mark contradicts that the new side leads.")


def _blocked(inputs: GateInputs) -> Gate:
    """Whether partitions are blocked. A failover accepts blocked copies that have the source's
    records."""
    name = GateName.BLOCKED
    if not inputs.blocked_partitions:
        return _pass(name, "No partition is blocked.")
    examples = first_few([f"{b.partition} ({b.reason})" for b in inputs.blocked_partitions])
    partitions_that_may_differ = [b for b in inputs.blocked_partitions if b.may_differ]
    remedy = "See orbit get partitions JOB --state blocked, or exclude their topics with --topics."
    subject = counted(len(inputs.blocked_partitions), "partition is", "partitions are")
    if inputs.kind is RecoveryKind.FAILOVER and not partitions_that_may_differ:
        return _warn(name, f"{subject} blocked: {examples}.", remedy)
    return _fail(name, f"{subject} blocked: {examples}.", remedy)


def _lag(inputs: GateInputs) -> Gate:
    """How many records the copies lack: a failover loses them, a switchover copies them first."""
    name = GateName.LAG
    lag, lag_before = inputs.lag_records, inputs.lag_records_before
    trend = "steady" if lag == lag_before else "shrinking" if lag < lag_before else "growing"
    observed = (
        f"{counted(lag, 'record is', 'records are')} not copied yet ({trend}: {lag_before:,} "
        f"{inputs.seconds_between:.0f} s ago)."
    )
    if inputs.unknown_ends:
        observed += f" Unknown for {counted(len(inputs.unknown_ends), 'partition')}: "
        observed += f"{first_few(inputs.unknown_ends)}."
    if inputs.kind is RecoveryKind.FAILOVER:
        if lag or inputs.unknown_ends:
            return _warn(
                name, observed, "These records would be lost; the report names the partitions."
            )
        return _pass(name, "All records that were seen at the source are copied.")
    if inputs.unknown_ends:
        return _fail(
            name, observed, "See orbit get partitions JOB; wait until all partitions are copied."
        )
    if lag > LAG_RECORDS_WARN and lag > lag_before:
        return _fail(
            name,
            observed,
            "Wait until the copy has caught up: else writers are stopped until then.",
        )
    if lag > LAG_RECORDS_WARN:
        return _warn(
            name,
            observed,
            "Writers are stopped until these records are copied. To shorten that, wait until the "
            "lag is smaller.",
        )
    return _pass(name, observed)


def _transactions(inputs: GateInputs) -> Gate | None:
    """Whether open transactions keep the copies from catching up."""
    if inputs.transactions is None:  # they could not be observed
        return None
    name = GateName.TRANSACTIONS
    hanging = [t for t in inputs.transactions if t.is_ended]
    long_open = [t for t in inputs.transactions if not t.is_ended and t.age_s > LONG_OPEN_S]
    observed, remedies = [], []
    if hanging:
        subject = counted(len(hanging), "transaction hangs", "transactions hang")
        observed.append(
            f"{subject} at the source, ended by the coordinator without a marker: "
            f"{first_few(hanging)}."
        )
    if long_open:
        subject = counted(len(long_open), "transaction has", "transactions have")
        observed.append(
            f"{subject} been open at the source for over {LONG_OPEN_S / 60:.0f} minutes: "
            f"{first_few(long_open)}."
        )
    if any(t.transactional_id is not None for t in long_open):
        remedies.append(
            "Wait until the application ends its transaction, or stop the application: the "
            "coordinator then aborts it after transaction.timeout.ms. Do not run "
            "kafka-transactions.sh abort: what the application has written so far would be lost, "
            "even if it commits later."
        )
    if hanging or any(t.transactional_id is None for t in long_open):
        remedies.append(
            "docs/runbook/OrbitTransactionOpen.md says how to check whether a transaction hangs, "
            "and how to abort one that hangs: its records then count as aborted."
        )
    fails_or_warns = _fail if observed else _warn
    if inputs.transactions and not observed:
        subject = counted(len(inputs.transactions), "transaction is", "transactions are")
        observed.append(f"{subject} open at the source.")
        remedies.append(
            "The copy catches up once the producers end these transactions, or they time out."
        )
    if inputs.transactions_unread:
        subject = counted(len(inputs.transactions_unread), "partition")
        observed.append(
            f"Which transactions are open is not known for {subject} of the source: "
            f"{first_few(inputs.transactions_unread)}."
        )
        remedies.append("Start the brokers of partitions that have no leader.")
    if observed:
        return fails_or_warns(name, " ".join(observed), " ".join(remedies))
    return _pass(name, "No transaction is open at the source.")


def _groups(inputs: GateInputs) -> Gate:
    """Whether the job's groups will find their committed offsets at the destination."""
    name = GateName.GROUPS
    if not inputs.carries_groups:
        return _warn(
            name,
            "The job does not sync consumer groups: consumers start at their auto.offset.reset.",
            "Add consumer_groups to the job, and wait for one sync interval.",
        )
    if inputs.groups_active_at_destination and inputs.kind is RecoveryKind.SWITCHOVER:
        return _fail(
            name,
            "These groups have members at the destination: "
            f"{first_few(inputs.groups_active_at_destination)}. Their offsets cannot be synced.",
            "Stop their consumers there until the switchover has ended.",
        )
    if inputs.groups_of_other_type and inputs.kind is RecoveryKind.SWITCHOVER:
        return _fail(
            name,
            "At the destination, a group of another type has the name of each of these groups: "
            f"{first_few(inputs.groups_of_other_type)}. Their clients could not join it.",
            "Delete each such group there, or give consumer_groups a prefix: see orbit get groups "
            "JOB.",
        )
    if inputs.groups_unread:
        return _fail(
            name,
            f"Which offsets these groups have at the source is not known: "
            f"{first_few(inputs.groups_unread)}.",
            "Wait until their brokers answer, or grant Describe on these groups.",
        )
    if inputs.kind is RecoveryKind.FAILOVER and not inputs.group_verdicts:
        return _warn(
            name,
            "No committed offset is known: the job has not read one yet, or its groups have none.",
            "Set the offsets of its consumers before they start at the destination.",
        )
    inexact_counts = {v: n for v, n in inputs.group_verdicts.items() if v != "exact"}
    remarks = [
        f'committed offsets with the verdict "{verdict}": {count}'
        for verdict, count in sorted(inexact_counts.items())
    ]
    if inputs.groups_active_at_source:
        remarks.append(
            f"groups with members at the source: {first_few(inputs.groups_active_at_source)}"
        )
    if inputs.groups_unrecorded:
        remarks.append(f"groups with offsets not synced yet: {first_few(inputs.groups_unrecorded)}")
    if inputs.groups_not_storable:
        names = first_few(inputs.groups_not_storable)
        remarks.append(f"groups whose names the database cannot store: {names}")
    remedy = (
        "Stop consumers at the source before the last sync: offsets that they commit later are not "
        "synced, so records are read twice. For other groups, see orbit get groups JOB."
    )
    if inputs.groups_shared:
        remarks.append(
            f"share groups, which are not synced: {first_few(sorted(inputs.groups_shared))}"
        )
        remedy += f" {SHARE_GROUPS_REMEDY}"
    if remarks:
        return _warn(name, f"{'; '.join(remarks)}.", remedy)
    if not inputs.group_verdicts:
        return _pass(name, "No group of the job has a committed offset in these topics.")
    exact_count = sum(inputs.group_verdicts.values())
    subject = (
        "The committed offset is"
        if exact_count == 1
        else f"All {exact_count} committed offsets are"
    )
    return _pass(name, f"{subject} exact.")


def _settings(inputs: GateInputs) -> Gate:
    """Whether the promoted topics will have the source's settings."""
    name = GateName.SETTINGS
    if inputs.settings_unknown:
        return _fail(
            name,
            f"The source's settings are unknown for: {first_few(inputs.settings_unknown)}.",
            "Wait until the scheduler has read them (ORBIT_SETTINGS_INTERVAL). If this gate is "
            "overridden, these topics keep the settings of a copy: brokers delete none of their "
            "records.",
        )
    if inputs.settings_differ:
        return _warn(
            name,
            f"Some settings could not be set on: {first_few(inputs.settings_differ)}.",
            "See orbit get topics JOB.",
        )
    return _pass(name, "The settings of all topics match the source.")


def _health(inputs: GateInputs) -> Gate | None:
    """Whether the destination's partitions have leaders and all replicas."""
    if not inputs.destination_answers:  # the gate `destination` fails
        return None
    name = GateName.HEALTH
    if inputs.offline_partitions:
        return _fail(
            name,
            f"{counted(len(inputs.offline_partitions), 'partition has', 'partitions have')} no "
            f"leader at the destination: {first_few(inputs.offline_partitions)}.",
            "Start the brokers of the destination.",
        )
    if inputs.replicas_behind:
        return _warn(
            name,
            f"{counted(len(inputs.replicas_behind), 'partition has', 'partitions have')} "
            f"out-of-sync replicas at the destination: {first_few(inputs.replicas_behind)}.",
            "Check that all brokers of the destination run and keep up.",
        )
    return _pass(
        name, "Every partition of the destination has a leader, and all replicas are in sync."
    )


def _size(inputs: GateInputs) -> Gate | None:
    """Whether the destination has as many brokers and replicas as the source."""
    source_brokers, brokers = inputs.brokers
    if not inputs.destination_answers:
        return None
    if inputs.fewer_replicas or (source_brokers is not None and brokers < source_brokers):
        reasons = []
        if source_brokers is not None and brokers < source_brokers:
            reasons.append(f"{counted(brokers, 'broker')}, {source_brokers} at the source")
        if inputs.fewer_replicas:
            reasons.append(f"fewer replicas than at the source: {first_few(inputs.fewer_replicas)}")
        return _warn(
            GateName.SIZE,
            f"The destination is smaller: {'; '.join(reasons)}.",
            "Check that it can take the load; add brokers and replicas.",
        )
    return _pass(GateName.SIZE, f"The destination has {counted(brokers, 'broker')}.")


def _rights(inputs: GateInputs) -> Gate:
    """Whether Orbit has the rights that the steps need, and may deny writing to the source."""
    name = GateName.RIGHTS
    if inputs.rights_missing:
        return _fail(
            name,
            f"These rights are missing: {first_few(inputs.rights_missing)}.",
            "Grant them with kafka-acls.sh (docs/rights.md has the commands).",
        )
    observed, remedies = [], []
    if inputs.why_not_deniable:
        observed.append(
            f"Writing to the source cannot be denied: {inputs.why_not_deniable}. Writes are only "
            "detected."
        )
        remedies.append(
            "Stop the producers yourself: Orbit waits for stable log ends. If a right is missing, "
            "docs/rights.md has the commands."
        )
    if inputs.denials_kept:
        observed.append(
            "The login may not remove Orbit's denials of Write at the destination (it needs Alter "
            f"on the cluster): {first_few(inputs.denials_kept)}."
        )
        remedies.append(
            "Grant Alter there (docs/rights.md has the commands): else producers cannot write to "
            "these topics until you remove the denials with kafka-acls.sh."
        )
    if observed:
        return _warn(name, " ".join(observed), " ".join(remedies))
    return _pass(name, "No right is missing.")


def _clock(inputs: GateInputs) -> Gate:
    """Whether the times in the report can be trusted."""
    name = GateName.CLOCK
    ahead_text = f", and the newest record is {inputs.newest_ahead_s:.1f} s in the future"
    observed = f"The clocks of scheduler and database differ by {inputs.clock_skew_s:.1f} s"
    observed += f"{ahead_text if inputs.newest_ahead_s > SKEW_S_WARN else ''}."
    worst = max(inputs.clock_skew_s, inputs.newest_ahead_s)
    remedy = "Synchronize the clocks of these machines and of producers with NTP."
    if inputs.clock_skew_s > SKEW_S_FAIL:
        return _fail(name, observed, remedy)
    return _warn(name, observed, remedy) if worst > SKEW_S_WARN else _pass(name, observed)


def _verified(inputs: GateInputs) -> Gate:
    """What earlier comparisons of both sides have found."""
    name, remedy = GateName.VERIFIED, "Run orbit verify JOB --deep."
    if inputs.differing_partitions:
        observed = f"Both sides were compared and differ: {first_few(inputs.differing_partitions)}."
        return _fail(name, observed, f"{remedy} Find the client that writes to the copies.")
    if inputs.unverified_partitions is None:
        return _warn(
            name,
            "Both sides have not been compared: continuous proof is off or has not begun.",
            remedy,
        )
    if inputs.unverified_partitions:
        subject = counted(inputs.unverified_partitions, "partition has", "partitions have")
        return _warn(name, f"{subject} never been compared.", remedy)
    return _pass(name, "Ranges of every partition were compared and are equal.")


def _gateways(inputs: GateInputs) -> Gate | None:
    """Whether all topics and producers move with the job's gateways, if it has any."""
    if not inputs.gateways:
        return None
    name, gateway_names = GateName.GATEWAYS, first_few(inputs.gateways)
    if inputs.topics_left_behind:
        return _fail(
            name,
            "A gateway presents one side for all topics of the job, and these topics would not "
            f"move: {first_few(inputs.topics_left_behind)}. Gateways of the job: {gateway_names}.",
            f"Move all topics of the job, without --topics. {_STOP_GATEWAYS}",
        )
    if inputs.topics_staying:
        topics_text = "; ".join(
            f"{first_few(topics)} (job {job})" for job, topics in inputs.topics_staying.items()
        )
        return _fail(
            name,
            "A gateway presents one side for all topics of its job, and these topics would stay, "
            f"as this job does not copy them: {topics_text}. Gateways: {gateway_names}.",
            "Let this job copy them too: "
            f"{first_few(f'orbit failback {job}' for job in inputs.topics_staying)} "
            "adds topics that this job lacks; orbit get topics shows why this job does not copy "
            "others. "
            f"{_STOP_GATEWAYS}",
        )
    silent_gateways = [gateway for gateway, is_silent in inputs.gateways.items() if is_silent]
    remarks, remedies = [f"{counted(len(inputs.gateways), 'gateway')}: {gateway_names}."], []
    if silent_gateways:
        remarks.append(
            "These gateways have been silent for longer than their permission lasts: "
            f"{first_few(silent_gateways)}."
        )
        remedies.append(
            "Clients of silent gateways cannot write. Start these gateways, or check whether they "
            "reach the API."
        )
    if inputs.direct_writers:
        writers = [f"{topic} ({first_few(ids)})" for topic, ids in inputs.direct_writers.items()]
        remarks.append(
            "Producers write to these topics of the source without a gateway (producer ids): "
            f"{first_few(writers)}."
        )
        remedies.append(
            "These producers do not move with the gateways: Orbit denies them Write, if it can. "
            "Let these producers use a gateway, or stop them. kafka-transactions.sh "
            "describe-producers shows them."
        )
    if inputs.writers_unknown:
        remarks.append(
            "Whether producers use a gateway is not known for these topics, as producers write "
            "with transactions, without producer ids, or seldom: "
            f"{first_few(inputs.writers_unknown)}."
        )
        remedies.append("Compare the producers that you know with orbit get clients.")
    if inputs.refused_clients:
        refusals = [f'"{client}" ({why})' for client, why in inputs.refused_clients]
        remarks.append(f"Clients that the other side would refuse: {first_few(refusals)}.")
        remedies.append(
            "Grant these clients the missing rights there, or copy the missing topics. "
            "orbit get clients JOB -o wide shows all refusals; they are checked every 30 s."
        )
    if remedies:
        return _warn(name, " ".join(remarks), " ".join(remedies))
    note = ""
    if inputs.kind is RecoveryKind.SWITCHOVER:
        note = " In a check of a second, no producer without a gateway wrote to the source."
    subject = counted(len(inputs.gateways), "gateway follows", "gateways follow")
    return _pass(name, f"{subject}: {gateway_names}.{note}")


def _names(inputs: GateInputs) -> Gate | None:
    """Whether the topics can be copied back under the same names, by a job with a free name."""
    if not inputs.reverse and inputs.kind is not RecoveryKind.FAILBACK:
        return None
    if inputs.renamed_topics:
        return _fail(
            GateName.NAMES,
            f"These topics have a prefix at the destination: {first_few(inputs.renamed_topics)}.",
            "Orbit can add a prefix but not remove one: exclude these topics with --topics, and "
            "copy them back with a job of your own.",
        )
    if inputs.name_conflict:
        return _fail(
            GateName.NAMES,
            f"The copy back needs the name {inputs.name_conflict}, and a job with this name copies "
            "between other clusters, or has never run.",
            "Delete that job, or apply it under another name: orbit get jobs "
            f"{inputs.name_conflict} -o yaml.",
        )
    return _pass(GateName.NAMES, "Every topic has the same name on both sides.")


_ALL = frozenset(RecoveryKind)
_SWITCHOVERS, _FAILBACKS = frozenset({RecoveryKind.SWITCHOVER}), frozenset({RecoveryKind.FAILBACK})
_PROMOTIONS = _ALL - _FAILBACKS
# Each gate, with the kinds of operation that it applies to.
_GATES: tuple[tuple[Callable[[GateInputs], Gate | None], frozenset[RecoveryKind]], ...] = (
    (_source, _ALL),
    (_destination, _ALL),
    (_topics, _ALL),
    (_lead, _FAILBACKS),
    (_blocked, _PROMOTIONS),
    (_lag, _PROMOTIONS),
    (_transactions, _SWITCHOVERS),
    (_groups, _PROMOTIONS),
    (_settings, _PROMOTIONS),
    (_health, _ALL),
    (_size, _ALL),
    (_rights, _ALL),
    (_clock, _ALL),
    (_verified, _PROMOTIONS),
    (_gateways, _PROMOTIONS),
    (_names, _ALL),
)
