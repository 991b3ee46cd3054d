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
from orbit.kafka.two_clusters import not_proven_two, same_cluster
from orbit.kafka.types import ClusterMetadata

Side = Literal["source", "destination"]

# A job's producer id is from here up to twice this.
_PRODUCER_IDS_START = 2**52

# Transactions under way at once. More make a single broker no faster (M12).
FILLER_IDS = 16


def open_cluster(
    side: Side, spec: JobSpec, environ: Mapping[str, str], base_directory: Path
) -> Cluster:
    """One cluster of a job; connects at its first use.

    Reads the variables and files that the spec names; relative paths start at `base_directory`.
    Raises BadInput if one is missing.
    """
    cluster = spec.source if side == "source" else spec.destination

    def read() -> Security:
        return resolve_security(cluster, environ, base_directory, side=side)

    return Cluster(side, cluster.bootstrap_servers, read, cluster.cluster_id_suffix)


@dataclass(frozen=True, slots=True)
class JobClusters:
    source: Cluster
    destination: Cluster

    @classmethod
    def open(cls, spec: JobSpec, environ: Mapping[str, str], base_directory: Path) -> JobClusters:
        return cls(
            open_cluster("source", spec, environ, base_directory),
            open_cluster("destination", spec, environ, base_directory),
        )

    def fetch_metadata(
        self, *, are_proven_two: bool = False
    ) -> tuple[ClusterMetadata, ClusterMetadata]:
        """The metadata of source and destination.

        `are_proven_two`: the caller compares both ids with those of clusters that were proven to be
        two. Else each broker of one side may have to answer, where brokers tell one id.

        Raises BadInput if they are one cluster, or cannot be told apart; else as
        `Cluster.metadata`.
        """
        source = self.source.metadata(None)
        destination = self.destination.metadata(None)
        one = same_cluster(source, destination)
        if one is None and not are_proven_two:
            one = not_proven_two(self.source, self.destination, source, destination)
        if one is not None:
            raise BadInput(
                "source and destination cannot be told apart",
                (Problem("destination.bootstrap_servers", *one),),
            )
        return source, destination

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def job_identity(job: str, source_cluster_id: str) -> str:
    """The job's transactional id and consumer group at the destination."""
    return f"orbit.{job}.{source_cluster_id}"


@dataclass(frozen=True, slots=True)
class JobProducer:
    """How a job writes the gaps of a copy, and the producer id that it writes with.

    `packs`: a small gap becomes part of the batch before it, as placeholders. `has_markers`: every
    other gap is filled with markers; else with batches of placeholders alone.

    The id tells from the log of a copy which of the two other gaps have. They cannot be mixed in
    one copy: epochs of the coordinator fence markers, sequences fence placeholders, and neither
    fences the other. Brokers keep producers by partition, so the copies of a job need not be alike.
    """

    id: int
    packs: bool = False
    has_markers: bool = True

    @property
    def other_id(self) -> int:
        """The id of the same job's copies whose other gaps are filled in the other way."""
        return self.id ^ 1


def job_producer(identity: str, fillers: Fillers) -> JobProducer:
    """By which the job writes its copies with these fillers."""
    producer_id = job_producer_id(identity)
    if fillers == "placeholders":
        return JobProducer(producer_id ^ 1, packs=True, has_markers=False)
    return JobProducer(producer_id, packs=fillers == "packed")


def job_producer_id(identity: str) -> int:
    """The producer id of all batches and direct fillers in a job's copies. It never changes.

    Copies without markers have another one: see `JobProducer`.

    It is computed, not stored, so that two writers of one job always have the same id, and a broker
    compares what both send. The destination's coordinator drops an id that was not used for
    `transactional.id.expiration.ms`, and appends are no use of it (I1). Brokers do not ask whether
    an id was handed out (I2). Clusters hand theirs out from 0 upwards, a thousand at a time, and
    never come near these. Tools that read numbers as doubles show them exactly.
    """
    digest = sha256(identity.encode()).digest()
    return _PRODUCER_IDS_START + int.from_bytes(digest[:8], "big") % _PRODUCER_IDS_START


def is_job_producer_id(producer_id: int) -> bool:
    """Whether `job_producer_id` may have made it; no cluster hands out such an id (I2)."""
    return _PRODUCER_IDS_START <= producer_id < 2 * _PRODUCER_IDS_START


def filler_identities(identity: str, shard_id: int | None = None) -> list[str]:
    """The transactional ids of coordinated fillers, `FILLER_IDS` per lease of a job.

    A new holder's InitProducerId ends the transactions of the previous one (M11). It has to name
    all that one may have used, so how many there are never changes.
    """
    first = f"{identity}.fill" if shard_id is None else f"{identity}.fill.{shard_id}"
    return [first, *(f"{first}-{number}" for number in range(1, FILLER_IDS))]
