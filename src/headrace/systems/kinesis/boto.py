"""Kinesis itself, through boto3. It is imported when a stream of Kinesis is first used.

A call is one request, without boto3's own retries, and limited to seconds. Credentials come from where boto3 finds
them. Errors quote Amazon's text only where it can't repeat the signed request, and they have no cause: that one might.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from typing_extensions import override

from headrace.core.errors import (
    InfrastructureError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.systems.kinesis import amazon
from headrace.systems.kinesis.api import (
    READ_RECORDS,
    IteratorExpired,
    KinesisApi,
    KinesisRecord,
    Page,
    Put,
    PutResult,
    Shard,
    StreamSummary,
    check_put,
)
from headrace.systems.kinesis.options import Access
from headrace.systems.kinesis.shard_position import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONNECT_S = 3
_ANSWER_S = 10
_CONNECTIONS = 50
_SHARDS_A_PAGE = 1000
_PAGES = 100

_THROTTLED = amazon.THROTTLED | {"KMSThrottlingException", "TooManyRequestsException"}
_PASSES = amazon.PASSES | {"ExpiredNextTokenException", "ResourceInUseException"}
_REFUSED = {"InvalidArgumentException", "ParamValidation", "SerializationException", "ValidationException"}
_QUOTED = _THROTTLED | _PASSES | _REFUSED | {"AccessDeniedException", "ResourceNotFoundException"}
"""Where Amazon's text is about the call, not about its signature. (Some on signatures repeat headers with tokens.)"""


class BotoKinesis(KinesisApi):
    """One stream, by its name or its ARN."""

    def __init__(self, stream: str, access: Access) -> None:
        self._name = stream
        self._stream = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        try:
            self._client = amazon.client_of(
                "kinesis", access, connect_s=_CONNECT_S, answer_s=_ANSWER_S, connections=_CONNECTIONS
            )
            return
        except (ValueError, *amazon.FAILURES) as error:
            problem = _problem(f"the stream {stream!r} of Kinesis", "connecting", error)
        raise problem

    @override
    def describe(self) -> StreamSummary:
        found = self._call("describe_stream_summary")["StreamDescriptionSummary"]
        created_ms = _ms(found["StreamCreationTimestamp"])
        return StreamSummary(self._name, created_ms, found["OpenShardCount"], found["RetentionPeriodHours"])

    @override
    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        which: dict[str, Any] = self._stream
        for _ in range(_PAGES):
            page = self._call("list_shards", which, MaxResults=_SHARDS_A_PAGE)
            found += map(_shard, page["Shards"])
            if not page.get("NextToken"):
                return found
            which = {"NextToken": page["NextToken"]}
        raise InfrastructureError(f"{self._where()} has more than {len(found)} shards, Headrace's limit")

    @override
    def iterator(self, shard: str, position: Position) -> str:
        try:
            return self._iterator(shard, **_asked(position))
        except UsageError as error:
            if position.sequence is not None:
                problem = TrimmedOffsetError(
                    error.message, hint="the position belongs to an earlier stream of this name"
                )
            elif position.time_ms is not None:  # later than Amazon's clock
                return self._iterator(shard, ShardIteratorType="LATEST")
            else:
                raise
        raise problem

    @override
    def records(self, iterator: str, limit: int) -> Page:
        shard, _, place = iterator.partition(" ")
        found = self._call("get_records", {}, shard, ShardIterator=place, Limit=min(limit, READ_RECORDS))
        after = found.get("NextShardIterator")
        if after is None and not found.get("ChildShards") and not self._closed(shard):
            # A wrong reply, which Amazon's own library knows too: to believe it would be to lose records.
            raise UnavailableError(f"{self._where(shard)}: Kinesis says that the shard has ended, but lists it as open")
        records = [
            KinesisRecord(
                int(record["SequenceNumber"]),
                record["PartitionKey"],
                record["Data"],
                _ms(record["ApproximateArrivalTimestamp"]),
            )
            for record in found["Records"]
        ]
        return Page(records, None if after is None else f"{shard} {after}", found.get("MillisBehindLatest", 0))

    @override
    def put(self, records: Sequence[Put]) -> list[PutResult]:
        check_put(self._name, records)
        entries = [_entry(record) for record in records]
        return [_put_result(result) for result in self._call("put_records", Records=entries)["Records"]]

    @override
    def close(self) -> None:
        self._client.close()

    def _iterator(self, shard: str, **asked: object) -> str:
        found = self._call("get_shard_iterator", self._stream, shard, ShardId=shard, **asked)
        return f"{shard} {found['ShardIterator']}"

    def _closed(self, shard: str) -> bool:
        return any(one.closed for one in self.shards() if one.id == shard)

    def _where(self, shard: str = "") -> str:
        return f"the stream {self._name!r} of Kinesis{', ' if shard else ''}{shard}"

    def _call(
        self, name: str, which: Mapping[str, Any] | None = None, shard: str = "", **parameters: object
    ) -> dict[str, Any]:
        """Make one request about ``which`` stream or page: this stream, if it isn't given."""
        try:
            answer: dict[str, Any] = getattr(self._client, name)(
                **(self._stream if which is None else which), **parameters
            )
            return answer
        except amazon.FAILURES as error:
            problem = _problem(self._where(shard), name, error, self._client.meta.endpoint_url)
        raise problem  # here, so that it has no context


