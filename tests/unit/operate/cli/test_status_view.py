from __future__ import annotations

import pytest

from headrace.coordinator.messages import (
    AppStatus,
    CheckpointStatus,
    ContainerStatus,
    ErrorReport,
    Holdup,
    OutputStatus,
    StageStatus,
    TaskStatus,
    What,
)
from headrace.core.log import RecentWarning
from headrace.operate.cli.status_view import age, held_up, to_text, warnings

NOON = 12 * 3600 * 1000


FROZE = RecentWarning(message="it froze", at_ms=2000, times=1200)


def whole(**known: object) -> AppStatus:
    values: dict[str, object] = {
        "app": "page-views",
        "state": "running",
        "started_at": NOON - 90_000,
        "guarantee": "at_least_once",
        "stages": [
            StageStatus(name="views", tasks=2, finished=0, watermark=NOON - 3000, rows_per_second=51234.5, lag=1024),
            StageStatus(name="late", tasks=4, finished=1, watermark=None, rows_per_second=0, lag=None),
            StageStatus(name="over", tasks=1, finished=1, watermark=NOON, rows_per_second=0, lag=0),
        ],
        "tasks": [],
        "containers": [
            ContainerStatus(
                id=0,
                state="running",
                host="worker-a",
                pid=4711,
                attempt=1,
                last_seen_ms=200,
                tasks=["views/0"],
                rss_bytes=120_000_000,
            ),
            ContainerStatus(id=1, state="waiting"),
        ],
    }
    return AppStatus(**(values | known))  # type: ignore[arg-type]


def shown(status: AppStatus, *, coloured: bool = False) -> list[str]:
    return to_text(status, NOON, 120, coloured).splitlines()


def row(lines: list[str], first: str) -> list[str]:
    (found,) = [line.split() for line in lines if line.split()[:1] == [first]]
    return found


def test_stages_show_rate_watermark_with_its_age_and_lag() -> None:
    lines = shown(whole())
    assert lines[0] == "page-views  running  since 1970-01-01 11:58:30 UTC (90 s)  at_least_once"
    assert row(lines, "views") == ["views", "2", "51,234", "11:59:57", "(3.0", "s", "ago)", "1,024"]
    assert row(lines, "late") == ["late", "3", "of", "4", "0", "-", "?"]
    assert row(lines, "over") == ["over", "done", "0", "12:00:00", "0"]


def test_calls_are_summed_up_by_stage_where_there_are_any() -> None:
    counters = {
        "calls": 10,
        "call_ms": 250,
        "calls_in_flight": 3,
        "call_retries": 2,
        "cache_hits": 3,
        "cache_misses": 1,
    }
    tasks = [
        TaskStatus(name="views/0", state="running", counters=counters),
        TaskStatus(name="views/1", state="running", counters={"calls": 10, "call_ms": 50, "call_failures": 1}),
        TaskStatus(name="over/0", state="finished", counters={"late": 1}),
    ]
    lines = shown(whole(tasks=tasks))
    (at,) = [number for number, line in enumerate(lines) if line.startswith("calls")]
    assert row(lines[at:], "views") == ["views", "3", "20", "15.0", "ms", "2", "0", "1", "75%"]
    assert not any(line.startswith("over") for line in lines[at:])
    assert not any(line.startswith("calls") for line in shown(whole()))


def test_containers_show_where_they_are() -> None:
    lines = shown(whole())
    assert row(lines, "0") == ["0", "running", "worker-a", "4711", "1", "1", "120.0", "MB", "0.2", "s", "ago"]
    assert row(lines, "1") == ["1", "waiting", "-", "-", "-", "0", "-", "-"]


def test_a_calm_app_has_nothing_to_complain_of() -> None:
    text = "\n".join(shown(whole()))
    assert "held up" not in text
    assert "warnings" not in text
    assert "\x1b" not in text


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" in "\n".join(shown(whole(), coloured=True))


def holdup(what: What, where: str, seconds: int, remedy: str, *by: str) -> Holdup:
    return Holdup(what=what, where=where, since_ms=NOON - 1000 * seconds, remedy=remedy, by=list(by))


