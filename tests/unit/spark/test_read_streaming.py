"""Streaming reads, without a session: what micro-batches cover, restarts, and the form of offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from app_task import AppTask
from headrace.core.errors import DataError, DeploymentError, TrimmedOffsetError
from headrace.core.ids import SSP
from headrace.systems.log.system import LogSystem
from readers_of_spark import ALL, NUMBERS, ends, numbers, stream, write


class Query:
    """A streaming query: it plans and reads batches, and goes on from its last offset after a restart."""

    def __init__(self, home: Path, **options: object) -> None:
        self.reader = stream(home, **options)
        self.offset = self.reader.initialOffset()
        self.batches: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = []

    def trigger(self, limit: ReadLimit = ALL) -> list[int] | None:
        """Run a batch; None if there is nothing to do."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if end == self.offset:
            return None
        found = numbers(self.reader, self.reader.partitions(self.offset, end))
        self.batches.append((self.offset, end, found))
        self.offset = end
        return found


class TestStream:
    def test_batches_have_what_has_been_committed_since(self, home: Path) -> None:
        query = Query(home)
        assert query.trigger() is None
        write(home, 1)
        task = AppTask(home, partition=1)
        task.start()
        task.rows(2)
        assert query.trigger() == [1]
        task.rows(3)
        assert query.trigger() is None
        task.commit()
        task.close()
        assert query.trigger() == [2, 3]
        assert query.trigger() is None

    def test_begins_with_what_comes_if_nothing_else_is_said(self, home: Path) -> None:
        write(home, 1)
        query = Query(home, startingOffsets="latest")
        write(home, 2)
        assert query.trigger() == [2]

    def test_a_batch_is_the_same_for_another_process_long_after(self, home: Path) -> None:
        query = Query(home)
        held = AppTask(home, 99)
        held.start()
        for value in range(1, 40):
            held.rows(1000 + value)
            write(home, value, partition=value % 2)
            if value % 13 == 0:
                held.commit()
            if value % 3 == 0:
                query.trigger()
        held.close()
        again = stream(home)
        for start, end, found in query.batches:
            assert numbers(again, again.partitions(start, end)) == found
            # Planned by a process that starts with this batch.
            assert stream(home).latestOffset(start, ReadMaxRows(1)) != start
        everything = [n for _, _, found in query.batches for n in found]
        assert len(everything) == len(set(everything)) == 39 + 39

    def test_a_restart_goes_on_where_the_offset_says(self, home: Path) -> None:
        query = Query(home)
        task = AppTask(home)
        task.start()
        task.rows(1)
        write(home, 2)
        assert query.trigger() == [2]
        query.reader = stream(home)
        task.commit()
        task.close()
        assert query.trigger() == [1]

    def test_batches_are_limited(self, home: Path) -> None:
        for value in range(40):
            write(home, value, partition=value % 2)
        query = Query(home, maxOffsetsPerTrigger=10)
        limit = query.reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(10)
        sizes: list[int] = []
        while (found := query.trigger(limit)) is not None:
            sizes.append(len(found))
        assert sum(sizes) == 40
        assert max(sizes) <= 12
        assert stream(home).getDefaultReadLimit() == ALL

    def test_frames_without_rows_make_no_batch(self, home: Path) -> None:
        write(home, 1)
        query = Query(home)
        assert query.trigger() == [1]
        task = AppTask(home)
        for _ in range(20):
            task.start()
            task.commit()
        task.close()
        assert query.trigger() is None

    def test_shows_what_is_written_if_asked(self, home: Path) -> None:
        query = Query(home, committed="false")
        task = AppTask(home)
        task.start()
        task.rows(1)
        assert query.trigger() == [1]
        task.start()
        task.rows(2)
        task.commit()
        task.close()
        assert query.trigger() == [2]
        assert query.trigger() is None

    def test_available_now_that_begins_with_what_comes_has_nothing_to_do(self, home: Path) -> None:
        reader = stream(home, startingOffsets="latest", maxOffsetsPerTrigger=5)
        reader.prepareForTriggerAvailableNow()
        write(home, 1)
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadMaxRows(5)) == start
        assert reader.partitions(start, start) == []

    def test_available_now_ends_with_what_was_there(self, home: Path) -> None:
        write(home, 1)
        query = Query(home)
        query.reader.prepareForTriggerAvailableNow()
        write(home, 2)
        assert query.trigger() == [1]
        assert query.trigger() is None

    def test_partitions_that_are_added_are_read_from_their_beginning(self, home: Path) -> None:
        write(home, 1)
        query = Query(home, startingOffsets="latest")
        LogSystem(home / "streams").admin().add_partitions("numbers", 3)
        write(home, 3, partition=2)
        assert query.trigger() == [3]

    def test_a_batch_is_split(self, home: Path) -> None:
        for value in range(12):
            write(home, value)
        reader = stream(home, minPartitions=4)
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, ALL))
        assert len(parts) >= 4
        assert numbers(reader, parts) == list(range(12))

    def test_of_a_trimmed_stream(self, home: Path) -> None:
        careful, careless = Query(home), Query(home, failOnDataLoss="false")
        write(home, 1)
        LogSystem(home / "streams").admin().trim(SSP(NUMBERS, 0), ends(home)["0"])
        write(home, 2)
        with pytest.raises(TrimmedOffsetError, match="were trimmed before they were read"):
            careful.trigger()
        assert careless.trigger() == [2]
        assert careless.trigger() is None

    def test_shows_sparks_log_how_far_the_stream_goes(self, home: Path) -> None:
        write(home, 1)
        assert stream(home).reportLatestOffset() == ends(home)


class TestOffsets:
    GOLDEN: ClassVar[dict[str, Any]] = {
        "format": 1,
        "stream": "log.numbers",
        "committed": True,
        "partitions": {
            "0": {
                "end": 231,
                "position": '{"format":2,"offset":122,"whole":false,'
                '"covered":[{"producer":7,"generation":1,"seq":1,"committed":0}]}',
            },
            "1": {"end": 32, "position": '{"format":2,"offset":32,"whole":false,"covered":[]}'},
        },
    }
    """Spark's checkpoints hold this."""

    def test_have_a_form_that_stays(self, home: Path) -> None:
        places = stream(home)._decode(self.GOLDEN)
        assert stream(home)._encode(places) == self.GOLDEN
        assert places[0].end == 231
        assert places[0].position.covered[0].producer == 7

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"format": 2}, DataError, "an offset of format 2; this version of Headrace reads 1"),
            ({"partitions": {"0": {"end": 1, "position": "{}"}}}, DataError, "reader position"),
            ({"partitions": {"0": 1}}, DataError, "can't be read"),
            ({"stream": "log.letters"}, DeploymentError, "log.letters.*the query reads log.numbers"),
            ({"committed": False}, DeploymentError, "committed=False; .* committed=True"),
        ],
    )
    def test_that_are_of_something_else_are_refused(
        self, home: Path, change: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            stream(home).latestOffset(self.GOLDEN | change, ALL)
