from __future__ import annotations

import gc
import uuid
import weakref

import pytest

from chaos.kafka_server import Broker, KafkaServer, KfakeServer
from headrace.connectors.kafka.log_system import KafkaLogSystem
from headrace.connectors.kafka.settings import KafkaSettings, LogOptions
from headrace.kit.contracts import check_system, system_checks


def _check(broker: Broker, check: str, wait_s: float) -> None:
    options = LogOptions(KafkaSettings(broker.address), prefix=f"{uuid.uuid4().hex[:8]}.")
    check_system(lambda: KafkaLogSystem(options), only=check, wait_s=wait_s)


@pytest.mark.parametrize("check", system_checks())
def test_a_log_in_kfake_keeps_the_contract(check: str, kfake: KfakeServer) -> None:
    _check(kfake, check, 30)


def test_connections_end_with_the_system_though_a_topic_was_not_found(kfake: KfakeServer) -> None:
    options = LogOptions(KafkaSettings(kfake.address), prefix=f"{uuid.uuid4().hex[:8]}.")
    gc.disable()  # what ends now ends because nothing refers to it
    try:
        admin = KafkaLogSystem(options).admin()
        assert admin.describe("views") is None
        topics = weakref.ref(admin._topics)
        del admin
        assert topics() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("check", system_checks())
def test_a_log_in_kafka_keeps_the_contract(check: str, kafka_broker: KafkaServer) -> None:
    _check(kafka_broker, check, 30)
