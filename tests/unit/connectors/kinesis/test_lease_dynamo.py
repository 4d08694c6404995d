"""The lease table in DynamoDB: what is its own, and what its errors say and keep to themselves."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest

from headrace.connectors.kinesis import leases as to
from headrace.connectors.kinesis.api import Access
from headrace.connectors.kinesis.lease_mirror import dynamo_table
from headrace.connectors.kinesis.leases import Checkpoint, Lease, LeaseTable, Written
from headrace.core.errors import HeadraceError, InfrastructureError, ThrottledError, UnavailableError
from servers.lease_tables import LeasesInDynamoDB
from servers.moto import ENVIRONMENT, MotoServer

LEASE = Lease("s", Checkpoint("1"), "a")
SECRET = "x-amz-security-token:t0ken"


def opened(name: str, server: MotoServer, **changed: Any) -> LeaseTable:
    settings = {"region": server.region, "endpoint_url": server.endpoint}
    return dynamo_table(name, Access(**(settings | changed)), wait=threading.Event().wait)


@pytest.fixture
def dynamodb(moto: MotoServer) -> LeasesInDynamoDB:
    return LeasesInDynamoDB(moto)


def test_a_new_table_is_billed_by_request(dynamodb: LeasesInDynamoDB) -> None:
    table = dynamodb.table()
    table.ensure()
    made = dynamodb.client.describe_table(TableName=dynamodb.name)["Table"]
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert made["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    table.close()


def test_a_table_of_something_else_is_refused(dynamodb: LeasesInDynamoDB) -> None:
    dynamodb.client.create_table(
        TableName=dynamodb.name,
        KeySchema=[{"AttributeName": "user", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "user", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table = dynamodb.table()
    with pytest.raises(InfrastructureError, match="its key is 'user', so it isn't a lease table"):
        table.ensure()
    table.close()


def test_a_server_that_does_not_show_the_row_is_asked_for_it(dynamodb: LeasesInDynamoDB) -> None:
    """Amazon shows the row for which a condition has failed; dynalite doesn't."""
    table = dynamodb.table()
    table.ensure()
    table.write(to.create(LEASE))
    hidden = []

    def hide(parsed: dict[str, Any], **_: object) -> None:
        hidden.append(parsed.pop("Item"))

    table._client.meta.events.register("after-call.dynamodb.UpdateItem", hide)  # type: ignore[attr-defined]
    assert table.write(to.create(LEASE)) == Written(False, LEASE)
    assert len(hidden) == 1
    table.close()


def test_a_deleted_table_is_named(dynamodb: LeasesInDynamoDB) -> None:
    table = dynamodb.table()
    with pytest.raises(InfrastructureError) as caught:
        table.leases()
    assert caught.value.message == f"lease table {dynamodb.name}: scan: DynamoDB answers ResourceNotFoundException"
    assert caught.value.hint is not None
    assert "deleted" in caught.value.hint
    table.close()


def test_a_server_that_is_gone_is_unavailable(moto: MotoServer) -> None:
    login = "user:s3cret-word"
    table = opened("leases", moto, endpoint_url=f"http://{login}@127.0.0.1:9")
    with pytest.raises(UnavailableError) as caught:
        table.leases()
    assert caught.value.retry
    said = "".join(traceback.format_exception(caught.value))
    assert "s3cret-word" not in said
    assert caught.value.__context__ is None
    table.close()


def test_without_credentials_it_says_where_they_are_looked_for(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    table = opened("leases", moto)
    with pytest.raises(InfrastructureError, match="boto3 finds no usable credentials") as caught:
        table.ensure()
    assert not caught.value.retry
    assert caught.value.hint is not None
    assert "AWS_PROFILE" in caught.value.hint
    table.close()


def test_without_a_region_it_asks_for_one(moto: MotoServer) -> None:
    with pytest.raises(InfrastructureError, match="no region is configured"):
        opened("leases", moto, region=None)


def test_a_name_that_no_table_can_have_is_refused(moto: MotoServer) -> None:
    table = opened("", moto)
    with pytest.raises(InfrastructureError) as caught:
        table.ensure()
    assert caught.value.hint is not None
    assert "check the table's name" in caught.value.hint
    table.close()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ProvisionedThroughputExceededException", 400, ThrottledError),
        ("ThrottlingException", 400, ThrottledError),
        ("RequestLimitExceeded", 400, ThrottledError),
        ("InternalServerError", 500, UnavailableError),
        ("ServiceUnavailable", 503, UnavailableError),
        ("AccessDeniedException", 400, InfrastructureError),
        ("ExpiredTokenException", 400, InfrastructureError),
        ("InvalidSignatureException", 400, InfrastructureError),
        ("UnrecognizedClientException", 400, InfrastructureError),
        ("ValidationException", 400, InfrastructureError),
    ],
)
def test_an_answer_is_explained_without_its_text(
    code: str, status: int, kind: type[HeadraceError], dynamodb: LeasesInDynamoDB
) -> None:
    """The answer is made up behind boto3's parser, which raises its own error from it."""
    table = dynamodb.table()

    def answer(http_response: Any, parsed: dict[str, Any], **_: object) -> None:
        http_response.status_code = status
        parsed.clear()
        parsed["Error"] = {"Code": code, "Message": f"The Canonical String should have been {SECRET}"}
        parsed["ResponseMetadata"] = {"HTTPStatusCode": status}

    table._client.meta.events.register("after-call.dynamodb.Scan", answer)  # type: ignore[attr-defined]
    with pytest.raises(kind) as caught:
        table.leases()
    assert type(caught.value) is kind
    assert caught.value.message == f"lease table {dynamodb.name}: scan: DynamoDB answers {code}"
    assert caught.value.retry == (kind is not InfrastructureError)
    said = "".join(traceback.format_exception(caught.value)) + repr(table)
    assert not any(secret in said for secret in (SECRET, ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], "Canonical"))
    assert caught.value.__context__ is None
    table.close()
