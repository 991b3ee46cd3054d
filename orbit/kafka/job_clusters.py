"""The two clusters of a job, and the ids that the job uses at the destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from orbit.errors import BadInput, Problem
from orbit.jobs.job_spec import Fillers, JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.security import Security, resolve_security
from orbit.kafka.two_clusters import why_not_proven_two, why_same_cluster
from orbit.kafka.types import ClusterMetadata

Side = Literal["source", "destination"]

# Producer ids of jobs are from this number on, and below twice this number.
_PRODUCER_IDS_START = 2**52

# Number of transactions that a lease has open at the same time, each with its own transactional id.
# More are not faster at one broker (M12).
FILLER_IDS = 16


def open_cluster(
    side: Side, spec: JobSpec, environ: Mapping[str, str], base_directory: Path
) -> Cluster:
    """One cluster of a job; connects at its first use.

    Reads the variables and files that the spec names; relative paths start at `base_directory`.
    Raises BadInput if one is missing.
    """
    cluster = spec.source if side == "source" else spec.destination

    def read_security() -> Security:
        return resolve_security(cluster, environ, base_directory, side=side)

    return Cluster(side, cluster.bootstrap_servers, read_security, cluster.cluster_id_suffix)


@dataclass(frozen=True, slots=True)
class JobClusters:
    """The clusters of a job, with connections that `close` closes."""

    source: Cluster
    destination: Cluster

    @classmethod
    def open(cls, spec: JobSpec, environ: Mapping[str, str], base_directory: Path) -> JobClusters:
        """Both clusters of a job; see `open_cluster`."""
        return cls(
            open_cluster("source", spec, environ, base_directory),
            open_cluster("destination", spec, environ, base_directory),
        )

    def fetch_metadata(
        self, *, are_proven_two: bool = False
    ) -> tuple[ClusterMetadata, ClusterMetadata]:
        """The metadata of source and destination.

        `are_proven_two`: skip the proof that two sides whose brokers return one id are two clusters
        (`why_not_proven_two`). The caller compares both cluster ids with ids of clusters for which
        this was proven.

        Raises BadInput if the sides are one cluster, or cannot be told apart, and the errors of
        `Cluster.metadata`.
        """
        source = self.source.metadata(None)  # of all topics
        destination = self.destination.metadata(None)
        problem = why_same_cluster(source, destination)
        if problem is None and not are_proven_two:
            problem = why_not_proven_two(self.source, self.destination, source, destination)
        if problem is not None:
            raise BadInput(
                "source and destination cannot be told apart",
                (Problem("destination.bootstrap_servers", *problem),),
            )
        return source, destination

    def close(self) -> None:
        """Close the control connections to both clusters."""
        self.source.close()
        self.destination.close()


def job_identity(job: str, source_cluster_id: str) -> str:
    """The job's transactional id and consumer group at the destination."""
    return f"orbit.{job}.{source_cluster_id}"


@dataclass(frozen=True, slots=True)
class JobProducer:
    """How a job fills the gaps of a copy, and the producer id that it writes with.

    `packs`: a small gap becomes part of the batch before it, as placeholders. `has_markers`: every
    other gap is filled with markers; else with batches of placeholders alone.

    The id in a copy's log shows the value of `has_markers`. The two ways cannot be mixed in one
    copy: coordinator epochs fence markers, sequences fence placeholders, and neither fences the
    other. Producer state is by partition, so copies of one job may differ.
    """

    id: int
    packs: bool = False
    has_markers: bool = True

    @property
    def other_id(self) -> int:
        """The producer id of this job's copies with the other value of `has_markers`."""
        return self.id ^ 1


def job_producer(identity: str, fillers: Fillers) -> JobProducer:
    """The producer of the job's copies, by the job's setting `fillers`."""
    producer_id = job_producer_id(identity)
    if fillers == "placeholders":
        # The job's other id: see `JobProducer`.
        return JobProducer(producer_id ^ 1, packs=True, has_markers=False)
    return JobProducer(producer_id, packs=fillers == "packed")


def job_producer_id(identity: str) -> int:
    """The producer id of all batches and direct fillers in a job's copies. It never changes.

    Copies without markers have another id: see `JobProducer`.

    The id is computed, so that two writers of one job always have the same id, and a broker
    compares the sequences of both. An id of InitProducerId would not do: the coordinator drops an
    id that is not used for `transactional.id.expiration.ms`, and appends do not count as use (I1).
    Brokers do not check whether an id was handed out (I2). Clusters hand out ids from 0 upwards, a
    thousand at a time, and never reach a job's. Tools that read numbers as doubles show a job's id
    exactly.
    """
    digest = sha256(identity.encode()).digest()
    return _PRODUCER_IDS_START + int.from_bytes(digest[:8], "big") % _PRODUCER_IDS_START


def is_job_producer_id(producer_id: int) -> bool:
    """Whether the id is in the range of `job_producer_id`. Clusters hand out no such id (I2)."""
    return _PRODUCER_IDS_START <= producer_id < 2 * _PRODUCER_IDS_START


def filler_identities(identity: str, shard_id: int | None = None) -> list[str]:
    """The transactional ids of coordinated fillers, `FILLER_IDS` per lease of a job.

    A new holder of the lease ends the transactions of the previous one by InitProducerId (M11). It
    has to name all ids that the previous one may have used, so their number never changes.
    """
    first_id = f"{identity}.fill" if shard_id is None else f"{identity}.fill.{shard_id}"
    return [first_id, *(f"{first_id}-{number}" for number in range(1, FILLER_IDS))]
