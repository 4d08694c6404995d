"""Amazon Kinesis itself, and what its clients share with those of lease tables, through boto3, imported when needed.

A call is one request, without boto3's own retries, and limited to seconds. Errors quote Amazon's text only where it
can't repeat the signed request, and they have no cause: that one might.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import boto3.session
import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from typing_extensions import override

from headrace.connectors.kinesis import api
from headrace.connectors.kinesis.api import Access, KinesisApi, KinesisRecord, Page, Position, Put, PutResult, Shard
from headrace.core.errors import (
    HeadraceError,
    InfrastructureError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.core.secrets import SecretPlace

FAILURES = (exceptions.ClientError, exceptions.BotoCoreError)  # what a call may raise
THROTTLED = {
    "LimitExceededException", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "Throttling",
    "ThrottlingException",
}  # fmt: skip
PASSES = {"InternalFailure", "ServiceUnavailable"}  # what passes with time, as answers of 500 and more do
CREDENTIALS_HINT = (
    "check the credentials that boto3 finds here: the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), "
    "the files in ~/.aws (profile=), or the role of the machine"
)
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound,
    exceptions.TokenRetrievalError, exceptions.SSOError, exceptions.LoginError,
)  # fmt: skip
_NOT_ANSWERED = (
    exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
)  # fmt: skip


def client_of(service: str, access: Access, *, connect_s: float, answer_s: float, connections: int = 10) -> Any:
    """A new client, with these times if ``access`` says none. Raises ``ValueError`` and ``FAILURES``, too."""
    proxy = _proxy(access.proxy)
    config = Config(
        connect_timeout=connect_s if access.connect_timeout_ms is None else access.connect_timeout_ms / 1000,
        read_timeout=answer_s if access.read_timeout_ms is None else access.read_timeout_ms / 1000,
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
        proxies=None if proxy is None else {"http": proxy, "https": proxy},
    )
    own = botocore.session.Session(profile=access.profile)
    if access.role is not None:
        own.register_component("credential_provider", CredentialResolver([_Role(access, config)]))
    session = boto3.session.Session(botocore_session=own)
    return session.client(service, region_name=access.region, endpoint_url=access.endpoint_url, config=config)


class _Role(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """The credentials of a role, which STS issues to the identity that boto3 finds, and again before they expire."""

    METHOD = "assume-role"

    def __init__(self, access: Access, config: Config) -> None:
        super().__init__()
        self._access = access
        self._own = botocore.session.Session(profile=access.profile)
        self._config = config

    def load(self) -> Any:
        own = self._own.get_credentials()
        if own is None:
            raise exceptions.NoCredentialsError
        create = partial(self._own.create_client, region_name=self._access.region, config=self._config)
        session = {"RoleSessionName": "headrace"}
        fetcher = AssumeRoleCredentialFetcher(create, own, self._access.role, extra_args=session)
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)


def _proxy(proxy: str | SecretPlace | None) -> str | None:
    if not isinstance(proxy, SecretPlace):
        return proxy
    url = proxy.read(os.environ)
    if not url.startswith(("http://", "https://")):
        raise InfrastructureError(
            f"the secret in {proxy.name} should be the URL of a proxy, but isn't a URL",
            hint="put the whole URL there: the scheme (http or https), user and password, host and port",
        )
    return url


def role_problem(where: str, error: Any) -> HeadraceError | None:
    if not isinstance(error, exceptions.ClientError) or not error.operation_name.startswith("AssumeRole"):
        return None
    code, status = answer_of(error) or ("", 0)
    said = f"{where}: the role can't be assumed: STS answers {code}"
    if code in THROTTLED or code in PASSES or status >= 500:
        return UnavailableError(said)
    hint = "check role=, whom its trust policy names, and the credentials that boto3 finds here, or profile="
    return InfrastructureError(said, hint=hint)


def answer_of(error: Exception) -> tuple[str, int] | None:
    if not isinstance(error, exceptions.ClientError):
        return None
    code = error.response.get("Error", {}).get("Code", "")
    return str(code), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def local_problem(where: str, call: str, service: str, error: Exception, endpoint: str = "") -> HeadraceError | None:
    """What a failure of boto3 means that isn't an answer; None if it is about this call only."""
    kind = type(error).__name__
    if isinstance(error, exceptions.NoRegionError):
        hint = "set region=, or the variable AWS_DEFAULT_REGION"
        return InfrastructureError(f"{where}: no region is configured", hint=hint)
    if isinstance(error, _NO_CREDENTIALS):
        return InfrastructureError(f"{where}: {call}: {kind}: boto3 finds no usable credentials", hint=CREDENTIALS_HINT)
    if isinstance(error, _NOT_ANSWERED):
        url = urlsplit(endpoint)
        at = f" at {url.scheme}://{url.netloc.rpartition('@')[2]}" if endpoint else ""  # without credentials in it
        return UnavailableError(
            f"{where}: {call}: {kind}: no answer from {service}{at} or from the service that issues credentials",
            hint="check the region, endpoint_url= and proxy=, and that this machine can reach that address",
        )
    return None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANSWER_S = 10
_THROTTLED = THROTTLED | {"KMSThrottlingException", "TooManyRequestsException"}
_PASSES = PASSES | {"ExpiredNextTokenException", "ResourceInUseException"}
_REFUSED = {"InvalidArgumentException", "ParamValidation", "SerializationException", "ValidationException"}
_QUOTED = _THROTTLED | _PASSES | _REFUSED | {"AccessDeniedException", "ResourceNotFoundException"}
"""Where Amazon's text is about the call, not about its signature. (Some on signatures repeat headers with tokens.)"""


