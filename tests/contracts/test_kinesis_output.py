"""Rows into a stream in memory and on servers, by the target's own threads, while some calls are cut short."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import groupby

import polars as pl
import pytest
from typing_extensions import override

from headrace.connectors.kinesis.api import (
    OLDEST,
    KinesisApi,
    KinesisRecord,
    Page,
    Position,
    Put,
    PutResult,
    Shard,
    StreamSummary,
)
from headrace.connectors.kinesis.target import KinesisTarget
from headrace.core.errors import UnavailableError
from headrace.rows.formats import FormatSpec, open_format
from running_apps import wait_until
from servers.kinesis_streams import KinesisStream, StreamInMemory, StreamOnServer

WRITER = "app/stage/0/out"
MEMBERS = 40


@pytest.fixture(params=["memory", "kinesis-local", "kinesalite"])
def stream(request: pytest.FixtureRequest) -> Iterator[KinesisStream]:
    if request.param == "memory":
        opened: KinesisStream = StreamInMemory(2)
    else:
        opened = StreamOnServer(request.getfixturevalue(request.param.replace("-", "_")), 2)
    yield opened
    opened.close()


class Troubled(KinesisApi):
    """The stream, with trouble in some calls to write: refused records, lost calls, lost replies."""

    def __init__(self, api: KinesisApi, seed: int) -> None:
        self._api = api
        self._chance = random.Random(seed)
        self.lost_replies = self.refused = 0

    @override
    def put(self, records: Sequence[Put]) -> list[PutResult]:
        trouble = self._chance.random()
        if trouble < 0.1:
            raise UnavailableError("connection refused")
        taken = [self._chance.random() < 0.8 for _ in records]
        wanted = [put for put, there in zip(records, taken, strict=True) if there]
        answers = iter(self._api.put(wanted) if wanted else [])
        if trouble < 0.15:
            self.lost_replies += 1
            raise UnavailableError("connection reset")
        self.refused += taken.count(False)
        return [next(answers) if there else PutResult(error="InternalFailure") for there in taken]

    @override
    def describe(self) -> StreamSummary:
        return self._api.describe()

    @override
    def shards(self) -> list[Shard]:
        return self._api.shards()

    @override
    def iterator(self, shard: str, position: Position) -> str:
        return self._api.iterator(shard, position)

    @override
    def records(self, iterator: str, limit: int) -> Page:
        return self._api.records(iterator, limit)

    @override
    def close(self) -> None:
        pass


def records(api: KinesisApi) -> list[KinesisRecord]:
    found: list[KinesisRecord] = []
    for shard in sorted(api.shards(), key=lambda shard: shard.id):
        place: str | None = api.iterator(shard.id, OLDEST)
        while place is not None:
            page = api.records(place, 1000)
            found += page.records
            place = page.iterator if page.records else None
    return found


def test_each_member_has_all_rows_in_order(stream: KinesisStream) -> None:
    troubled = Troubled(stream.api, seed=7)
    target = KinesisTarget(stream.name, troubled, open_format(FormatSpec()), "member")
    rows = pl.DataFrame({"member": [f"m{n * 7 % MEMBERS}" for n in range(600)], "n": range(600)})
    for version, piece in enumerate(rows.iter_slices(150)):
        accepted = [target.accept(piece)]
        wait_until(lambda v=version, a=accepted: published(target, v, a), [], 1500)
        if version == 1:
            shard = stream.api.shards()[0]
            stream.split(shard.id, (shard.first + shard.last + 1) // 2)
    target.close()
    assert troubled.refused > 50
    found = [json.loads(record.data) for record in records(stream.api)]
    if not troubled.lost_replies:
        assert len(found) == rows.height
    for member in rows["member"].unique():
        came = [n for n, _ in groupby(row["n"] for row in found if row["member"] == member)]
        assert came == rows.filter(member=member)["n"].to_list(), "once, or again before the next one"


def published(target: KinesisTarget, version: int, rows: list[pl.DataFrame]) -> bool:
    try:
        return target.publish(WRITER, version, rows) is None
    except UnavailableError:
        return False
