"""The place of an app's snapshots in an object store: ``object_store(...)``."""

from __future__ import annotations

from headrace.api.location import Declaring
from headrace.stores.objects.place import ObjectPlace, object_place


def object_store(
    url: str, *, endpoint: str | None = None, region: str | None = None, bandwidth: str | None = None
) -> ObjectPlace:
    """Name a place in an object store for ``snapshots=`` of ``hr.App``. Without options, just pass the URL there.

    Drivers, containers and commands read credentials from their environment (``AWS_ACCESS_KEY_ID`` and so on), or use
    the role of the machine.

    Parameters
    ----------
    url
        ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or ``file:///shared/folder``.
    endpoint
        The address of a store that isn't Amazon's but has the same API as S3. By default the environment variable
        ``AWS_ENDPOINT_URL``.
    region
        The region of the bucket. By default the environment variable ``AWS_REGION``.
    bandwidth
        The highest rate at which a container sends, such as ``"50MB/s"``. By default there is no limit.

    Returns
    -------
    ObjectPlace

    Examples
    --------
    >>> store = hr.io.object_store("s3://bucket/page-views", region="eu-central-1", bandwidth="50MB/s")
    >>> app = hr.App("page-views", snapshots=store)
    >>> print(app.settings.snapshots)
    s3://bucket/page-views
    """
    with Declaring("object_store", quoting=False):
        return object_place(url, endpoint, region, bandwidth)
