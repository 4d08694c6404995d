"""What Amazon's services have in common for the clients of Kinesis and of lease tables: how boto3 is used, and fails.

A client makes one request for a call, without boto3's own retries, and waits for seconds at most. Credentials come from
where boto3 finds them.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import boto3.session
import botocore.exceptions
import botocore.session
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)

from headrace.core.errors import HeadraceError, InfrastructureError, UnavailableError
from headrace.core.secret_places import SecretPlace
from headrace.systems.kinesis.options import Access

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
    "the files in ~/.aws (profile=), or the role of the machine"
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


def client_of(service: str, access: Access, *, connect_s: float, answer_s: float, connections: int = 10) -> Any:
    """Return a new client. The times are for an ``access`` that says none.

    Raises ``ValueError``, one of ``FAILURES``, or ``InfrastructureError``.
    """
    proxy = _proxy(access.proxy)
    config = Config(
        connect_timeout=connect_s if access.connect_ms is None else access.connect_ms / 1000,
        read_timeout=answer_s if access.answer_ms is None else access.answer_ms / 1000,
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
        proxies=None if proxy is None else {"http": proxy, "https": proxy},
    )
    own = botocore.session.Session(profile=access.profile)
    if access.role is not None:
        own.register_component("credential_provider", CredentialResolver([_Role(access, config)]))
    session = boto3.session.Session(botocore_session=own)
    return session.client(service, region_name=access.region, endpoint_url=access.endpoint, config=config)


class _Role(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """The credentials of a role, which STS issues to the identity that boto3 finds, and again before they expire."""

    METHOD = "assume-role"

    def __init__(self, access: Access, config: Config) -> None:
        super().__init__()
        self._access = access
        self._own = botocore.session.Session(profile=access.profile)
        self._config = config

    def load(self) -> Any:
        """The credentials, which are asked for when they are first used."""
        own = self._own.get_credentials()
        if own is None:
            raise botocore.exceptions.NoCredentialsError
        fetcher = AssumeRoleCredentialFetcher(
            partial(self._own.create_client, region_name=self._access.region, config=self._config),
            own,
            self._access.role,
            extra_args={"RoleSessionName": "headrace"},
        )
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)


def _proxy(proxy: str | SecretPlace | None) -> str | None:
    """The URL of a proxy. No error has what a secret says."""
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
    """Return what it means that a role couldn't be assumed; None if the error isn't about that."""
    if not isinstance(error, botocore.exceptions.ClientError) or not error.operation_name.startswith("AssumeRole"):
        return None
    code, status = answer_of(error) or ("", 0)
    said = f"{where}: the role can't be assumed: STS answers {code}"
    if code in THROTTLED or code in PASSES or status >= 500:
        return UnavailableError(said)
    return InfrastructureError(
        said, hint="check role=, whom its trust policy names, and the credentials that boto3 finds here, or profile="
    )


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
            hint="check the region, endpoint_url= and proxy=, and that this machine can reach that address",
        )
    return None


def _at(endpoint: str) -> str:
    """Return the address of an endpoint, without any credentials in it."""
    url = urlsplit(endpoint)
    return f" at {url.scheme}://{url.netloc.rpartition('@')[2]}" if endpoint else ""
