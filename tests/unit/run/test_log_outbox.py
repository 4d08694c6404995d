"""Log records of containers on their way to the driver's loggers: what comes along, and what is left out."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from headrace.coordinator import messages
from headrace.coordinator.messages import Heartbeat
from headrace.coordinator.server import Relay
from headrace.core.log import LogSettings, current_settings, logger, logging_to
from headrace.core.metrics import UserMetrics, enter
from headrace.run.container import BATCH_MAX, CHARS_MAX, WAITING_MAX, LogOutbox, sending_logs


@pytest.fixture
def outbox() -> Iterator[LogOutbox]:
    """The outbox of a container whose driver shows warnings of the app."""
    outbox = LogOutbox()
    with sending_logs(outbox, LogSettings(others="warning")):
        enter(UserMetrics("views/1"))
        yield outbox
        enter(UserMetrics())


def heartbeat(outbox: LogOutbox, sent_ms: float = 1.0) -> Heartbeat:
    """As it arrives in the driver."""
    lines, dropped = outbox.take()
    sent = Heartbeat(container=3, incarnation="a", sent_ms=sent_ms, logs=lines, logs_dropped=dropped)
    return messages.decode(Heartbeat, messages.encode(sent))


def test_a_record_arrives_with_where_it_is_from(outbox: LogOutbox, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("shop").info("not wanted")
    logging.getLogger("shop").warning("%s is slow", "postgres://me:secret@db", extra={"seconds": 3})
    logger("headrace.own").warning("seen where the container is")
    came = heartbeat(outbox)
    caplog.clear()
    relay = Relay("page-views")
    relay.log(came)
    relay.log(came)  # its answer was lost
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("shop", "WARNING")
    assert record.getMessage() == "postgres://me:***@db is slow"
    found = vars(record)
    assert (found["app"], found["stage"], found["task"], found["container"]) == ("page-views", "views", "views/1", 3)
    assert found["seconds"] == "3"


def test_lines_that_may_not_have_arrived_come_again_and_are_logged_once(
    outbox: LogOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("shop").warning("first")
    cut_off, _ = outbox.take()
    logging.getLogger("shop").warning("second")
    assert not outbox.empty
    lines, _ = outbox.take(again=True)
    outbox.arrived()
    assert outbox.empty
    caplog.clear()
    relay = Relay("page-views")
    for logs in (lines, cut_off):  # the later one is faster
        relay.log(Heartbeat(container=3, incarnation="a", sent_ms=1.0, logs=logs))
    relay.log(Heartbeat(container=3, incarnation="b", sent_ms=1.0, logs=cut_off))  # of another process
    assert [record.getMessage() for record in caplog.records] == ["first", "second", "first"]


def test_tracebacks_come_along_and_texts_are_bounded(outbox: LogOutbox) -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("shop").exception("no rate")
    logging.getLogger("shop").warning("x" * 2 * CHARS_MAX)
    failed, long = heartbeat(outbox).logs
    assert failed.message.startswith("no rate\nTraceback (most recent call last):")
    assert failed.message.endswith("ZeroDivisionError: division by zero")
    assert len(long.message) == CHARS_MAX + 1


def test_what_is_above_the_limits_is_dropped_and_said(outbox: LogOutbox, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(WAITING_MAX + 7):
        logging.getLogger("shop").warning("number %d", number)
    batches = [heartbeat(outbox, sent) for sent in range(1, 6)]
    assert [len(one.logs) for one in batches] == [BATCH_MAX] * (WAITING_MAX // BATCH_MAX) + [0]
    assert [one.logs_dropped for one in batches] == [7, 0, 0, 0, 0]
    assert outbox.empty
    caplog.clear()
    Relay("page-views").log(batches[0])
    assert caplog.records[-1].getMessage().startswith("log lines of a container were left out")
    assert len(caplog.records) == BATCH_MAX + 1


def test_own_lines_are_sent_from_clusters_only() -> None:
    for sent in (True, False):
        outbox, settings = LogOutbox(), LogSettings(level="info", others="error", sent=sent)
        with logging_to(settings, io.StringIO()), sending_logs(outbox, settings):
            logger("headrace.own").info("a sentence", task="views/0")
            logging.getLogger("shop").warning("not wanted")
        assert [(line.message, line.fields) for line in outbox.take()[0]] == (
            [("a sentence", {"task": "views/0"})] if sent else []
        )
        outbox.arrived()
        logger("headrace.own").warning("nobody takes this")
        assert outbox.empty


def test_the_command_shows_what_nobody_else_listens_to(outbox: LogOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("shop").warning("slow")
    came = heartbeat(outbox)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    shown = io.StringIO()
    with logging_to(LogSettings("warning"), shown):
        assert current_settings().others == "warning"
        Relay("page-views").log(came)
    assert shown.getvalue().split(" ", 1)[1] == (
        "WARNING shop: slow app=page-views container=3 stage=views task=views/1\n"
    )


@pytest.mark.parametrize(("level", "expected"), [(None, "warning"), (logging.INFO, "info"), (logging.ERROR, "error")])
def test_containers_are_told_what_the_driver_shows(
    level: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [] if level is None else [logging.StreamHandler()])
    monkeypatch.setattr(root, "level", logging.WARNING if level is None else level)
    assert current_settings().others == expected
