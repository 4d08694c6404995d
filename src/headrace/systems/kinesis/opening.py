"""Opens a stream of Kinesis. boto3 is imported only then: it is an extra."""

from __future__ import annotations

from headrace.core.extras import needing
from headrace.systems.kinesis.api import KinesisApi
from headrace.systems.kinesis.in_process import stream_of
from headrace.systems.kinesis.options import Access

IN_PROCESS = "memory://"


def open_kinesis_api(stream: str, access: Access) -> KinesisApi:
    """Return a new client of a stream, by its name or its ARN. The endpoint may be ``IN_PROCESS``."""
    if access.endpoint == IN_PROCESS:
        return stream_of(stream)
    with needing("boto3", "Kinesis", "kinesis"):
        from headrace.systems.kinesis.boto import BotoKinesis
    return BotoKinesis(stream, access)
