"""The durable formats of savepoints: golden bytes. Whoever changes them gives the format another number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.core.errors import DataError
from headrace.life.folder import decode_founding, encode_founding
from headrace.life.founding import FileSum, Manifest, TaskCopy
from headrace.plan.inventory import Dealing, Part, StageRecord
from headrace.protocol.record import CommitRecord, Donor, Founding, KeptCommit, OutputSeq, SourceEntry

RECORD = CommitRecord(
    generation=3,
    version=5000,
    next_version=5100,
    outputs=(OutputSeq(stream="log.out", partition=0, seq=10, generation=2),),
    sources=(SourceEntry(stream="log.in", partition=1, offset=64),),
    parents_version=4900,
    bookkeeping=msgspec.Raw(b'{"watermark":7}'),
)
MANIFEST = Manifest(
    app="bank",
    name="monday",
    version=5000,
    created_ms=1_700_000_000_000,
    timeline=2,
    system="log",
    written=True,
    stages=(
        StageRecord(
            stage="by-account",
            producers=(7,),
            active=1,
            parts={
                "accounts": Part(
                    kind="table", id="accounts", owner="accounts", kept_as="accounts", dealing=Dealing(by=("account",))
                )
            },
        ),
    ),
    gone=("old",),
    tasks=(TaskCopy(task="by-account/0", files={"commit.json": FileSum(size=2, sha256="ab")}),),
)
FOUNDING = Founding(
    record=RECORD,
    donors=(Donor(1, Path("t/donors/by-account-1")),),
    shares={"accounts": ("account",)},
    copied=frozenset({"rates"}),
    tasks=2,
    silent_until={("log.in", 1): 96, ("log.in", 0): None},
)

COMMIT = (
    b'{"format":4,"generation":3,"version":5000,"nextVersion":5100,"outputs":[{"stream":"log.out","partition":0,'
    b'"seq":10,"generation":2}],"inputs":[],"sources":[{"stream":"log.in","partition":1,"offset":64,"whole":false,'
    b'"covered":[]}],"parentsVersion":4900,"endOfStreamSent":false,"bookkeeping":{"watermark":7}}'
)
KEPT_BYTES = b'{"format":1,"task":"by-account/0","offset":128,"record":' + COMMIT + b"}"
FOUNDING_BYTES = (
    b'{"format":1,"record":' + COMMIT + b',"donors":["by-account/1"],"shares":{"accounts":["account"]},'
    b'"copied":["rates"],"tasks":2,"silentUntil":[{"stream":"log.in","partition":0,"until":null},'
    b'{"stream":"log.in","partition":1,"until":96}]}'
)
MANIFEST_BYTES = (
    b'{"format":1,"app":"bank","name":"monday","version":5000,"createdMs":1700000000000,"timeline":2,'
    b'"grouping":"partition","system":"log","written":true,"stages":[{"format":2,"stage":"by-account","producers":[7],'
    b'"active":1,"parts":{"accounts":{"kind":"table","id":"accounts","owner":"accounts","keptAs":"accounts","fixed":{},'
    b'"columns":{},"sheds":false,"reads":false,"writers":{},"dealing":{"by":["account"]}}},"former":[],"dropped":[]}],'
    b'"gone":["old"],"tasks":[{"task":"by-account/0","ended":false,'
    b'"files":{"commit.json":{"size":2,"sha256":"ab"}}}]}'
)


def test_the_manifest() -> None:
    encoded = MANIFEST.encode()
    assert msgspec.json.format(encoded, indent=-1) == MANIFEST_BYTES
    assert encoded == msgspec.json.format(MANIFEST_BYTES, indent=1) + b"\n"
    assert Manifest.decode(MANIFEST_BYTES, "here") == MANIFEST


def test_how_a_task_begins() -> None:
    assert encode_founding(FOUNDING, "by-account") == FOUNDING_BYTES
    assert decode_founding(FOUNDING_BYTES, Path("t")) == FOUNDING


def test_the_commit_of_a_task() -> None:
    kept = KeptCommit(task="by-account/0", offset=128, record=RECORD)
    assert kept.encode() == KEPT_BYTES
    assert KeptCommit.decode(KEPT_BYTES) == kept


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (lambda data: Manifest.decode(data, "savepoint.json"), MANIFEST_BYTES),
        (lambda data: decode_founding(data, Path("t")), FOUNDING_BYTES),
        (KeptCommit.decode, KEPT_BYTES),
    ],
    ids=["manifest", "founding", "commit"],
)
def test_another_format_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(DataError, match="format 9; this version of Headrace reads 1"):
        decode(data.replace(b'"format":1', b'"format":9', 1))
