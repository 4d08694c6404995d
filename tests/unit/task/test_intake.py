"""Bad input meets the input's policy: an error with its place, a counter, or a dead letter; never silence."""

import re
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import DEAD_LETTER_COLUMNS
from headrace.core.frame import Header, Kind, Watermark, encode, encode_control
from headrace.core.ids import SSP, StreamId
from headrace.rows.hashing import partition_of, partitions_of
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.systems.base import BadRecord
from headrace.task.inputs.intake import Intake
from headrace.task.metrics import TaskMetrics
from headrace.task.scope import Placing

GOOD = pl.DataFrame({"member": ["a", "b"], "ts": [1, 2]})


def frame(rows: pl.DataFrame) -> bytes:
    return encode(Header(Kind.USER), encode_rows(rows))


def app(policy: Any) -> hr.App:
    app = hr.App("page-views")
    bad = app.output("bad") if policy == "dead_letter" else None
    columns = {"member": pl.String, "ts": pl.Int64}
    views = app.input("views", columns, event_time="ts", on_error=policy, dead_letter=bad)
    views.send_to(app.output("out"))
    return app


def times(*values: object) -> bytes:
    """A frame like the good one, with other times."""
    return frame(GOOD.with_columns(ts=pl.Series(values)))


BAD = [
    # what comes, how many messages of it are refused, how many stay, why
    pytest.param(b"", 1, 0, "a frame has at least 25 bytes, this one has 0", id="nothing at all"),
    pytest.param(b"\x63" + bytes(30), 1, 0, "unknown frame kind 99", id="an unknown kind"),
    pytest.param(encode(Header(Kind.CHANGE), b"x"), 1, 0, "a frame of kind CHANGE", id="a changelog"),
    pytest.param(frame(GOOD)[:-40], 1, 0, "a body of", id="a torn body"),
    pytest.param(encode(Header(Kind.USER), b"hello"), 1, 0, "a body of 5 bytes", id="no Arrow"),
    pytest.param(frame(GOOD.drop("ts")), 2, 0, "column 'ts' (Int64) is missing", id="a missing column"),
    pytest.param(times([1], [2]), 2, 0, "column 'ts'", id="a wrong type"),
    pytest.param(times("1", "x"), 1, 1, "row 1 doesn't fit", id="values that don't fit"),
    pytest.param(times(3, None), 1, 1, "1 rows have no event time; the first is row 1: 'ts' is null", id="a null time"),
    pytest.param(times(-(2**63), 3), 1, 1, "first is row 0: 'ts' is -9223372036854775808, but", id="not a time"),
    pytest.param(times(3, 2**63 - 1), 1, 1, "'ts' is 9223372036854775807, but event times must", id="the last time"),
    pytest.param(times(3, 1_700_000_000_000_000), 1, 1, "(in microseconds it is 2023-11-14)", id="microseconds"),
]
bad_input = pytest.mark.parametrize(("record", "refused", "stay", "says"), BAD)


@bad_input
def test_fail_stops_at_the_message_and_says_where(record: bytes, refused: int, stay: int, says: str) -> None:
    with app("fail").test(2) as t:
        t.feed("views", GOOD, partition=1)
        with pytest.raises(hr.errors.DataError, match=r"views\[1\] at offset 1: .*" + re.escape(says)):
            t.feed_bytes("views", record, partition=1)


@bad_input
def test_skip_counts_what_it_leaves_out(record: bytes, refused: int, stay: int, says: str) -> None:
    with app("skip").test() as t:
        for bytes_ in (frame(GOOD), record, frame(GOOD)):
            t.feed_bytes("views", bytes_, settle=False)
        t.settle()
        assert (t.counter("skipped"), t.read("out").height) == (refused, 4 + stay)


@bad_input
def test_dead_letters_keep_the_message_its_place_and_the_reason(
    record: bytes, refused: int, stay: int, says: str
) -> None:
    with app("dead_letter").test() as t:
        t.feed("views", GOOD)
        t.feed_bytes("views", record)
        t.feed("views", GOOD)
        letters = t.read("bad")
        assert (letters.schema, letters.height) == (pl.Schema(DEAD_LETTER_COLUMNS), 1)
        stream, partition, offset, reason, raw = letters.row(0)
        assert (stream.endswith(".views"), partition, offset) == (True, 0, 1)
        assert says in reason
        assert raw == record or decode_rows(raw).height == refused
        assert (t.counter("dead_lettered"), t.read("out").height) == (refused, 4 + stay)


def test_an_app_goes_on_behind_what_it_skipped() -> None:
    with app("skip").test() as t:
        t.feed_bytes("views", b"?")
        t.feed("views", GOOD)
        t.end()
        assert (t.ended, t.read("out").height) == (True, 2)


