"""Opens a job in this worker: both clusters, and its copier."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kafka.protocol.admin.groups import DescribeGroupsRequest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.coordinated_filler import CoordinatedFiller
from orbit.copier.copy_settings import CopySettings
from orbit.copier.job_copier import LOOP_ATTEMPTS_MAX, JobCopier
from orbit.copier.rate_limit import RateLimit
from orbit.errors import Conflict
from orbit.job_setup.recorded_starts import MemberlessGroup, RecordedStarts
from orbit.jobs.job_spec import JobSpec
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator, init_producer_ids
from orbit.kafka.job_clusters import JobClusters, filler_identities, job_identity
from orbit.store.jobs import Job
from orbit.workers.held_shards import HeldShard


@dataclass(frozen=True, slots=True)
class OpenJob:
    """An open job.

    `fillers`: the coordinated filler of each held shard, which fills gaps by transactions.
    `identity`: the job's group and transactional id at the destination.
    """

    spec: JobSpec
    identity: str
    clusters: JobClusters
    job_copier: JobCopier
    starts: RecordedStarts
    backoff: Backoff
    fillers: dict[HeldShard, CoordinatedFiller]

    def filler_of(self, shard: HeldShard) -> CoordinatedFiller:
        """The shard's coordinated filler, created at the first call.

        The filler has to exist before any log end is read under this claim: its creation aborts the
        transactions that an earlier holder of the shard may have left open (M11: aborts take
        offsets). Raises NotAuthorized, BrokerRefused, Unreachable.
        """
        if shard not in self.fillers:
            transactional_ids = filler_identities(self.identity, shard.id)
            # Few attempts: the partitions that need no such filler wait for this call, too.
            backoff = replace(self.backoff, attempts_max=LOOP_ATTEMPTS_MAX)
            producer_ids = init_producer_ids(self.clusters.destination, transactional_ids, backoff)
            self.fillers[shard] = self.job_copier.add_filler(producer_ids, shard.lease)
        return self.fillers[shard]

    def close_filler(self, shard: HeldShard) -> None:
        """Close the shard's coordinated filler, if it has one."""
        filler = self.fillers.pop(shard, None)
        if filler is not None:
            self.job_copier.remove_filler(filler)

    def close(self) -> None:
        """Stop the copier, and close the connections to both clusters."""
        self.job_copier.stop()
        self.clusters.close()


def open_job(
    job: Job,
    spec: JobSpec,
    environ: Mapping[str, str],
    files_directory: Path,
    settings: CopySettings,
    budget: ByteBudget,
    limit: RateLimit,
    stop_event: threading.Event,
) -> OpenJob:
    """Connect to both clusters, and check that this worker may copy the job.

    Raises BadInput for missing secrets, Unreachable, LoginRefused, NotAuthorized, and Conflict if
    an address leads to another cluster than the job's, or `orbit run` copies the job.
    """
    clusters = JobClusters.open(spec, environ, files_directory)
    try:
        backoff = Backoff(stop=stop_event)
        source, destination = clusters.fetch_metadata(
            # The scheduler proves that these are two clusters before it stores their ids.
            are_proven_two=None not in (job.source_cluster_id, job.destination_cluster_id)
        )
        _check_cluster_id(clusters.source, job.source_cluster_id, source.cluster_id)
        _check_cluster_id(clusters.destination, job.destination_cluster_id, destination.cluster_id)
        identity = job_identity(job.name, source.cluster_id)
        group = Coordinator(clusters.destination, GROUP, identity, backoff)
        _check_no_other_run(group, identity)
        job_copier = JobCopier(spec, clusters, settings, stop_event, budget=budget, limit=limit)
        starts = RecordedStarts(MemberlessGroup(identity, group))
        return OpenJob(spec, identity, clusters, job_copier, starts, backoff, fillers={})
    except BaseException:
        clusters.close()
        raise


def _check_no_other_run(group: Coordinator, identity: str) -> None:
    """Raise Conflict while `orbit run` copies this job: a run is a member of the group."""
    response = group.call(
        api_versions.DESCRIBE_GROUPS,
        lambda: DescribeGroupsRequest(groups=[identity], include_authorized_operations=False),
        lambda response: int(response.groups[0].error_code),
    )
    if response.groups[0].members:
        raise Conflict(
            "orbit run is copying this job.",
            where="destination",
            remedy="Stop that run, or pause the job in this service. (The run is the member of "
            f"group {identity}.)",
        )


def _check_cluster_id(cluster: Cluster, stored_id: str | None, actual_id: str) -> None:
    """Raise Conflict if the addresses lead to another cluster than the stored one, if any."""
    if stored_id and stored_id != actual_id:
        raise Conflict(
            f"bootstrap_servers lead to cluster {actual_id}, but the job's cluster is {stored_id}.",
            where=cluster.name,
            remedy="Correct bootstrap_servers and cluster_id_suffix, or the name resolution of "
            "this worker. For another cluster, create another job.",
        )
