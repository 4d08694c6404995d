"""Rescaling: which streams can have other partition counts, what follows for the inventory, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.frame import END_VERSION
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.life.founding import rescaled, with_tasks_of
from headrace.plan.inventory import Dealing, Inventory, Part, PartKind, StageRecord
from headrace.protocol.record import CommitRecord
from headrace.task.event_time import PartitionTime, TimesCheckpoint

BY_NOTHING = Dealing()


def part(
    kind: PartKind,
    id_: str,
    *,
    reads: bool = False,
    fixed: dict[str, str] | None = None,
    dealing: Dealing = BY_NOTHING,
) -> Part:
    return Part(kind=kind, id=id_, owner=id_, kept_as=id_, reads=reads, fixed=fixed or {}, dealing=dealing)


def stream(id_: str, *, reads: bool, key: str | None = "member", partitions: int = 4, writer: str = "views") -> Part:
    fixed = {"partitions": str(partitions)} | ({} if key is None else {"key": key})
    writers = {writer: 2} if reads else {}
    return Part(kind="stream", id=id_, owner=id_, kept_as=f"shop-{id_}", fixed=fixed, reads=reads, writers=writers)


def step(id_: str, *, why_not: str = "", partitions: int = 4) -> Part:
    dealing = Dealing(why_not=why_not) if why_not else Dealing(by=("member",))
    fixed = {"partitioning": f"member over {partitions} partitions"}
    return Part(kind="step", id=id_, owner=id_, kept_as=id_, fixed=fixed, dealing=dealing)


def stage(name: str, tasks: int, *parts: Part, first_producer: int = 1) -> StageRecord:
    producers = tuple(range(first_producer, first_producer + tasks))
    return StageRecord(stage=name, producers=producers, active=tasks, parts={one.id: one for one in parts})


def shop(*more: Part, tasks: int = 4) -> Inventory:
    """Views are dealt by member; a stage counts them, and writes what a third stage reads."""
    views = stage(
        "views",
        2,
        Part(kind="input", id="in", owner="in", kept_as="log.in", reads=True),
        stream("by-member", reads=False),
    )
    counts = stage(
        "counts",
        tasks,
        stream("by-member", reads=True, partitions=tasks),
        step("per-10s", partitions=tasks),
        stream("by-url", reads=False, partitions=3),
        *more,
        first_producer=10,
    )
    urls = stage("urls", 3, stream("by-url", reads=True, partitions=3, writer="counts"), first_producer=100)
    urls = msgspec.structs.replace(
        urls, parts={"by-url": msgspec.structs.replace(urls.parts["by-url"], writers={"counts": tasks})}
    )
    return Inventory({"views": views, "counts": counts, "urls": urls}, frozenset({"old"}))


def test_more_partitions_give_the_reading_stage_more_tasks() -> None:
    new = rescaled("shop", shop(), {"by-member": 8})
    counts = new.stages["counts"]
    assert (counts.tasks, counts.active) == (8, 8)
    assert counts.producers[:4] == (10, 11, 12, 13)
    assert len({*counts.producers, *new.stages["views"].producers, *new.stages["urls"].producers}) == 8 + 2 + 3
    for name in ("views", "counts"):
        assert new.stages[name].parts["by-member"].fixed["partitions"] == "8"
    assert counts.parts["per-10s"].fixed["partitioning"] == "member over 8 partitions"
    assert new.stages["urls"].parts["by-url"].writers == {"counts": 8}
    assert new.stages["urls"].tasks == 3
    assert new.gone == {"old"}


def test_fewer_partitions_leave_the_other_tasks_without_work() -> None:
    counts = rescaled("shop", shop(), {"by-member": 1}).stages["counts"]
    assert (counts.tasks, counts.active, counts.producers) == (4, 1, (10, 11, 12, 13))


def test_a_step_stands_for_the_streams_of_its_stage() -> None:
    assert rescaled("shop", shop(), {"per-10s": 8}) == rescaled("shop", shop(), {"by-member": 8})


def test_streams_that_meet_are_rescaled_together() -> None:
    two = shop(stream("orders", reads=True))
    with pytest.raises(UsageError, match="also reads intermediate stream 'orders'") as refused:
        rescaled("shop", two, {"by-member": 8})
    assert "--partitions orders=8" in str(refused.value)
    assert rescaled("shop", two, {"by-member": 8, "orders": 8}).stages["counts"].active == 8
    assert rescaled("shop", two, {"per-10s": 8}).stages["counts"].active == 8
    assert (
        rescaled("shop", shop(stream("all", reads=True, key="to all")), {"by-member": 8}).stages["counts"].active == 8
    )


FACTS = part("side input", "facts", reads=True, fixed={"tables": "t"})

REFUSED = [
    ({"by-member": 0}, (), "from 1 to"),
    ({"by-member": -1}, (), "from 1 to"),
    ({"by-member": 1 << 20}, (), "from 1 to"),
    ({"nowhere": 2}, (), "no intermediate stream 'nowhere'"),
    ({"in": 2}, (), "whose partition count the app can't change"),
    ({"by-member": 2, "per-10s": 3}, (), "is given both 2 and 3"),
    ({"by-member": 8}, (part("input", "other", reads=True),), "also reads input 'other'"),
    ({"by-member": 8}, (step("odd", why_not="no key"),), "state of step 'odd' that can't be divided: no key"),
    ({"by-member": 8}, (FACTS, part("table", "t")), "by side input 'facts'"),
    ({"all": 8}, (stream("all", reads=True, key="to all"),), "broadcast stream"),
    ({"odd": 8}, (stream("odd", reads=True, key=None),), "no key"),
]


@pytest.mark.parametrize(("counts", "more", "why"), REFUSED)
def test_what_is_refused_says_why(counts: dict[str, int], more: tuple[Part, ...], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        rescaled("shop", shop(*more), counts)
    assert why in str(refused.value)
    assert refused.value.hint


def test_a_table_that_every_task_copies_is_no_hindrance() -> None:
    copied = part("table", "t", dealing=Dealing(copied=True))
    assert rescaled("shop", shop(FACTS, copied), {"by-member": 8}).stages["counts"].active == 8


def commit(*, ended: bool = False, **watermarks: int) -> CommitRecord:
    times = TimesCheckpoint(watermark=0, partitions=[], operators=watermarks)
    return CommitRecord(
        generation=1,
        version=60,
        next_version=END_VERSION if ended else 61,
        bookkeeping=msgspec.Raw(msgspec.json.encode(times)),
    )


def test_a_stage_with_a_task_that_has_ended_is_refused() -> None:
    with pytest.raises(UsageError, match="had ended in task counts/2"):
        rescaled("shop", shop(), {"by-member": 8}, {TaskName("counts", 2): commit(ended=True)})
    ended = {TaskName("views", 0): commit(ended=True)}
    assert rescaled("shop", shop(), {"by-member": 8}, ended).stages["counts"].active == 8


def heard(*said: tuple[str, int, bool]) -> int:
    """How far a partition has come that hears of upstream tasks: of each a watermark, and whether it is idle."""
    partition = PartitionTime(SSP(StreamId("log", "by-member"), 0), {"views": 2})
    for task, watermark, idle in said:
        partition.on_watermark(task, 2, watermark, idle=idle)
    return partition.progress.watermark


def test_tasks_that_have_come_to_different_event_times_are_refused() -> None:
    """Two partitions hear the same of two inputs, each in an order of its own; one of them is idle for a moment."""
    a400, a1000 = ("views/0", 400, False), ("views/0", 1000, False)
    b500, b_idle, b600 = ("views/1", 500, False), ("views/1", 500, True), ("views/1", 600, False)
    ahead, behind = heard(a400, a1000, b500, b_idle, b600), heard(a400, b500, b_idle, b600, a1000)
    assert (ahead, behind) == (1000, 600)

    commits = {TaskName("counts", n): commit(**{"per-10s": ahead}) for n in range(4)}
    assert rescaled("shop", shop(), {"by-member": 8}, commits).stages["counts"].active == 8
    commits[TaskName("counts", 4)] = commit(**{"per-10s": behind})  # it had no partition
    assert rescaled("shop", shop(), {"by-member": 8}, commits).stages["counts"].active == 8
    commits[TaskName("counts", 3)] = commit(**{"per-10s": behind})
    with pytest.raises(UsageError, match=r"its step 'per-10s' in counts/0 and counts/3"):
        rescaled("shop", shop(), {"by-member": 8}, commits)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_no_task_is_ever_lost_whatever_the_counts(counts: list[int]) -> None:
    inventory = shop()
    for count in counts:
        before, inventory = inventory, rescaled("shop", inventory, {"by-member": count})
        old, new = before.stages["counts"], inventory.stages["counts"]
        assert new.producers[: old.tasks] == old.producers
        assert (new.tasks, new.active) == (max(old.tasks, count), count)
        everyone = [producer for record in inventory.stages.values() for producer in record.producers]
        assert len(set(everyone)) == len(everyone)
        assert inventory.stages["urls"].parts["by-url"].writers["counts"] == new.tasks


def test_no_stage_loses_tasks_that_it_has_in_the_present_timeline() -> None:
    """Readers of its outputs would wait for what those have committed last."""
    now = rescaled("shop", shop(), {"by-member": 8})
    again = with_tasks_of(shop(), now)
    assert again.stages["counts"].producers == now.stages["counts"].producers
    assert again.stages["counts"].active == 4
    assert with_tasks_of(now, shop()) == now
