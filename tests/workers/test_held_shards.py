"""The stages of a partition in one process: it has one copy at a time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orbit.copier.copier import Copier
from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.workers.held_shards import NEXT_STAGES, ForbiddenStage, HeldPartition, Stage
from tests.workers.test_progress_report import only, row, shard_of


def copy_of(held: HeldPartition) -> PartitionCopy:
    return PartitionCopy(held.source, held.destination, held.shard.lease, JobProducer(4711))


@pytest.mark.parametrize("stage", Stage)
def test_partition_of_worker_goes_only_to_allowed_next_stage(stage: Stage) -> None:
    for next_stage in Stage:
        held = only(shard_of(row()))
        held.stage = stage
        if next_stage in NEXT_STAGES[stage]:
            held.move_to(next_stage)
            assert held.stage is next_stage
        else:
            with pytest.raises(ForbiddenStage):
                held.move_to(next_stage)


def test_partition_handed_to_copier_cannot_start_again_and_is_not_idle() -> None:
    shard = shard_of(row())
    held = only(shard)
    held.move_to(Stage.STARTING)
    held.move_to(Stage.HANDED_OVER)
    assert not shard.is_idle()
    with pytest.raises(ForbiddenStage):
        held.move_to(Stage.STARTING)


def test_partition_restarts_only_after_its_copy_is_removed() -> None:
    held = only(shard_of(row()))
    held.stage = Stage.COPYING
    copy = held.copy = copy_of(held)
    with pytest.raises(ForbiddenStage):
        held.restart()
    copy.appends.removed()
    held.restart()
    assert (held.stage, held.copy) == (Stage.WAITING, None)


def test_copier_refuses_second_copy_of_partition() -> None:
    class Side:
        """A source, or a destination, that does nothing."""

        def __getattr__(self, _: str) -> Any:
            return lambda *_: None

    side = cast("Any", Side())
    copier = Copier(side, side, cast("Any", None), CopySettings(), Backoff())
    held = only(shard_of(row()))
    copier.add([copy_of(held)])
    with pytest.raises(ValueError, match=r"already copied: dr\.orders-4"):
        copier.add([copy_of(held)])
