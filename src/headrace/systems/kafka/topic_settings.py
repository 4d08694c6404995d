"""The settings of a topic, as far as this user may see them."""

from __future__ import annotations

from headrace.core.errors import HeadraceError
from headrace.core.log import logger
from headrace.systems.kafka.client import ConfigResource
from headrace.systems.kafka.topics import Topics

_ANSWER_S = 3.0

_log = logger(__name__)


def topic_settings(topics: Topics, topic: str) -> dict[str, str]:
    """Return the settings by name; none if this user isn't allowed to see them."""
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = topics.client
    try:
        with client.translating(f"looking for the settings of topic {topic!r}"):
            found = client.raw.describe_configs([asked], request_timeout=_ANSWER_S)[asked].result()
    except HeadraceError as error:
        if error.retry:
            raise
        _log.debug("can't read the settings of a topic", topic=topic, why=error.message)
        return {}
    return {name: entry.value for name, entry in found.items() if entry.value is not None}