def test_the_remedy_is_named() -> None:
    with app("fail").test() as t, pytest.raises(hr.errors.DataError) as info:
        t.feed("views", [{"member": "a", "ts": None}])
    assert "give input 'views' on_error=\"skip\"" in str(info.value)


def test_control_messages_of_another_app_are_no_data() -> None:
    with app("fail").test() as t:
        foreign = Watermark(task_name="other/0", task_count=1, timestamp=10**6)
        t.feed_bytes("views", encode_control(Header(Kind.WATERMARK), foreign))
        t.feed("views", GOOD)
        assert (t.read("out").height, t.watermark) == (2, 2)


def test_columns_that_nobody_named_are_dropped_and_types_widened() -> None:
    with app("fail").test() as t:
        foreign = GOOD.with_columns(pl.col("ts").cast(pl.Int32), extra=pl.lit(1)).select("extra", "ts", "member")
        t.feed_bytes("views", frame(foreign))
        assert t.read("out").equals(GOOD)


def test_bytes_without_a_schema() -> None:
    app = hr.App("raw")
    app.input("raw").send_to(app.output("out"))
    with app.test() as t:
        t.feed("raw", [{"key": b"k", "value": b"\xff"}, {"key": None, "value": b""}])
        assert t.read("out").rows() == [(b"k", b"\xff"), (None, b"")]


def test_a_time_beyond_64_bits_is_no_time() -> None:
    app = hr.App("unsigned")
    views = app.input("views", {"ts": pl.UInt64}, event_time="ts", on_error="skip")
    views.send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", [{"ts": 7}, {"ts": 2**63}])
        assert (t.read("out")["ts"].to_list(), t.counter("skipped"), t.watermark) == ([7], 1, 7)


def test_what_an_intermediate_stream_holds_is_never_skipped() -> None:
    """It was written by the app itself, so what doesn't fit is another version's, not a sender's mistake."""
    app = hr.App("page-views")
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, on_error="skip")
    views.partition_by("member", id="by-member").send_to(app.output("out"))
    spec = app.graph().streams["by-member"]
    intake = Intake(spec, TaskMetrics(), _no_letters)
    ssp = SSP(spec.stream, 0)
    assert _rows(intake.decode(ssp, [5], [frame(GOOD)])).equals(GOOD)
    with pytest.raises(hr.errors.DataError, match=r"by-member\[0\] at offset 5: column 'ts'") as info:
        intake.decode(ssp, [5], [frame(GOOD.with_columns(ts=pl.lit([1])))])
    assert "drain the app before" in str(info.value)


def test_frames_of_an_intermediate_stream_from_before_a_column_was_added_have_nulls() -> None:
    app = hr.App("page-views")
    views = app.input("views", {"member": pl.String, "ts": pl.Int64, "tags": pl.List(pl.String)})
    views.partition_by("member", id="by-member").send_to(app.output("out"))
    spec = app.graph().streams["by-member"]
    new = GOOD.with_columns(tags=pl.lit(["x"]))
    removed = GOOD.select("ts", "member", was="ts")
    decoded = Intake(spec, TaskMetrics(), _no_letters).decode(
        SSP(spec.stream, 0), [5, 6, 7], [frame(GOOD), frame(new), frame(removed)]
    )
    old = GOOD.with_columns(tags=pl.lit(None, pl.List(pl.String)))
    assert _rows(decoded).equals(pl.concat([old, new, old]))
    assert [heights for _, heights in decoded] == [[2, 2, 2]]


def test_only_a_column_that_was_added_to_an_input_may_be_missing() -> None:
    app = hr.App("page-views")
    columns = {"member": pl.String, "note": pl.String, "ts": pl.Int64}
    app.input("views", columns, event_time="ts").send_to(app.output("out"))
    spec = app.graph().streams["views"]
    ssp = SSP(spec.stream, 0)
    grown = Intake(spec, TaskMetrics(), _no_letters, added=frozenset({"note"}))
    assert _rows(grown.decode(ssp, [5], [frame(GOOD)])).equals(
        GOOD.select("member", pl.lit(None, pl.String).alias("note"), "ts")
    )
    with pytest.raises(hr.errors.DataError, match=r"column 'member' .* is missing"):
        grown.decode(ssp, [5], [frame(GOOD.drop("member"))])
    with pytest.raises(hr.errors.DataError, match=r"column 'note' .* is missing"):
        Intake(spec, TaskMetrics(), _no_letters).decode(ssp, [5], [frame(GOOD)])
    timed = Intake(spec, TaskMetrics(), _no_letters, added=frozenset({"ts"}))
    with pytest.raises(hr.errors.DataError, match="2 rows have no event time"):
        timed.decode(ssp, [5], [frame(GOOD.select("member", note="member"))])


