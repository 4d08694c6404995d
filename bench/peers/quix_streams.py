"""Quix Streams in the benchmark: ``quix_streams.py BROKERS APP WHAT INPUT OUTPUT COMMIT_MS STATE``.

WHAT is ``filter`` or ``count``. It runs in an environment of its own, without Headrace.
"""

import sys
from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Count
from quixstreams.models import TimestampType

brokers, app_name, what, source, sink, commit_ms, state = sys.argv[1:]
DAY_MS = 86_400_000


def event_time(value: dict[str, int], headers: object, timestamp: float, kind: TimestampType) -> int:
    """Return the time of a page view."""
    return value["ts"]


app = Application(
    broker_address=brokers,
    consumer_group=app_name,
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=int(commit_ms) / 1000,
    state_dir=state,
    loglevel="WARNING",
)
views = app.dataframe(
    app.topic(source, value_deserializer="json", key_deserializer="bytes", timestamp_extractor=event_time)
)
views = views[views["url"] != "/health"]
if what == "filter":
    kept = views.apply(lambda view: {"member": view["member"], "ts": view["ts"]})
    kept.to_topic(app.topic(sink, value_serializer="json", key_serializer="bytes"))
else:
    views = views.group_by("member")
    counts = views.tumbling_window(timedelta(seconds=10), grace_ms=timedelta(milliseconds=DAY_MS)).agg(views=Count())
    counts = counts.final(closing_strategy="partition")
    counts = counts.apply(
        lambda window, key, *_: {"member": key, "start": window["start"], "views": window["views"]}, metadata=True
    )
    counts.to_topic(app.topic(sink, value_serializer="json", key_serializer="str"))

print("running", flush=True)
app.run()
