"""Tables of versions and stores of tasks, read beside their task: as they are committed, and as rows were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr
from headrace.api.specs import TableStorage
from headrace.core.errors import UsageError
from headrace.plan.passes import unreadable
from headrace.run.tables import TableAnswers
from headrace.stores.encoding import KeyEncoding
from headrace.task.host.task_host import TaskHost
from headrace.task.tables import CommittedTables, Page

RATES = {"currency": pl.String, "euros": pl.Float64, "ts": pl.Int64, "gone": pl.Boolean}
KEYS = KeyEncoding({"currency": pl.String()})
MUCH = 1 << 20
HOUR = 3_600_000
MINUTE = 60_000


def rates_app(home: Path, storage: TableStorage) -> hr.App:
    app = hr.App("sold", home=str(home), checkpoint_interval=f"{INTERVAL_MS}ms")
    table = app.table("rates", "currency", versions="1h", deleted="gone", storage=storage)
    app.input("rates-in", RATES, event_time="ts").send_to(table)
    return app


def of(host: TaskHost) -> CommittedTables:
    """As a container asks it."""
    return TableAnswers([host], host._clock)._tables[str(host.name)]


def euros(page: Page) -> list[tuple[str, float]]:
    return page.rows.select("currency", "euros").rows()


def keys(*currencies: str) -> list[bytes]:
    return KEYS.encode(pl.DataFrame({"currency": currencies}))


@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_rows_as_they_were(tmp_path: Path, storage: TableStorage) -> None:
    hr.streams.create_stream("rates-in", 1, RATES, home=tmp_path)
    with hr.streams.StreamWriter("rates-in", home=tmp_path) as writer, DrivenApp(rates_app(tmp_path, storage)) as app:

        def write(*rows: tuple[str, float | None, int, bool]) -> None:
            writer.write(pl.DataFrame(rows, RATES, orient="row"))

        def at(time: int | None) -> list[tuple[str, float]]:
            return euros(of(app.hosts[0]).scan("rates", b"", b"", 100, MUCH, at_ms=time))

        container = app.start()
        write(("CHF", 1.0, 1_000, False), ("CHF", 1.1, 3_000, False), ("USD", 0.9, 2_000, False))
        app.run(3 * INTERVAL_MS)
        write(("CHF", 1.05, 2_000, False), ("USD", None, 5_000, True))
        app.run(3 * INTERVAL_MS)
        for _ in range(2):
            assert at(None) == [("CHF", 1.1)]
            assert at(999) == []
            assert at(1_999) == [("CHF", 1.0)]
            assert at(2_000) == at(2_999) == [("CHF", 1.05), ("USD", 0.9)]
            assert at(4_999) == [("CHF", 1.1), ("USD", 0.9)]
            assert at(1 << 62) == at(5_000) == [("CHF", 1.1)]
            tables = of(app.hosts[0])
            assert euros(tables.get("rates", keys("USD", "EUR"), MUCH, at_ms=2_500)) == [("USD", 0.9)]
            assert tables.get("rates", keys("EUR"), MUCH, at_ms=2_500).rows.columns == ["currency", "euros", "ts"]
            page = tables.scan("rates", b"", b"", 1, MUCH, at_ms=2_000)
            assert (euros(page), page.more) == ([("CHF", 1.05)], True)
            app.kill(container)  # what the next one finds on the disk says the same
            container = app.start()
        write(("CHF", 1.2, HOUR + 2_500, False))
        # What isn't committed doesn't show, whatever the task knows by now.
        app.until(lambda: app.hosts[0].task.progress.watermark > HOUR)
        assert at(5_000) == [("CHF", 1.1)]
        app.run(3 * INTERVAL_MS)
        assert at(HOUR + 2_500) == [("CHF", 1.2)]
        assert (at(HOUR), at(3_000)) == ([("CHF", 1.1)], [("CHF", 1.1), ("USD", 0.9)])
        with pytest.raises(UsageError, match=r"'rates' no longer has all rows as of 1970-01-01T00:00:02.400\+00:00"):
            at(2_400)
        assert at(2_500) == [("CHF", 1.05), ("USD", 0.9)]
        app.kill(container)
        app.start()
        with pytest.raises(UsageError, match="kept until they are 1h older than the watermark") as caught:
            at(2_400)
        assert "ask for 1970-01-01T00:00:02.500+00:00 or later" in (caught.value.hint or "")


class Seen(hr.tasks.Task):
    counts = hr.tasks.Store(key={"member": pl.String, "day": pl.Int64}, value={"n": pl.Int64}, ttl="1m")

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        key = message["currency"], message["ts"] // 1_000
        self.counts.put(key, {"n": (self.counts.get(key) or {"n": 0})["n"] + 1})
        out.set_timer(key, message["ts"] + 10)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None: ...


def test_stores_of_tasks_and_what_else_there_is(tmp_path: Path) -> None:
    hr.streams.create_stream("rates-in", 1, RATES, home=tmp_path)
    declared = hr.App("seen", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
    rates = declared.input("rates-in", RATES, event_time="ts")
    rates.process(Seen(), id="seen")
    once = rates.deduplicate("currency", within="1s", id="once")
    once.window(hr.tumbling("1s"), key="currency", id="per-s").agg(n=hr.count()).sink(len)  # type: ignore[arg-type]
    with hr.streams.StreamWriter("rates-in", home=tmp_path) as writer, DrivenApp(declared) as app:
        app.start()
        rows = [("CHF", 1.0, 1_000, False), ("CHF", 1.1, 1_500, False), ("USD", 0.9, 2_000, False)]
        writer.write(pl.DataFrame(rows, RATES, orient="row"))
        app.until(lambda: app.hosts[0].metrics.rows_in == 3)
        (host,) = app.hosts
        assert of(host).scan("seen.counts", b"", b"", 9, MUCH).rows.rows() == []
        app.run(3 * INTERVAL_MS)
        page = of(host).scan("seen.counts", b"", b"", 9, MUCH)
        assert page.rows.rows() == [("CHF", 1, 2), ("USD", 2, 1)]
        assert page.rows.columns == ["member", "day", "n"]
        (held,) = host.scope.queryable.values()
        assert (held.id, held.kind, held.key, held.ttl_ms) == ("seen.counts", "store", ("member", "day"), MINUTE)
        assert unreadable(app.plan.graph) == {"seen": "a low-level task", "once": "a deduplicate", "per-s": "a window"}
        with pytest.raises(UsageError, match=r"table 'seen.counts' has no versions"):
            of(host).scan("seen.counts", b"", b"", 9, MUCH, at_ms=5)
        with pytest.raises(UsageError, match=r"this app has no table 'seen.__timers'"):
            of(host).scan("seen.__timers", b"", b"", 9, MUCH)
        app.run(MINUTE)
        assert of(host).scan("seen.counts", b"", b"", 9, MUCH).rows.rows() == []