def _problem(where: str, call: str, error: Any, endpoint: str = "") -> Exception:
    """What an error of boto3 means."""
    if problem := amazon.role_problem(where, error):
        return problem
    answer = amazon.answer_of(error)
    if answer is None:
        known = amazon.local_problem(where, call, "Kinesis", error, endpoint)
        return known or InfrastructureError(f"{where}: {call}: {type(error).__name__}: {error}")
    code, status = answer
    text = error.response.get("Error", {}).get("Message", "") if code in _QUOTED or code.startswith("KMS") else ""
    said = f"{where}: {call}: {code}{': ' if text else ''}{text}"
    if code in _THROTTLED:
        return ThrottledError(said)
    if code == "ExpiredIteratorException":
        return IteratorExpired(said)
    if code == "ResourceNotFoundException":
        return StreamNotFoundError(said, hint="check the stream's name, the region and the account")
    if code in _REFUSED:
        return UsageError(said)
    if code in _PASSES or status >= 500:
        return UnavailableError(said)
    if code == "AccessDeniedException" or code.startswith("KMS"):
        return InfrastructureError(said, hint="grant this identity the right to make this call")
    return InfrastructureError(said, hint=amazon.CREDENTIALS_HINT)


def _asked(position: Position) -> dict[str, object]:
    """How GetShardIterator is asked for a position."""
    if position.sequence is not None:
        kind = "AFTER_SEQUENCE_NUMBER" if position.sub is None else "AT_SEQUENCE_NUMBER"
        return {"ShardIteratorType": kind, "StartingSequenceNumber": str(position.sequence)}
    if position.time_ms is None:
        return {"ShardIteratorType": "TRIM_HORIZON"}
    moment = _EPOCH + timedelta(milliseconds=position.time_ms)
    return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}


def _shard(found: Mapping[str, Any]) -> Shard:
    hashes = found["HashKeyRange"]
    return Shard(
        found["ShardId"],
        int(hashes["StartingHashKey"]),
        int(hashes["EndingHashKey"]),
        tuple(found[name] for name in ("ParentShardId", "AdjacentParentShardId") if found.get(name)),
        found["SequenceNumberRange"].get("EndingSequenceNumber") is not None,
    )


def _entry(record: Put) -> dict[str, object]:
    chosen = {} if record.hash is None else {"ExplicitHashKey": str(record.hash)}
    return {"Data": record.data, "PartitionKey": record.key, **chosen}


def _put_result(result: Mapping[str, Any]) -> PutResult:
    if result.get("ErrorCode"):
        return PutResult(error=f"{result['ErrorCode']}: {result.get('ErrorMessage', '')}")
    return PutResult(result["ShardId"], int(result["SequenceNumber"]))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
