"""What a cluster knows of its topics, while it still elects leaders."""

from __future__ import annotations

import pytest

from chaos.kafka_server import KfakeServer
from headrace.connectors.kafka.topics import Topics
from headrace.core.errors import UnavailableError
from servers.kafka_topics import Topic


def test_a_leader_that_is_unknown_for_a_moment_is_asked_again(kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    topic.put([b"a", b"b"])
    topics = Topics(topic.settings)
    assert dict(topics.upcoming(topic.name, [0])) == {0: 2}
    kfake.fail("ListOffsets", "UNKNOWN_LEADER_EPOCH", count=3, topic=topic.name)
    assert dict(topics.upcoming(topic.name, [0])) == {0: 2}


def test_a_leader_that_stays_unknown_is_reported_in_time(kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    topics = Topics(topic.settings, answer_s=0.5)
    kfake.fail("ListOffsets", "UNKNOWN_LEADER_EPOCH", count=1_000_000, topic=topic.name)
    with pytest.raises(UnavailableError, match=r"UNKNOWN_LEADER_EPOCH|_TIMED_OUT"):  # a slow machine times out first
        topics.oldest(topic.name, [0])
