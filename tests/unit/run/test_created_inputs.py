"""An input with ``create=`` needs no command before the first start."""

from __future__ import annotations

import pytest

import headrace as hr

VIEW = {"member": str, "ms": int}


def declare(home: object, create: int | None = 3, key: str | tuple[str, ...] = "member") -> hr.App:
    app = hr.App("views", home=str(home))
    app.input("clicks", VIEW, key=key, create=create).send_to(app.output("copies"))
    return app


def test_the_start_creates_what_is_not_there(tmp_path):
    plan = declare(tmp_path).plan()
    assert [plan.streams[id_].partitions for id_ in ("clicks", "copies")] == [3, 3]
    assert "created by the start if it isn't there" in str(plan)
    assert list(tmp_path.iterdir()) == []  # a plan changes nothing
    with declare(tmp_path).start(local=True) as run:
        run.drain()
    recorded = declare(tmp_path, create=None, key=()).plan()
    assert recorded.streams["clicks"].partitions == 3
    assert "partitioned by member" in str(recorded)


def test_what_is_there_stays_as_it_is(tmp_path):
    hr.streams.create_stream("clicks", 2, VIEW, key="member", home=tmp_path)
    assert declare(tmp_path).plan().streams["clicks"].partitions == 2


def test_without_it_the_error_offers_both_ways(tmp_path):
    with pytest.raises(hr.errors.PlanError, match="'clicks' doesn't exist") as caught:
        declare(tmp_path, create=None).plan()
    assert "headrace stream create clicks --partitions N" in (caught.value.hint or "")
    assert "create=N" in (caught.value.hint or "")


def test_what_others_write_is_not_created():
    app = hr.App("views")
    with pytest.raises(hr.errors.DeclarationError, match="create=2 is for streams of Headrace's own"):
        app.input("clicks", VIEW, system=hr.io.files("clicks/*.jsonl"), create=2)
    with pytest.raises(hr.errors.DeclarationError, match="create=0 is not a number of partitions"):
        app.input("clicks", VIEW, create=0)