def _rows(decoded: list[tuple[pl.DataFrame, list[int]]]) -> pl.DataFrame:
    return pl.concat([rows for rows, _ in decoded])


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
@bad_input
def test_frames_decoded_together_are_what_they_are_one_by_one(
    record: bytes, refused: int, stay: int, says: str, policy: str
) -> None:
    ssp = SSP(StreamId("log", "views"), 0)
    wide = frame(GOOD.cast({"ts": pl.Int32}))
    counted = {"skip": "skipped", "dead_letter": "dead_lettered"}[policy]
    for bad, records in (
        (refused, [frame(GOOD), wide, record, frame(GOOD)]),
        (0, [frame(GOOD), wide, frame(GOOD.clear()), wide]),
    ):
        found: list[tuple[list[tuple[pl.DataFrame, list[int]]], TaskMetrics, list[pl.DataFrame]]] = []
        for offsets in ([0, 1, 2, 3],), ([0], [1], [2], [3]):
            letters: list[pl.DataFrame] = []
            intake, metrics = rows_intake(lambda _, rows, kept=letters: kept.append(rows), policy)
            parts = [intake.decode(ssp, some, [records[offset] for offset in some]) for some in offsets]
            found.append(([run for part in parts for run in part], metrics, letters))
        (together, metrics, letters), (one_by_one, other, others) = found
        assert _rows(together).equals(_rows(one_by_one))
        assert [h for _, heights in together for h in heights] == [h for _, heights in one_by_one for h in heights]
        assert (metrics.counters, metrics.bytes_in) == (other.counters, other.bytes_in)
        assert (metrics.counters[counted], _rows(together).height) == (bad, 6 + stay if bad else 6)
        assert len(letters) == len(others)
        assert all(says in letter["reason"][0] for letter in letters)
        assert all(letter.equals(same) for letter, same in zip(letters, others, strict=True))


def test_frames_in_order_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    intake, _ = rows_intake(_no_letters, "fail")
    ssp = SSP(StreamId("log", "views"), 0)
    intake.decode(ssp, [0], [frame(GOOD)])  # shows the unit of its times
    monkeypatch.setattr("headrace.task.inputs.intake.decode_rows", None)
    assert _rows(intake.decode(ssp, [1, 2], [frame(GOOD)] * 2)).equals(pl.concat([GOOD, GOOD]))


def test_no_frames_are_no_tables() -> None:
    intake, _ = rows_intake(_no_letters, "fail")
    assert intake.decode(SSP(StreamId("log", "views"), 0), [], []) == []


def test_a_backfill_leaves_out_what_it_had_of_each_of_many_frames() -> None:
    intake, metrics = rows_intake(_no_letters, "fail")
    intake.since_ms = 2
    ((rows, heights),) = intake.decode(SSP(StreamId("log", "views"), 0), [0, 1], [frame(GOOD)] * 2)
    assert (rows["ts"].to_list(), heights, metrics.counters["backfilled"]) == ([2, 2], [1, 1], 2)


# -- rows of row systems


def rows_intake(
    letters: Callable[[str, pl.DataFrame], None], policy: str = "dead_letter"
) -> tuple[Intake, TaskMetrics]:
    metrics = TaskMetrics()
    return Intake(app(policy).graph().streams["views"], metrics, letters), metrics


def _no_letters(stream: str, rows: pl.DataFrame) -> None:
    raise AssertionError(f"a dead letter to {stream}: {rows}")


FILE = SSP(StreamId("files", "views"), 3)


def test_lines_that_could_not_be_read_meet_the_policy_too() -> None:
    letters: list[tuple[str, pl.DataFrame]] = []
    intake, metrics = rows_intake(lambda stream, rows: letters.append((stream, rows)))
    accepted = intake.accept(FILE, GOOD, 10, [BadRecord(FILE, 12, "no JSON", b"{oops")])
    assert accepted.equals(GOOD)
    ((stream, rows),) = letters
    assert (stream, rows.rows()) == ("bad", [("files.views", 3, 12, "no JSON", b"{oops")])
    assert metrics.counters["dead_lettered"] == 1


def test_rows_that_no_frame_can_hold_can_still_be_skipped() -> None:
    intake, metrics = rows_intake(_no_letters, "skip")
    wide = pl.DataFrame({"member": ["a"], "ts": [2**100]}, {"member": pl.String, "ts": pl.Int128})
    assert (intake.accept(FILE, wide, 0).height, metrics.counters["skipped"]) == (0, 1)


def test_no_rows_are_no_trouble() -> None:
    intake, _ = rows_intake(_no_letters, "fail")
    assert intake.accept(FILE, GOOD.clear(), 0).height == 0


# -- inputs with a key


