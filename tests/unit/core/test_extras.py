from __future__ import annotations

import pytest

from headrace.core.errors import InfrastructureError, needing


def test_what_is_missing_says_who_needs_it_and_how_to_install_it() -> None:
    with (
        pytest.raises(InfrastructureError, match="Kafka needs confluent-kafka") as error,
        needing("confluent-kafka", "Kafka", "kafka"),
    ):
        import no_such_package  # noqa: F401
    assert error.value.hint is not None
    assert 'pip install "headrace[kafka]"' in error.value.hint
