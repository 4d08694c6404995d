import json

import msgspec
import pytest

from headrace.core.errors import FrameError
from headrace.core.frame import END_VERSION
from headrace.protocol.record import (
    AbortRecord,
    Change,
    CommitRecord,
    Covered,
    Detour,
    InputEntry,
    LocalCheckpoint,
    OutputSeq,
    ParentEntry,
    SourceEntry,
    decode_abort,
    decode_commit,
    encode_record,
)

RECORD = CommitRecord(
    generation=2,
    version=7,
    next_version=8,
    outputs=(OutputSeq(stream="log.b", partition=0, seq=5, generation=2),),
    inputs=(
        InputEntry(
            stream="log.a",
            partition=1,
            offset=12,
            parents=(ParentEntry(producer=3, generation=1, version=7, seq=9, resume_offset=12),),
            landmark="4:0000beef",
        ),
    ),
    sources=(
        SourceEntry(
            stream="log.s", partition=0, offset=4, covered=(Covered(producer=0, generation=1, seq=2, committed=1),)
        ),
    ),
    parents_version=7,
    end_of_stream_sent=True,
    bookkeeping=msgspec.Raw(b'{"watermark":3}'),
)
GOLDEN = (
    b'{"format":4,"generation":2,"version":7,"nextVersion":8,"outputs":[{"stream":"log.b","partition":0,"seq":5,'
    b'"generation":2}],'
    b'"inputs":[{"stream":"log.a","partition":1,"offset":12,"parents":[{"producer":3,"generation":1,"version":7,'
    b'"seq":9,"resumeOffset":12}],"landmark":"4:0000beef"}],"sources":[{"stream":"log.s","partition":0,"offset":4,"whole":false,"covered":[{"producer":0,'
    b'"generation":1,"seq":2,"committed":1}]}],"parentsVersion":7,"endOfStreamSent":true,'
    b'"bookkeeping":{"watermark":3}}'
)


def test_a_commit_record_has_these_bytes():
    assert encode_record(RECORD) == GOLDEN
    assert decode_commit(memoryview(GOLDEN)) == RECORD


def test_a_commit_record_has_the_shards_of_a_slot():
    (source,) = RECORD.sources
    shards = {"shardId-000000000000": "SHARD_END", "shardId-000000000002": "TRIM_HORIZON"}
    record = msgspec.structs.replace(RECORD, sources=(msgspec.structs.replace(source, shards=shards),))
    states = b'"shards":{"shardId-000000000000":"SHARD_END","shardId-000000000002":"TRIM_HORIZON"}'
    data = GOLDEN.replace(b'"committed":1}]}]', b'"committed":1}],' + states + b"}]")
    assert encode_record(record) == data
    assert decode_commit(data) == record


def test_a_commit_record_has_the_position_of_plain_frames():
    (source,) = RECORD.sources
    record = msgspec.structs.replace(RECORD, sources=(msgspec.structs.replace(source, plain_before=9),))
    data = GOLDEN.replace(b'"committed":1}]}]', b'"committed":1}],"plainBefore":9}]')
    assert encode_record(record) == data
    assert decode_commit(data).sources == record.sources


def test_a_commit_record_has_a_landmark_of_what_was_written():
    (output,) = RECORD.outputs
    record = msgspec.structs.replace(RECORD, outputs=(msgspec.structs.replace(output, landmark="4:0000beef"),))
    data = GOLDEN.replace(b'"seq":5,"generation":2}', b'"seq":5,"generation":2,"landmark":"4:0000beef"}')
    assert encode_record(record) == data
    assert decode_commit(data).outputs == record.outputs


def test_a_commit_record_has_a_landmark_of_what_was_read():
    (source,) = RECORD.sources
    record = msgspec.structs.replace(RECORD, sources=(msgspec.structs.replace(source, landmark="32:00c0ffee"),))
    data = GOLDEN.replace(b'"committed":1}]}]', b'"committed":1}],"landmark":"32:00c0ffee"}]')
    assert encode_record(record) == data
    assert decode_commit(data).sources == record.sources


def test_a_commit_record_has_the_way_back_from_a_past_range():
    (source,) = RECORD.sources
    detour = Detour(until=4, offset=90, covered=source.covered, plain_before=95, since_ms=7, landmark="32:00c0ffee")
    record = msgspec.structs.replace(RECORD, sources=(msgspec.structs.replace(source, detour=detour),))
    back = (
        b'"detour":{"until":4,"offset":90,"whole":false,"covered":[{"producer":0,"generation":1,"seq":2,"committed":1}],'
        b'"plainBefore":95,"sinceMs":7,"landmark":"32:00c0ffee"}'
    )
    data = GOLDEN.replace(b'"committed":1}]}],"parents', b'"committed":1}],' + back + b'}],"parents')
    assert encode_record(record) == data
    assert decode_commit(data).sources == record.sources


def test_the_last_commit_says_that_nothing_follows():
    assert not RECORD.ended
    final = msgspec.structs.replace(RECORD, next_version=END_VERSION)
    assert decode_commit(encode_record(final)).ended


def test_an_abort_record_has_these_bytes():
    record = AbortRecord(generation=4, writer="w1")
    assert encode_record(record) == b'{"format":1,"generation":4,"writer":"w1"}'
    assert decode_abort(encode_record(record)) == record


def test_a_local_checkpoint_has_these_bytes():
    local = LocalCheckpoint(offset=258, generation=3, version=-1)
    assert local.encode().hex() == "01" + "0000000000000102" + "00000003" + "ffffffffffffffff"
    assert LocalCheckpoint.decode(local.encode()) == local


def test_a_change_has_these_bytes():
    assert Change("per-10s", b"\x00xyz").encode() == b"\x01\x00\x07per-10s\x00xyz"
    back = Change.decode(memoryview(Change("é", b"\xff").encode()))
    assert (back.store, bytes(back.change)) == ("é", b"\xff")


@pytest.mark.parametrize(
    ("decode", "data", "says"),
    [
        (decode_commit, b"{", "unreadable commit record"),
        (decode_commit, json.dumps(json.loads(GOLDEN) | {"format": 9}).encode(), "commit record of format 9"),
        (decode_abort, b'{"format":1}', "unreadable abort record"),
        (decode_abort, b'{"format":2,"generation":1,"writer":""}', "abort record of format 2"),
        (LocalCheckpoint.decode, b"\x01", "has 21 bytes, this one has 1"),
        (LocalCheckpoint.decode, b"\x02" + b"\x00" * 20, "local checkpoint of format 2"),
        (Change.decode, b"\x01", "at least 3 bytes"),
        (Change.decode, b"\x05\x00\x00", "change of format 5"),
        (Change.decode, b"\x01\x00\x09abc", "has a store name of 9 bytes, but only 3 follow"),
        (Change.decode, b"\x01\x00\x01\xff", "isn't UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(decode, data, says):
    with pytest.raises(FrameError, match=says):
        decode(data)
