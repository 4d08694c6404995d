"""The first signal drains, now or as soon as there is something to drain; the second one raises."""

from __future__ import annotations

import signal
import threading

import pytest

from headrace.run.coordinated import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains_and_the_second_raises(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    drained: list[int] = []
    with Interrupts() as interrupts:
        interrupts.drain_by(lambda: drained.append(1))
        assert (interrupts.requested, drained) == (False, [])
        signal.raise_signal(number)
        assert (interrupts.requested, drained) == (True, [1])
        monkeypatch.setattr("headrace.run.coordinated.SAME_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert drained == [1]


def test_a_termination_that_arrives_twice_at_once_is_one() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_during_the_start_is_said_and_kept(capfd: pytest.CaptureFixture[str]) -> None:
    drained: list[int] = []
    with Interrupts("ends soon") as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested
        assert capfd.readouterr().err == "ends soon\n"
        interrupts.drain_by(lambda: drained.append(1))
    assert drained == [1]


def test_handlers_are_as_before_when_it_is_over() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def run() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