def test_what_holds_tasks_up_is_named_with_its_age_and_remedy_causes_first() -> None:
    call = holdup("user code", "the function of step 'cut' in task a/0", 12, "make it faster", "a/0")
    derived = holdup("watermark", "log.b[0]: b/1 stands still", 50, "look at b/1", "b/1")
    tasks = [
        TaskStatus(name="a/0", state="running", holdups=[call]),
        TaskStatus(name="c/0", state="running", holdups=[derived]),
        TaskStatus(name="c/1", state="running", holdups=[derived]),
        TaskStatus(name="b/0", state="running", holdups=[call, holdup("checkpoint", "log.a[0]", 9, "x", "a/0")]),
        TaskStatus(name="b/1", state="running", holdups=[holdup("watermark", "log.in[1]: silent", 60, "wake it")]),
        TaskStatus(name="over/0", state="finished", holdups=[call]),
    ]
    lines = list(held_up(whole(tasks=tasks), NOON))
    assert lines == [
        "b/1, for 60 s: waiting for a watermark of log.in[1]: silent; wake it",
        "a/0 and 1 other, for 12 s: waiting for the end of the function of step 'cut' in task a/0; make it faster",
        "c/0 and 1 other, for 50 s: waiting for a watermark of log.b[0]: b/1 stands still; look at b/1",
    ]
    assert f"  {lines[0]}" in shown(whole(tasks=tasks))


def test_warnings_name_losses_and_rows_without_effect() -> None:
    error = ErrorReport(type="DataError", message="column 'ts' is missing")
    status = whole(
        state="failed",
        error=error,
        containers=[
            ContainerStatus(id=0, state="lost", host="worker-a", last_seen_ms=300_000),
            ContainerStatus(id=1, state="failed", error=error),
            ContainerStatus(id=2, state="failed", error=ErrorReport(type="X", message="no room", hint="make some")),
            ContainerStatus(id=3, state="running", warnings=[FROZE]),
            ContainerStatus(
                id=4, state="lost", host="worker-b", last_seen_ms=9000, lacks="Spark has 2, and all are taken"
            ),
        ],
        tasks=[
            TaskStatus(name="a/4", state="running", warnings=[RecentWarning(message="the folder is damaged", at_ms=0)]),
            TaskStatus(name="a/0", state="running", counters={"late": 2, "batches": 9}),
            TaskStatus(name="a/1", state="running", counters={"late": 1, "skipped": 0}),
            TaskStatus(
                name="a/2", state="running", checkpoint=CheckpointStatus(version=1, age_ms=600_000, duration_ms=1)
            ),
            TaskStatus(
                name="a/3", state="finished", checkpoint=CheckpointStatus(version=1, age_ms=600_000, duration_ms=1)
            ),
        ],
    )
    assert list(warnings(status, 62_000)) == [
        "the app failed: column 'ts' is missing",
        "container 0 on worker-a sent its last heartbeat 5 min ago",
        "container 1 on no host yet failed: column 'ts' is missing",
        "container 2 on no host yet failed: no room (hint: make some)",
        "container 4 waits for a slot: Spark has 2, and all are taken; add a machine or cores to the cluster, or end "
        "another job of this Spark session",
        "came too late: 3 rows",
        "a/2 committed its last checkpoint 10 min ago",
        "container 3: it froze (60 s ago, 1,200 times)",
        "a/4: the folder is damaged (62 s ago)",
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "?"),
        (0, "0.0 s"),
        (450, "0.5 s"),
        (12_300, "12 s"),
        (119_000, "119 s"),
        (180_000, "3 min"),
        (10**9, "12 d"),
    ],
)
def test_ages(ms: int | None, text: str) -> None:
    assert age(ms) == text


def test_outputs_say_how_often_results_arrive_and_what_waits() -> None:
    away = OutputStatus(
        delivery="exactly-once", waiting=3, waiting_bytes=2_000_000, failures=4, error="connection refused"
    )
    tasks = [
        TaskStatus(
            name="a/0", state="running", outputs={"report": away, "print-1": OutputStatus(delivery="at-least-once")}
        ),
        TaskStatus(name="a/1", state="running", outputs={"report": OutputStatus(delivery="exactly-once", waiting=1)}),
    ]
    lines = shown(whole(tasks=tasks))
    assert row(lines, "report") == ["report", "exactly-once", "4", "versions,", "2.0", "MB"]
    assert row(lines, "print-1") == ["print-1", "at-least-once", "-"]
    assert "output report can't be published (4 failures): connection refused" in list(warnings(whole(tasks=tasks), 0))
    assert "delivery" not in "\n".join(shown(whole()))


def test_idle_tasks_are_said_to_be_idle_and_have_no_age() -> None:
    known = {"tasks": 2, "finished": 0, "watermark": NOON - 300_000, "rows_per_second": 0, "lag": 0}
    stages = [
        StageStatus(name="silent", idle=2, **known),  # type: ignore[arg-type]
        StageStatus(name="partly", idle=1, **known),  # type: ignore[arg-type]
        StageStatus(name="unheard", idle=1, **(known | {"watermark": None})),  # type: ignore[arg-type]
    ]
    lines = shown(whole(stages=stages))
    assert row(lines, "silent")[3:] == ["11:55:00", "(idle)", "0"]
    assert row(lines, "partly")[3:] == ["11:55:00", "(5", "min", "ago,", "1", "idle)", "0"]
    assert row(lines, "unheard")[3:] == ["-", "(1", "idle)", "0"]
