"""Opens a stream of Kinesis. boto3 is imported only then: it is an extra."""

from __future__ import annotations

from headrace.core.extras import needing
from headrace.systems.kinesis.api import KinesisApi
from headrace.systems.kinesis.in_process import stream_of

IN_PROCESS = "memory://"


def open_kinesis_api(stream: str, *, region: str | None = None, endpoint: str | None = None) -> KinesisApi:
    """Return a new client of a stream, by its name or its ARN.

    ``endpoint`` is the address of another server than Amazon's, or ``IN_PROCESS``.
    """
    if endpoint == IN_PROCESS:
        return stream_of(stream)
    with needing("boto3", "Kinesis", "kinesis"):
        from headrace.systems.kinesis.boto import BotoKinesis
    return BotoKinesis(stream, region=region, endpoint=endpoint)
