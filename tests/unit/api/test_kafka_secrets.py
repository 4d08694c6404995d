"""A password that is written into a declaration is refused, and shown nowhere."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.core.errors import DeclarationError


@pytest.mark.parametrize("descriptor", [hr.io.kafka, hr.io.kafka_log])
def test_an_error_does_not_quote_the_line_with_the_password(descriptor: object) -> None:
    assert callable(descriptor)
    names = ("orders",) if descriptor is hr.io.kafka else ()
    with pytest.raises(DeclarationError, match="is a secret, but is written in plain text") as refused:
        descriptor(*names, brokers="localhost:9092", options={"sasl.password": "hunter2hunter2"})
    assert "hunter2" not in str(refused.value)
    assert __file__.rpartition("/")[2] in refused.value.message