def keyed(policy: Any = "fail", key: Any = "member") -> hr.App:
    app = hr.App("page-views")
    bad = app.output("bad") if policy == "dead_letter" else None
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, key=key, on_error=policy, dead_letter=bad)
    views.send_to(app.output("out"))
    return app


def in_partition(number: int, of: int, count: int, key: tuple[str, ...] = ("member",)) -> pl.DataFrame:
    rows = pl.DataFrame({"member": [f"m{n}" for n in range(10 * count)], "ts": range(10 * count)})
    return rows.filter(pl.Series(partition_of(rows, key, of) == number)).head(count)


@pytest.mark.parametrize("rows", [3, 2000])
@pytest.mark.parametrize("key", ["member", "ts", ["ts", "member"]])
def test_rows_in_the_partition_of_their_key_are_taken(rows: int, key: str | list[str]) -> None:
    with keyed(key=key).test(3) as t:
        keys = (key,) if isinstance(key, str) else tuple(key)
        for number in range(3):
            t.feed("views", in_partition(number, 3, rows, keys), partition=number)
        t.feed("views", GOOD)
        assert t.read("out").height == 3 * rows + 2


@pytest.mark.parametrize("rows", [3, 2000])
@pytest.mark.parametrize("together", [False, True])
def test_one_row_in_another_partition_than_its_keys_stops_the_app(rows: int, together: bool) -> None:
    stray = in_partition(2, 3, 1)
    with keyed().test(3) as t, pytest.raises(hr.errors.DataError) as caught:
        if together:
            t.feed("views", in_partition(1, 3, rows), partition=1, settle=False)
        t.feed("views", pl.concat([in_partition(1, 3, rows), stray, in_partition(1, 3, rows)]), partition=1)
    name = stray.item(0, "member")
    assert "views[1] at offset" in caught.value.message
    assert "1 rows are in another partition than their key chooses with partition_by" in caught.value.message
    assert f"the first has member={name!r}, which belongs in partition 2" in caught.value.message
    assert "leave out key=" in (caught.value.hint or "")
    assert ".partition_by('member', id=...)" in (caught.value.hint or "")


@pytest.mark.parametrize(("policy", "counted"), [("skip", "skipped"), ("dead_letter", "dead_lettered")])
def test_the_policy_decides_about_rows_in_another_partition(policy: str, counted: str) -> None:
    with keyed(policy).test(2) as t:
        rows = in_partition(0, 2, 4)
        t.feed("views", pl.concat([rows, in_partition(1, 2, 2)]), partition=0)
        assert t.read("out").sort("ts").equals(rows.sort("ts"))
        assert t.counter(counted) == 2
        if policy == "dead_letter":
            assert "which belongs in partition 1" in t.read("bad").item(0, "reason")


def test_with_one_partition_and_without_a_key_every_place_is_right() -> None:
    for app, partitions in ((keyed(), 1), (keyed(key=()), 3)):
        with app.test(partitions) as t:
            t.feed("views", in_partition(0, 3, 5), partition=partitions - 1)
            assert t.read("out").height == 5


def test_a_topic_of_kafka_is_checked_by_kafkas_hash() -> None:
    keys = pl.Series("member", [f"m{n}" for n in range(50)])
    where = partitions_of(keys.cast(pl.Binary), 4)
    placing = Placing(("member",), 4, "kafka")
    for number in range(4):
        right = pl.DataFrame([keys.filter(pl.Series(where == number))])
        assert placing.misplaced(right, number) is None
        wrong = placing.misplaced(right, (number + 1) % 4)
        assert wrong is not None
        assert wrong.all()
        assert f"belongs in partition {number}" in placing.complaint(right)
        assert placing.misplaced(right.cast(pl.Binary), number) is None
    nothing = pl.DataFrame({"member": [None]}, {"member": pl.String})
    assert all(placing.misplaced(nothing, number) is not None for number in range(4))
    assert "records without a key may be in any partition" in placing.complaint(nothing)


@pytest.mark.parametrize(
    ("system", "key", "says"),
    [
        (lambda: hr.io.files("x/*.parquet"), "member", "rows of one key may be in any partition of an input of files"),
        (lambda: hr.io.kafka("t", brokers="b:1"), "member", "a topic is partitioned by the bytes of its records' keys"),
        (
            lambda: hr.io.kafka("t", brokers="b:1", record_columns={"member": "key"}, key_format="text"),
            ["member", "ts"],
            "a topic is partitioned by the bytes of its records' keys",
        ),
        (lambda: None, "page", "there is no column 'page'"),
    ],
)
def test_a_key_that_no_system_keeps_together_is_refused(system: Any, key: Any, says: str) -> None:
    app = hr.App("page-views")
    with pytest.raises(hr.errors.DeclarationError, match=re.escape(says)):
        app.input("views", {"member": pl.String, "ts": pl.Int64}, key=key, system=system())
