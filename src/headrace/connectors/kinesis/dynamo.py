"""A lease table in DynamoDB, through boto3. It is imported when an input names a table.

Errors name DynamoDB's code, never its text, which may repeat the signed request, and they have no cause: that one
might.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from headrace.connectors.kinesis import amazon
from headrace.connectors.kinesis.api import Access
from headrace.connectors.kinesis.leases import KEY, Item, Kind, Lease, LeaseTable, Write, Written, parse_lease, text
from headrace.core.errors import InfrastructureError, ThrottledError, UnavailableError

_LOOK_S, _LOOKS = 0.5, 120  # after how long, and how often to look whether a new table can be used
_PASSES = amazon.PASSES | {"InternalServerError"}
_RIGHTS = "DescribeTable, CreateTable, Scan, GetItem, UpdateItem and DeleteItem"


class DynamoLeaseTable(LeaseTable):
    """One table. If it is created, it is billed by request, and KCL 3 adds the index of owners by itself."""

    def __init__(self, name: str, access: Access, wait: Callable[[float], bool]) -> None:
        self.name = name
        self._wait = wait
        try:
            self._client = amazon.client_of("dynamodb", access, connect_s=2, answer_s=3)
            return
        except (ValueError, *amazon.FAILURES) as error:
            problem = _problem(f"lease table {name}", "connecting", error)
        raise problem

    @override
    def ensure(self) -> None:
        for look in range(_LOOKS):
            found = self._call("describe_table", unless="ResourceNotFoundException").get("Table")
            if found is None and look == 0:
                self._create()
            if found is not None:
                keys = [(key["AttributeName"], key["KeyType"]) for key in found["KeySchema"]]
                if keys != [(KEY, "HASH")]:
                    said = f"lease table {self.name}: its key is {keys[0][0]!r}, so it isn't a lease table"
                    raise InfrastructureError(said, hint="name another table; one that doesn't exist is created")
                if found["TableStatus"] in ("ACTIVE", "UPDATING"):
                    return
            if self._wait(_LOOK_S):
                break
        raise UnavailableError(f"lease table {self.name}: it was created, but isn't active yet")

    @override
    def leases(self) -> list[Lease]:
        found: list[Lease] = []
        more: Mapping[str, Any] = {}
        while True:
            page = self._call("scan", ConsistentRead=True, **more)
            found += [lease for lease in map(parse_lease, page["Items"]) if lease is not None]
            if not page.get("LastEvaluatedKey"):
                return found
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    @override
    def write(self, write: Write) -> Written:
        key = {KEY: text(write.shard)}
        request = {"Key": key, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"} | _expressions(write)
        try:
            if write.kind is Kind.DELETE:
                self._call("delete_item", **request)
                return Written(True, None)
            changed = self._call("update_item", **request, ReturnValues="ALL_NEW")
            return Written(True, parse_lease(changed["Attributes"]))
        except _ConditionFailed as failed:
            item = failed.item
        if item is None:  # there is no row, or the server isn't Amazon's and doesn't show it
            item = self._call("get_item", Key=key, ConsistentRead=True).get("Item")
        return Written(False, None if item is None else parse_lease(item))

    @override
    def close(self) -> None:
        self._client.close()

    def _create(self) -> None:
        self._call(
            "create_table",
            unless="ResourceInUseException",  # another client creates it at the same time
            KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def _call(self, name: str, unless: str = "", **parameters: object) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, name)(TableName=self.name, **parameters)
            return answer
        except amazon.FAILURES as error:
            said = amazon.answer_of(error)
            if unless and said is not None and said[0] == unless:
                return {}
            problem = _problem(f"lease table {self.name}", name, error, self._client.meta.endpoint_url)
        raise problem  # here, so that it has no context


class _ConditionFailed(Exception):
    """The row isn't as it was expected. ``item`` is the row, if the server shows it."""

    item: Item | None = None


def _problem(where: str, call: str, error: Any, endpoint: str = "") -> Exception:
    if problem := amazon.role_problem(where, error):
        return problem
    answer = amazon.answer_of(error)
    if answer is None:
        known = amazon.local_problem(where, call, "DynamoDB", error, endpoint)
        return known or InfrastructureError(
            f"{where}: {call}: {type(error).__name__}: boto3 can't send the request",
            hint="check the table's name, the region and the endpoint",
        )
    code, status = answer
    said = f"{where}: {call}: DynamoDB answers {code}"
    if code == "ConditionalCheckFailedException":
        failed = _ConditionFailed(said)
        failed.item = error.response.get("Item")
        return failed
    if code == "ResourceNotFoundException":
        return InfrastructureError(said, hint="the table was deleted: start the app again, which creates it")
    if code == "ResourceInUseException":
        return UnavailableError(said)
    if code in amazon.THROTTLED:
        return ThrottledError(said, hint="raise the table's capacity, or bill it per request")
    if code in _PASSES or status >= 500:
        return UnavailableError(said)
    if code == "ValidationException":
        return InfrastructureError(said, hint="check the table's name")
    hint = f"check the credentials that boto3 finds here; their identity needs the rights {_RIGHTS}"
    return InfrastructureError(said, hint=hint)


def _expressions(write: Write) -> dict[str, Any]:
    put = {name: value for name, value in write.put.items() if name != KEY}
    names = {name: f"#n{i}" for i, name in enumerate(dict.fromkeys([*write.when, *put, *write.remove, *write.add]))}
    values: dict[str, Any] = {}

    def value(one: Any) -> str:
        values[f":v{len(values)}"] = one
        return f":v{len(values) - 1}"

    conditions = [
        f"attribute_not_exists({names[name]})" if wanted is None else f"{names[name]} = {value(wanted)}"
        for name, wanted in write.when.items()
    ]
    parts = {
        "SET": [f"{names[name]} = {value(one)}" for name, one in put.items()],
        "REMOVE": [names[name] for name in write.remove],
        "ADD": [f"{names[name]} {value({'N': str(by)})}" for name, by in write.add.items()],
    }
    found: dict[str, Any] = {
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
    }
    update = " ".join(f"{word} {', '.join(part)}" for word, part in parts.items() if part)
    if update:
        found["UpdateExpression"] = update
    return found | ({"ExpressionAttributeValues": values} if values else {})
