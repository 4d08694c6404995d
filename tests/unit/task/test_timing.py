"""Every: due once per interval, on the caller's clock."""

from headrace.task.scope import Every


def test_due_once_per_interval() -> None:
    every = Every(10, start_ms=100)
    assert [now for now in range(100, 140) if every.due(now)] == [110, 120, 130]


def test_what_was_missed_is_not_made_up_for() -> None:
    every = Every(10, start_ms=0)
    assert every.due(95)
    assert not every.due(104)
    assert every.due(105)
