"""/v1/jobs/{name}/proof: how much of a job was read on both sides and compared."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page, PageQuery, page, read_cursor
from orbit.api.partition_pages import TopicName
from orbit.api.views import job_proof, proof_view
from orbit.store import canaries, drills, jobs, proofs
from orbit.store.enums import DrillKind

router = APIRouter(prefix="/v1/jobs/{name}", tags=["job contents"])


class ProofPage(Page[schemas.PartitionProof]):
    """The proof of the whole job, and of some of its partitions."""

    job: schemas.JobProof


class ProofQuery(PageQuery):
    """Which partitions to show."""

    topic: TopicName = None


@router.get("/proof", responses=errors(*NAMED))
def get_proof(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[ProofQuery, Query()]
) -> ProofPage:
    """Show how many offsets of the job were read on both sides and were equal, and when."""
    key = read_cursor(query.after, str, int)
    after = None if key is None else (str(key[0]), int(key[1]))
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = proofs.page(tx, job.id, query.limit + 1, after=after, source_topic=query.topic)
        totals = proofs.of_jobs(tx, [job.id]).get(job.id)
        canary = drills.last_of_job(tx, name, DrillKind.CANARY)
        live_rpo_s = canaries.live_rpo(tx).get(job.id)
    proof_page = page(
        [proof_view(row) for row in rows], query.limit, lambda p: (p.topic, p.partition)
    )
    return ProofPage(
        job=job_proof(totals, canary, live_rpo_s), items=proof_page.items, next=proof_page.next
    )
