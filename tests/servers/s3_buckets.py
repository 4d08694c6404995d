"""Buckets on moto's S3."""

from __future__ import annotations

import uuid
from typing import Any

import boto3.session

from servers.moto import MotoServer


def s3_on(server: MotoServer) -> Any:
    """A client of Amazon's own."""
    return boto3.session.Session().client("s3", endpoint_url=server.endpoint, region_name=server.region)


def bucket_on(server: MotoServer) -> str:
    """The name of a new bucket."""
    name = f"snapshots-{uuid.uuid4().hex}"
    s3_on(server).create_bucket(Bucket=name)
    return name
