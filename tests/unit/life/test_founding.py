"""How tasks of a new timeline begin: positions of the savepoint, versions and seqs of the present."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.core.frame import END_VERSION
from headrace.core.ids import TaskName
from headrace.life.founding import Rescaled, Restored, foundings, version_of
from headrace.plan.inventory import Dealing, Inventory, Part, StageRecord
from headrace.protocol.record import CommitRecord, InputEntry, OutputSeq, SourceEntry
from headrace.task.event_time import PartitionCheckpoint, Progress, TimesCheckpoint, decode_times

VIEWS, COUNTS = "views", "counts"
READ = TaskName(VIEWS, 0)


def times(watermark: int, *, said: dict[str, Progress] | None = None, partition: int = 0) -> bytes:
    partitions = [
        PartitionCheckpoint(
            stream_id="log.shop-by-member",
            partition=partition,
            progress=Progress(watermark),
            total_tasks={VIEWS: 2},
            tasks=said or {"views/0": Progress(watermark), "views/1": Progress(watermark + 5)},
        )
    ]
    return msgspec.json.encode(
        TimesCheckpoint(
            watermark=watermark,
            partitions=partitions,
            streams={"log.shop-by-member": watermark},
            operators={"per-10s": watermark},
            ended_streams=["log.shop-by-member", "log.else"],
        )
    )


def kept(*, version: int = 5000, bookkeeping: bytes | None = None, ended: bool = False) -> CommitRecord:
    return CommitRecord(
        generation=3,
        version=version,
        next_version=END_VERSION if ended else version + 1,
        outputs=(OutputSeq(stream="log.out", partition=0, seq=10, generation=9),),
        inputs=(InputEntry(stream="log.shop-by-member", partition=0, offset=77, parents=()),),
        sources=(SourceEntry(stream="log.in", partition=0, offset=100),),
        end_of_stream_sent=ended,
        bookkeeping=msgspec.Raw(bookkeeping or times(1000)),
    )


LATEST = CommitRecord(
    generation=9,
    version=8000,
    next_version=9000,
    bookkeeping=msgspec.Raw(msgspec.json.encode(TimesCheckpoint(watermark=0, partitions=[]))),
    outputs=(
        OutputSeq(stream="log.out", partition=0, seq=25, generation=9),
        OutputSeq(stream="log.shop-by-member", partition=0, seq=12, generation=9),
        OutputSeq(stream="log.shop-by-member.2", partition=0, seq=13, generation=9),
    ),
    sources=(
        SourceEntry(stream="log.in", partition=0, offset=300),
        SourceEntry(stream="log.behind", partition=0, offset=100),
        SourceEntry(stream="log.unread", partition=0, offset=None),
    ),
)


def stage(name: str, tasks: int, active: int | None = None) -> StageRecord:
    step = Part(kind="step", id="per-10s", owner="per-10s", kept_as="per-10s~2", dealing=Dealing(by=("member",)))
    rates = Part(kind="table", id="rates", owner="rates", kept_as="rates", dealing=Dealing(copied=True))
    return StageRecord(
        stage=name,
        producers=tuple(range(1, tasks + 1)),
        active=active or tasks,
        parts={"per-10s": step, "rates": rates},
    )


def restored(
    commits: dict[TaskName, CommitRecord],
    *stages: StageRecord,
    latest: dict[TaskName, CommitRecord] | None = None,
    worked: int | None = None,
    silent: bool = False,
) -> Restored:
    return Restored(
        version=8000,
        kept=commits,
        latest=latest or {},
        inventory=Inventory({record.stage: record for record in stages}),
        streams={"log.shop-by-member": "log.shop-by-member.3"},
        former_streams=frozenset({"log.shop-by-member", "log.shop-by-member.2"}),
        folder={task: Path("/donors") / f"{task.stage}-{task.number}" for task in commits},
        rescaled={COUNTS: Rescaled(worked=worked, streams=frozenset({"log.shop-by-member"}))} if worked else {},
        silent=silent,
    )


def test_the_version_is_the_highest_that_anyone_has_committed() -> None:
    assert version_of(5000, []) == 5000
    assert version_of(5000, [LATEST]) == 8000
    assert version_of(5000, [LATEST], before=9000) == 9000


def test_a_task_begins_with_positions_of_the_savepoint_and_seqs_of_the_present() -> None:
    founding = foundings(restored({READ: kept()}, stage(VIEWS, 1), latest={READ: LATEST}))[READ]
    record = founding.record
    assert (record.version, record.next_version, record.parents_version) == (8000, 8001, 8000)
    assert record.outputs == (OutputSeq(stream="log.out", partition=0, seq=25, generation=9),)
    assert record.inputs == ()
    assert record.sources == kept().sources
    assert [(donor.number, donor.folder) for donor in founding.donors] == [(0, Path("/donors/views-0"))]
    assert (founding.shares, founding.tasks, founding.silent_until) == (None, 1, {})


def test_another_app_begins_its_outputs_at_their_start() -> None:
    record = foundings(restored({READ: kept()}, stage(VIEWS, 1)))[READ].record
    assert record.outputs == ()


def test_intermediate_streams_have_new_names_in_the_bookkeeping() -> None:
    found = decode_times(foundings(restored({READ: kept()}, stage(VIEWS, 1)))[READ].record.bookkeeping)
    assert found.partitions[0].stream_id == "log.shop-by-member.3"
    assert found.streams == {"log.shop-by-member.3": 1000}
    assert found.ended_streams == ["log.shop-by-member.3", "log.else"]
    assert found.operators == {"per-10s": 1000}


def test_what_had_ended_stays_so() -> None:
    record = foundings(restored({READ: kept(ended=True)}, stage(VIEWS, 1)))[READ].record
    assert record.ended
    assert record.end_of_stream_sent


def test_silence_lasts_until_each_input_is_where_it_was() -> None:
    silent = foundings(restored({READ: kept()}, stage(VIEWS, 1), latest={READ: LATEST}, silent=True))[READ]
    assert silent.silent_until == {("log.in", 0): 300, ("log.behind", 0): 100}
    loud = foundings(restored({READ: kept()}, stage(VIEWS, 1), latest={READ: LATEST}))[READ]
    assert not loud.silent_until


# -- rescaled stages --------------------------------------------------------------------------------------


def dealt(tasks: int, active: int, *, old: int = 2) -> Restored:
    commits = {TaskName(COUNTS, n): kept(bookkeeping=times(1000 + n, partition=n)) for n in range(old)}
    return restored(commits, stage(VIEWS, 2), stage(COUNTS, tasks, active), worked=old)


@pytest.mark.parametrize(("tasks", "active"), [(4, 4), (2, 1), (3, 2)])
def test_each_working_task_takes_its_share_of_all(tasks: int, active: int) -> None:
    found = foundings(dealt(tasks, active))
    for number in range(tasks):
        founding = found[TaskName(COUNTS, number)]
        assert [donor.number for donor in founding.donors] == [n for n in (0, 1) if number in (n, *range(active))]
        assert founding.shares == {"per-10s~2": ("member",), "rates": ()}
        assert founding.copied == {"rates"}
        assert founding.tasks == active
        assert not founding.record.ended
    assert len(found) == 2 + tasks


def test_a_dealt_task_promises_what_all_donors_have_promised() -> None:
    found = decode_times(foundings(dealt(4, 4))[TaskName(COUNTS, 3)].record.bookkeeping)
    assert (found.watermark, found.operators, found.streams) == (
        1000,
        {"per-10s": 1000},
        {"log.shop-by-member.3": 1000},
    )
    (partition,) = found.partitions
    assert (partition.stream_id, partition.partition, partition.progress) == (
        "log.shop-by-member.3",
        3,
        Progress(1000),
    )
    assert partition.tasks == {"views/0": Progress(1000), "views/1": Progress(1005)}
    assert partition.total_tasks == {VIEWS: 2}


def test_a_donor_that_had_no_partition_holds_no_event_time_back() -> None:
    """Its record is of the time before its partitions were dealt to others, who have gone on since."""
    none = msgspec.json.encode(TimesCheckpoint(watermark=200, partitions=[], operators={"per-10s": 200}))
    commits = {
        TaskName(COUNTS, 0): kept(bookkeeping=times(1000)),
        TaskName(COUNTS, 1): kept(bookkeeping=none, ended=True),
    }
    found = foundings(restored(commits, stage(VIEWS, 2), stage(COUNTS, 2, 2), worked=1))
    for number in (0, 1):
        now = decode_times(found[TaskName(COUNTS, number)].record.bookkeeping)
        assert (now.watermark, now.operators, now.streams) == (1000, {"per-10s": 1000}, {"log.shop-by-member.3": 1000})
        assert [(one.partition, one.progress) for one in now.partitions] == [(number, Progress(1000))]
        assert [donor.number for donor in found[TaskName(COUNTS, number)].donors] == [0, 1]


def test_readers_of_a_rescaled_stage_expect_its_new_tasks() -> None:
    said = {"counts/0": Progress(10), "counts/1": Progress(20)}
    partition = PartitionCheckpoint(
        stream_id="log.shop-by-url", partition=0, progress=Progress(10), total_tasks={COUNTS: 2}, tasks=said
    )
    bookkeeping = msgspec.json.encode(TimesCheckpoint(watermark=10, partitions=[partition]))
    reader = TaskName("urls", 0)
    found = foundings(
        restored(
            {reader: kept(bookkeeping=bookkeeping)},
            stage(COUNTS, 3),
            stage("urls", 1),
            worked=2,
        )
    )[reader]
    (now,) = decode_times(found.record.bookkeeping).partitions
    assert now.total_tasks == {COUNTS: 3}
    assert now.tasks == {f"counts/{n}": Progress(10) for n in range(3)}


@pytest.mark.parametrize("active", [1, 2, 3])
def test_a_task_without_partitions_says_its_end_again(active: int) -> None:
    """Readers take all tasks of a rescaled stage for what its tasks agree on, and so for tasks that haven't ended."""
    told = msgspec.json.encode(TimesCheckpoint(watermark=200, partitions=[], ended_streams=["log.shop-by-url"]))
    said = {"counts/0": Progress(10), "counts/1": Progress(20), "counts/2": Progress(5, ended=True)}
    partition = PartitionCheckpoint(
        stream_id="log.shop-by-url", partition=0, progress=Progress(10), total_tasks={COUNTS: 3}, tasks=said
    )
    reader = TaskName("urls", 0)
    commits = {
        TaskName(COUNTS, 0): kept(bookkeeping=msgspec.json.encode(TimesCheckpoint(watermark=10, partitions=[]))),
        TaskName(COUNTS, 1): kept(bookkeeping=msgspec.json.encode(TimesCheckpoint(watermark=10, partitions=[]))),
        TaskName(COUNTS, 2): kept(bookkeeping=told, ended=True),
        reader: kept(bookkeeping=msgspec.json.encode(TimesCheckpoint(watermark=10, partitions=[partition]))),
    }
    found = foundings(restored(commits, stage(COUNTS, 3, active), stage("urls", 1), worked=2))
    (now,) = decode_times(found[reader].record.bookkeeping).partitions
    for number in range(3):
        ended = decode_times(found[TaskName(COUNTS, number)].record.bookkeeping).ended_streams
        assert (ended == ["log.shop-by-url"]) == now.tasks[f"counts/{number}"].ended
