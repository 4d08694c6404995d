"""What Amazon's services have in common for the clients of Kinesis and of lease tables: how boto3 is used, and fails.

A client makes one request for a call, without boto3's own retries, and waits for seconds at most. Credentials come from
where boto3 finds them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import boto3.session
import botocore.exceptions
from botocore.config import Config

from headrace.core.errors import HeadraceError, InfrastructureError, UnavailableError

FAILURES = (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError)
"""What a call may raise."""

THROTTLED = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
}
PASSES = {"InternalFailure", "ServiceUnavailable"}
"""What passes with time, as answers of 500 and more do."""

CREDENTIALS_HINT = (
    "check the credentials that boto3 finds here: the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), "
    "the files in ~/.aws, or the role of the machine"
)
_NO_CREDENTIALS = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.ProfileNotFound,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.SSOError,
    botocore.exceptions.LoginError,
)
_NOT_ANSWERED = (
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.ConnectionError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.MetadataRetrievalError,
)


def client_of(
    service: str, *, region: str | None, endpoint: str | None, connect_s: float, answer_s: float, connections: int = 10
) -> Any:
    """Return a new client. Raises ``ValueError`` or one of ``FAILURES``."""
    config = Config(
        connect_timeout=connect_s,
        read_timeout=answer_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
    )
    session = boto3.session.Session()
    return session.client(service, region_name=region, endpoint_url=endpoint, config=config)


def answer_of(error: Exception) -> tuple[str, int] | None:
    """Return the code and the status with which a service has refused a call; None if it has said nothing."""
    if not isinstance(error, botocore.exceptions.ClientError):
        return None
    code = error.response.get("Error", {}).get("Code", "")
    return str(code), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def local_problem(where: str, call: str, service: str, error: Exception, endpoint: str = "") -> HeadraceError | None:
    """Return what a failure of boto3 means that isn't an answer; None if it is about this call only."""
    kind = type(error).__name__
    if isinstance(error, botocore.exceptions.NoRegionError):
        return InfrastructureError(
            f"{where}: no region is configured", hint="set region=, or the variable AWS_DEFAULT_REGION"
        )
    if isinstance(error, _NO_CREDENTIALS):
        return InfrastructureError(f"{where}: {call}: {kind}: boto3 finds no usable credentials", hint=CREDENTIALS_HINT)
    if isinstance(error, _NOT_ANSWERED):
        return UnavailableError(
            f"{where}: {call}: {kind}: no answer from {service}{_at(endpoint)} or from the service that issues "
            "credentials",
            hint="check the region and endpoint_url=, and that this machine can reach that address",
        )
    return None


def _at(endpoint: str) -> str:
    """Return the address of an endpoint, without any credentials in it."""
    url = urlsplit(endpoint)
    return f" at {url.scheme}://{url.netloc.rpartition('@')[2]}" if endpoint else ""