class BotoKinesis(KinesisApi):
    """One stream, by its name or its ARN."""

    def __init__(self, stream: str, access: Access) -> None:
        self._name = stream
        self._stream = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        try:
            self._client = client_of("kinesis", access, connect_s=3, answer_s=_ANSWER_S, connections=50)
            return
        except (ValueError, *FAILURES) as error:
            problem = _problem(f"the stream {stream!r} of Kinesis", "connecting", error)
        raise problem

    @override
    def describe(self) -> api.StreamSummary:
        found = self._call("describe_stream_summary")["StreamDescriptionSummary"]
        created_ms = _ms(found["StreamCreationTimestamp"])
        return api.StreamSummary(self._name, created_ms, found["OpenShardCount"], found["RetentionPeriodHours"])

    @override
    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        which: dict[str, Any] = self._stream
        for _ in range(100):
            page = self._call("list_shards", which, MaxResults=1000)
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
                hint = "the position belongs to an earlier stream of this name"
                problem = TrimmedOffsetError(error.message, hint=hint)
            elif position.time_ms is not None:  # later than Amazon's clock
                return self._iterator(shard, ShardIteratorType="LATEST")
            else:
                raise
        raise problem

    @override
    def records(self, iterator: str, limit: int) -> Page:
        shard, _, place = iterator.partition(" ")
        found = self._call("get_records", {}, shard, ShardIterator=place, Limit=min(limit, api.READ_RECORDS))
        after = found.get("NextShardIterator")
        if after is None and not found.get("ChildShards") and not self._closed(shard):
            # A wrong reply, which Amazon's own library knows too: to believe it would be to lose records.
            raise UnavailableError(f"{self._where(shard)}: Kinesis says that the shard has ended, but lists it as open")
        records = list(map(_record, found["Records"]))
        return Page(records, None if after is None else f"{shard} {after}", found.get("MillisBehindLatest", 0))

    @override
    def put(self, records: Sequence[Put]) -> list[PutResult]:
        api.check_put(self._name, records)
        entries: list[dict[str, object]] = [{"Data": one.data, "PartitionKey": one.key} for one in records]
        for entry, record in zip(entries, records, strict=True):
            if record.hash is not None:
                entry["ExplicitHashKey"] = str(record.hash)
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
        try:
            asked = self._stream if which is None else which
            answer: dict[str, Any] = getattr(self._client, name)(**asked, **parameters)
            return answer
        except FAILURES as error:
            problem = _problem(self._where(shard), name, error, self._client.meta.endpoint_url)
        raise problem  # here, so that it has no context


def _problem(where: str, call: str, error: Any, endpoint: str = "") -> Exception:
    if problem := role_problem(where, error):
        return problem
    answer = answer_of(error)
    if answer is None:
        other = InfrastructureError(f"{where}: {call}: {type(error).__name__}: {error}")
        return local_problem(where, call, "Kinesis", error, endpoint) or other
    code, status = answer
    text = error.response.get("Error", {}).get("Message", "") if code in _QUOTED or code.startswith("KMS") else ""
    said = f"{where}: {call}: {code}{': ' if text else ''}{text}"
    if code in _THROTTLED:
        return ThrottledError(said)
    if code == "ExpiredIteratorException":
        return api.IteratorExpired(said)
    if code == "ResourceNotFoundException":
        return StreamNotFoundError(said, hint="check the stream's name, the region and the account")
    if code in _REFUSED:
        return UsageError(said)
    if code in _PASSES or status >= 500:
        return UnavailableError(said)
    if code == "AccessDeniedException" or code.startswith("KMS"):
        return InfrastructureError(said, hint="grant this identity the right to make this call")
    return InfrastructureError(said, hint=CREDENTIALS_HINT)


def _asked(position: Position) -> dict[str, object]:
    if position.sequence is not None:
        kind = "AFTER_SEQUENCE_NUMBER" if position.sub is None else "AT_SEQUENCE_NUMBER"
        return {"ShardIteratorType": kind, "StartingSequenceNumber": str(position.sequence)}
    if position.time_ms is None:
        return {"ShardIteratorType": "TRIM_HORIZON"}
    return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": _EPOCH + timedelta(milliseconds=position.time_ms)}


def _record(found: Mapping[str, Any]) -> KinesisRecord:
    arrived_ms = _ms(found["ApproximateArrivalTimestamp"])
    return KinesisRecord(int(found["SequenceNumber"]), found["PartitionKey"], found["Data"], arrived_ms)


def _shard(found: Mapping[str, Any]) -> Shard:
    hashes = found["HashKeyRange"]
    return Shard(
        found["ShardId"],
        int(hashes["StartingHashKey"]),
        int(hashes["EndingHashKey"]),
        tuple(found[name] for name in ("ParentShardId", "AdjacentParentShardId") if found.get(name)),
        found["SequenceNumberRange"].get("EndingSequenceNumber") is not None,
    )


def _put_result(result: Mapping[str, Any]) -> PutResult:
    if result.get("ErrorCode"):
        return PutResult(error=f"{result['ErrorCode']}: {result.get('ErrorMessage', '')}")
    return PutResult(result["ShardId"], int(result["SequenceNumber"]))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
