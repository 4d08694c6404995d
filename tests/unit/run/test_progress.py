from __future__ import annotations

import io

import msgspec
import pytest

from headrace.coordinator.messages import AppState, AppStatus, ContainerStatus, StageStatus
from headrace.run.progress import ProgressLine, announce, describe, say

NOON = 12 * 3600 * 1000


def stage(name: str = "views", **known: object) -> StageStatus:
    values: dict[str, object] = {
        "name": name,
        "tasks": 2,
        "finished": 0,
        "watermark": NOON,
        "rows_per_second": 1000.4,
        "lag": 1024,
    }
    return StageStatus(**(values | known))  # type: ignore[arg-type]


def status(*stages: StageStatus, state: AppState = "running") -> AppStatus:
    return AppStatus(
        app="page-views",
        state=state,
        started_at=0,
        guarantee="at_least_once",
        stages=list(stages),
        tasks=[],
        containers=[],
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class GoneTerminal(Terminal):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_line_says_rate_watermark_and_lag_of_each_stage() -> None:
    line = describe(status(stage(), stage("per-10s", watermark=NOON - 2000, rows_per_second=51310, lag=0)))
    assert line == "page-views running  52,310 msg/s  views 12:00:00 lag 1,024  per-10s 11:59:58 lag 0"


def test_of_a_drained_app_nothing_is_said_to_be_done() -> None:
    over = msgspec.structs.replace(status(stage(finished=2, watermark=None), state="finished"), drained=True)
    assert describe(over) == "page-views drained"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"watermark": None}, "views - lag 1,024"),
        ({"lag": None}, "views 12:00:00 lag ?"),
        ({"finished": 2, "watermark": None}, "views done"),
        ({"watermark": 2**63 - 1}, "views end lag 1,024"),
        ({"watermark": -(2**63)}, "views - lag 1,024"),
    ],
)
def test_what_is_not_known(known: dict[str, object], text: str) -> None:
    assert describe(status(stage(**known))).endswith(text)


def test_without_a_terminal_a_line_comes_now_and_then() -> None:
    out, clock = io.StringIO(), Seconds()
    line = ProgressLine(out, clock=clock)
    for _ in range(12):
        line(status(stage()))
        clock.now += 1
    assert out.getvalue().count("\n") == 3
    assert "\r" not in out.getvalue()


def test_a_change_of_state_is_reported_at_once() -> None:
    out = io.StringIO()
    line = ProgressLine(out, clock=Seconds())
    line(status(stage()))
    line(status(stage(), state="draining"))
    line(status(stage(), state="draining"))
    assert [text.split()[1] for text in out.getvalue().splitlines()] == ["running", "draining"]


def test_closing_prints_the_last_state_once() -> None:
    out = io.StringIO()
    line = ProgressLine(out, clock=Seconds())
    line(status(stage()))
    line(status(stage(lag=7)))
    line.close()
    assert [text.split()[-1] for text in out.getvalue().splitlines()] == ["1,024", "7"]
    line.close()
    assert out.getvalue().count("\n") == 2


def test_on_a_terminal_one_line_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out, clock = Terminal(), Seconds()
    line = ProgressLine(out, clock=clock)
    for _ in range(3):
        line(status(stage()))
        clock.now += 0.25
    line.close()
    assert out.getvalue().count("\r\x1b[K") == 3
    assert out.getvalue().count("\n") == 1
    assert all(len(text.rstrip("\n")) <= 39 for text in out.getvalue().split("\r\x1b[K"))


def test_what_comes_before_and_beside_the_line() -> None:
    clock, out = Seconds(), Terminal()
    line = ProgressLine(out, clock=clock)
    say("waits for slots: 1 of 2", line)
    say("this comes too soon", line)
    announce("live page: x", line)
    line(status(stage(), state="starting"))
    announce("note", line)
    line.close()
    assert out.getvalue() == (
        "\r\x1b[Kwaits for slots: 1 of 2\r\x1b[Klive page: x\n"
        "\r\x1b[Kpage-views starting  1,000 msg/s  views 12:00:00 lag 1,024\r\x1b[Knote\n"
    )


def test_the_line_counts_containers_without_a_slot() -> None:
    containers = [ContainerStatus(id=0, state="running"), ContainerStatus(id=1, state="waiting", lacks="none is free")]
    line = describe(msgspec.structs.replace(status(stage(), state="starting"), containers=containers))
    assert line.startswith("page-views starting  1 of 2 containers without a slot  1,000 msg/s")


def test_nothing_is_printed_when_nothing_came() -> None:
    out = Terminal()
    ProgressLine(out).close()
    assert out.getvalue() == ""


def test_an_app_outlives_its_terminal() -> None:
    line = ProgressLine(GoneTerminal(), clock=Seconds())
    line(status(stage()))
    line(status(stage(), state="finished"))
    line.close()
