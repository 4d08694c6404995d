"""``headrace savepoint``: taken while the app runs, restored when it doesn't, moved elsewhere, and refused clearly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from running_shop import PRICES, RATES, STOCK, Shop

import headrace as hr
from headrace.core.errors import HeadraceError, PlanError, StorageError
from headrace.core.ids import TaskName
from headrace.life import folder
from headrace.life import folder as exporting
from headrace.life.folder import Misfit, misfit
from headrace.life.timelines import Timelines
from headrace.operate.cli.main import main
from headrace.protocol.record import CommitRecord
from headrace.run.savepoints import restoring, taking
from headrace.stores.snapshots import object_place
from headrace.stores.transfer import open_objects

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def kept_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a shop that has run: two prices are in savepoint ``one``, and a third one came after it."""
    home = tmp_path_factory.mktemp("kept") / "home"
    shop = shop_at(home)
    with shop.running():
        shop.price(lamp="1.00", desk="2.00")
        shop.rate(eur=1.0)
        shop.until_committed("prices", 2)
        shop.until_committed("rates", 1)
        assert main(["savepoint", "create", "shop", "one", "--quiet", "--home", str(home)]) == 0
        shop.price(sofa="3.00")
        shop.until_committed("prices", 3)
    shop.close()
    return home


@pytest.fixture
def kept(kept_home: Path, home: Path) -> Iterator[Shop]:
    """A shop that isn't running, on a copy of that home."""
    shutil.copytree(kept_home, home)
    shop = shop_at(home)
    yield shop
    shop.close()


def shop_at(home: Path) -> Shop:
    """A shop whose declaration leaves the number of partitions open."""
    shop = Shop(home)
    shop.app = app = hr.App("shop", home=str(home), checkpoint_interval="200ms")
    prices = app.table("prices", key="article", schema=PRICES)
    stock = app.table("stock", key=("place", "shelf"), schema=STOCK)
    rates = app.table("rates", key="currency", side_inputs=app.input("rates-in", RATES), kind="global")
    app.input("prices-in", PRICES).partition_by("article", id="by-article").send_to(prices)
    app.input("stock-in", STOCK).send_to(stock)
    app.input("sales", RATES).join(rates, how="left").send_to(app.output("worth"))
    return shop


def test_a_count_in_the_declaration_has_to_follow(kept: Shop, home: Path, cli: Cli) -> None:
    assert cli("savepoint", "restore", "shop", "one", "--partitions", "by-article=4", "--quiet").code == 0
    with pytest.raises(PlanError, match="exists with 4 partitions, and this app needs 2") as refused:
        Shop(home).app.run(local=True, progress=False)
    assert "write partitions=4" in str(refused.value)


def euros(shop: Shop) -> dict[str, str] | None:
    """The prices; None while a task can't be asked."""
    try:
        with hr.tables.open_table("shop", "prices", home=shop.home, timeout="20s") as prices:
            return {row["article"]: str(row["euros"]) for row in prices.scan(limit=None).to_dicts()}
    except HeadraceError as error:
        if not error.retry:
            raise
        return None


def test_a_savepoint_is_taken_and_shown(kept: Shop, cli: Cli) -> None:
    (listed,) = cli("savepoint", "list", "--json").json()
    shown = cli("savepoint", "show", "shop", "one", "--json", "--check").json()
    assert listed["app"] == "shop"
    assert listed["version"] == shown["version"]
    assert {task["task"].rpartition("/")[0] for task in shown["tasks"]} >= {"by-article", "prices-in", "stock-in"}
    assert "savepoint one of shop" in cli("savepoint", "show", "shop", "one").out
    assert cli("savepoint", "list", "nobody").out == ""


def test_a_cut_at_which_a_reader_lacks_frames_is_tried_again(
    kept: Shop, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = TaskName("by-article", 0)
    judged: list[Misfit | None] = []

    def late_at_first(kept: dict[TaskName, CommitRecord], producers: dict[int, TaskName]) -> Misfit | None:
        if not judged:  # what was sent last to the reader came after what it has kept
            kept = kept | {reader: _without_the_last_frames(kept[reader])}
        judged.append(misfit(kept, producers))
        return judged[-1]

    monkeypatch.setattr(taking, "misfit", late_at_first)
    with kept.running():
        kept.until_committed("prices", 3)
        taken = cli("savepoint", "create", "shop", "two")
    assert taken.code == 0, taken.err
    assert "task prices-in/0 was started again below version" in taken.err
    assert judged == [Misfit(TaskName("prices-in", 0), reader, judged[0].partition if judged[0] else ""), None]


def _without_the_last_frames(record: CommitRecord) -> CommitRecord:
    inputs = [
        structs.replace(entry, parents=tuple(structs.replace(parent, seq=0) for parent in entry.parents))
        for entry in record.inputs
    ]
    return structs.replace(record, inputs=tuple(inputs))


def test_a_restore_goes_back_and_reads_on_from_there(kept: Shop, cli: Cli) -> None:
    outlook = cli("savepoint", "restore", "shop", "one", "--dry-run", "--json").json()
    assert outlook["dryRun"]
    assert any(r["before"] > r["to"] for r in outlook["rewinds"] if r["stream"] == "log.prices-in")
    assert [t["number"] for t in cli("savepoint", "timelines", "shop", "--json").json()] == [1]
    restored = cli("savepoint", "restore", "shop", "one")
    assert restored.code == 0, restored.err
    assert "will appear a second time" in restored.out
    with kept.running():
        kept.until(lambda: euros(kept) == {"lamp": "1.00", "desk": "2.00", "sofa": "3.00"})
        checkpoints = cli("checkpoint", "list", "shop", "--json").json()
        assert all(one["changelog"].rpartition("[")[0].endswith("-changelog.2") for one in checkpoints)
    numbers = [(t["number"], t["current"]) for t in cli("savepoint", "timelines", "shop", "--json").json()]
    assert numbers == [(1, False), (2, True)]


def test_other_partition_counts_deal_the_state(kept: Shop, cli: Cli) -> None:
    restored = cli("savepoint", "restore", "shop", "one", "--partitions", "by-article=5")
    assert restored.code == 0, restored.err
    assert "from 2 tasks to 5 tasks" in restored.out
    with kept.running():
        kept.price(lamp="4.00")
        kept.until(lambda: euros(kept) == {"lamp": "4.00", "desk": "2.00", "sofa": "3.00"})
        taken = cli("savepoint", "create", "shop", "two", "--quiet", "--json")
        assert (taken.code, taken.json()["name"]) == (0, "two"), taken.err
    restored = cli("savepoint", "restore", "shop", "two", "--partitions", "by-article=1")
    assert (restored.code, "from 5 tasks to 1 task" in restored.out) == (0, True), restored.err
    with kept.running():
        kept.until(lambda: euros(kept) == {"lamp": "4.00", "desk": "2.00", "sofa": "3.00"})


def test_a_restore_can_be_undone_until_the_app_runs(kept: Shop, cli: Cli) -> None:
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    undone = cli("savepoint", "undo", "shop")
    assert (undone.code, "back in timeline 1" in undone.out) == (0, True)
    with kept.running():
        kept.until_committed("prices", 3)
    refused = cli("savepoint", "undo", "shop")
    assert (refused.code, "first timeline" in refused.err) == (2, True)
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    with kept.running():
        kept.until_committed("prices", 3)
    refused = cli("savepoint", "undo", "shop")
    assert (refused.code, "has run since" in refused.err) == (2, True)


def test_old_timelines_and_savepoints_can_be_deleted(kept: Shop, home: Path, cli: Cli) -> None:
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    assert cli("savepoint", "delete", "shop", "one", "--json").json() == {"app": "shop", "name": "one"}
    refused = cli("savepoint", "timelines", "shop", "--delete", "2")
    assert (refused.code, "the current one" in refused.err) == (2, True)
    assert cli("savepoint", "timelines", "shop", "--delete", "1").code == 0
    assert not (home / "state" / "shop").exists()
    assert not (home / "streams" / "shop-by-article").exists()
    with kept.running():
        kept.until_committed("prices", 3)


def test_with_an_old_timeline_go_its_snapshots_in_a_store(kept: Shop, tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    url = f"file://{tmp_path}/store"
    store = open_objects(object_place(url))
    for name in ("snapshots/shop/prices-0/a", "snapshots/shop/prices-1/b", "snapshots/shop@2/prices-0/a", "other"):
        store.create(name, b"1")
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    assert cli("savepoint", "timelines", "shop", "--delete", "1", "--snapshots", url).code == 0
    assert sorted(store.list("")) == ["other", "snapshots/shop@2/prices-0/a"]


def test_snapshots_move_with_a_restore_only(
    kept: Shop, home: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("HEADRACE_SNAPSHOTS", f"file://{tmp_path}/store")
    with closing(shop_at(home)) as moved:
        with pytest.raises(PlanError, match="has kept its snapshots in its home until now, and would now look for"):
            moved.app.run(local=True, progress=False)
        assert not (tmp_path / "store").exists()
        assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
        with moved.running():
            moved.until_committed("prices", 3)
    monkeypatch.delenv("HEADRACE_SNAPSHOTS")
    with pytest.raises(PlanError, match=f"has kept its snapshots in file://{tmp_path}/store until now"):
        kept.app.run(local=True, progress=False)


def test_the_store_of_an_old_timeline_needs_no_option(
    kept: Shop, home: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    folder, away = tmp_path / "store", tmp_path / "away"
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    monkeypatch.setenv("HEADRACE_SNAPSHOTS", f"file://{folder}")
    with closing(shop_at(home)) as moved, moved.running():
        moved.until_committed("prices", 3)
    monkeypatch.setenv("HEADRACE_SNAPSHOTS", f"file://{tmp_path}/of-another-app")
    store = open_objects(object_place(f"file://{folder}"))
    store.create("snapshots/shop@2/prices-0/a", b"1")
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    folder.rename(away)
    refused = cli("savepoint", "timelines", "shop", "--delete", "2")
    assert (refused.code, "timeline 2 of app 'shop' stays, because its snapshots in" in refused.err) == (1, True)
    assert (home / "state" / "shop@2").exists()
    assert not folder.exists()
    away.rename(folder)
    assert cli("savepoint", "timelines", "shop", "--delete", "2").code == 0
    assert not (home / "state" / "shop@2").exists()
    assert store.list("snapshots/shop@2") == {}


# -- interrupted ------------------------------------------------------------------------------------------


def test_a_restore_that_is_interrupted_changes_nothing_and_can_be_repeated(
    kept: Shop, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the power is gone")

    for step in ("copy_tree", "write_foundings", "replace_inventory", "begin"):
        with monkeypatch.context() as patched:
            patched.setattr(Timelines if step == "begin" else restoring, step, fail)
            failed = cli("savepoint", "restore", "shop", "one", "--quiet")
            assert (failed.code, "the power is gone" in failed.err) == (1, True), step
        assert [t["number"] for t in cli("savepoint", "timelines", "shop", "--json").json()] == [1]
    with kept.running():
        kept.until_committed("prices", 3)
    assert cli("savepoint", "restore", "shop", "one", "--quiet").code == 0
    with kept.running():
        kept.until_committed("prices", 3)


def test_a_run_that_starts_during_a_restore_takes_it_back(
    kept: Shop, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([[], ["a run that began after the first look"]])
    monkeypatch.setattr(restoring, "find_all", lambda metadata, app: next(found))
    refused = cli("savepoint", "restore", "shop", "one", "--quiet")
    assert (refused.code, "was started while" in refused.err) == (1, True)
    assert [t["number"] for t in cli("savepoint", "timelines", "shop", "--json").json()] == [1]


# -- elsewhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["copy", "copy.tar"])
def test_an_export_can_be_imported_on_another_home_and_under_another_app(
    kept: Shop, tmp_path: Path, cli: Cli, target: str
) -> None:
    exported = cli("savepoint", "export", "shop", "one", target, "--json")
    assert (exported.code, exported.json()["target"]) == (0, target), exported.err
    exists = cli("savepoint", "export", "shop", "one", target)
    assert (exists.code, "exists already" in exists.err) == (2, True)
    other = tmp_path / "laptop"
    words = ("savepoint", "import", "copied", "monday", target, "--home", other)
    refused = cli(*words)
    assert (refused.code, "--from shop" in refused.err) == (2, True)
    assert cli(*words, "--from", "shop", "--json").json()["name"] == "monday"
    assert cli("savepoint", "show", "copied", "monday", "--check", "--home", other).code == 0
    taken = cli(*words, "--from", "shop")
    assert (taken.code, "has a savepoint 'monday' already" in taken.err) == (2, True)
    assert cli("savepoint", "restore", "copied", "monday", "--home", other, "--quiet").code == 0


def test_a_damaged_export_is_refused(kept: Shop, tmp_path: Path, cli: Cli) -> None:
    assert cli("savepoint", "export", "shop", "one", "copy", "--quiet").code == 0
    assert cli("savepoint", "export", "shop", "one", "copy.tar", "--quiet").code == 0
    archive, whole = tmp_path / "copy.tar", tmp_path / "copy"

    def refusal() -> str:
        for source in ("copy", "copy.tar"):
            found = cli("savepoint", "import", "shop", "two", source, "--quiet")
            if found.code:
                assert not list((tmp_path / "home" / "savepoints" / "shop").glob(".draft*"))
                return str(found.err)
            cli("savepoint", "delete", "shop", "two")
        return ""

    assert refusal() == ""
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    assert "cut short" in refusal()
    archive.write_bytes(data)
    commit = next(whole.glob("*/commit.json"))
    text = commit.read_text()
    commit.write_text(text.replace("1", "2", 1))
    assert "has changed since" in refusal()
    commit.unlink()
    assert "is missing" in refusal()
    commit.write_text(text)
    manifest = json.loads((whole / folder.FILE).read_text())
    (whole / folder.FILE).write_text(json.dumps(manifest | {"format": 99}))
    assert "is a savepoint of format 99" in refusal()
    (whole / folder.FILE).write_text("{")
    assert "isn't the manifest of a savepoint" in refusal()
    (whole / folder.FILE).unlink()
    assert "isn't a savepoint" in refusal()
    shutil.rmtree(whole)
    assert "doesn't exist" in refusal()
    assert exporting.ARCHIVE == ".tar"


# -- bad input --------------------------------------------------------------------------------------------

BAD = [
    (("create", "nobody", "one"), 2, "app 'nobody' has never run"),
    (("create", "shop", "one"), 2, "has a savepoint 'one' already"),
    (("create", "shop", "../one"), 2, "is not a usable id"),
    (("create", "shop", "two"), 2, "isn't running, and hasn't ended"),
    (("show", "shop", "two"), 2, "no savepoint 'two'"),
    (("show", "nobody", "one"), 2, "no savepoint 'one'"),
    (("delete", "shop", "two"), 2, "no savepoint 'two'"),
    (("restore", "shop", "two"), 2, "no savepoint 'two'"),
    (("restore", "shop", "one", "--outputs", "loud"), 2, "expected again or silent"),
    (("restore", "shop", "one", "--partitions", "by-article"), 2, "expected STEP=N"),
    (("restore", "shop", "one", "--partitions", "by-article=x"), 2, "expected STEP=N"),
    (("restore", "shop", "one", "--partitions", "by-article=0"), 2, "from 1 to"),
    (("restore", "shop", "one", "--partitions", "nothing=2"), 2, "no intermediate stream 'nothing'"),
    (("restore", "shop", "one", "--partitions", "prices-in=4"), 2, "whose partition count the app can't change"),
    (("export", "shop", "two", "x"), 2, "no savepoint 'two'"),
    (("import", "shop", "two", "nowhere"), 2, "nowhere doesn't exist"),
    (("timelines", "shop", "--delete", "7"), 2, "has no timeline 7"),
    (("undo", "nobody"), 2, "first timeline"),
]


def test_bad_input_is_refused_and_changes_nothing(kept: Shop, home: Path, cli: Cli) -> None:
    for words, code, why in BAD:
        found = cli("savepoint", *words)
        assert why in found.err, (words, found.err)
        assert (found.code, "hint" in found.err) == (code, True), (words, found.err)
    assert [one["name"] for one in cli("savepoint", "list", "--json").json()] == ["one"]
    assert [t["number"] for t in cli("savepoint", "timelines", "shop", "--json").json()] == [1]
    with kept.running():
        running = cli("savepoint", "restore", "shop", "one")
        assert (running.code, "is running" in running.err) == (2, True)


def test_two_commands_at_once(kept: Shop, home: Path, cli: Cli) -> None:
    with folder.Shelf(home, "shop").locked():
        busy = cli("savepoint", "delete", "shop", "one")
        assert (busy.code, "another command is changing" in busy.err) == (1, True)
    with folder.locked(home / "timelines" / "shop", "timelines"):
        assert "another command is changing" in cli("savepoint", "restore", "shop", "one").err


def test_an_app_that_does_not_commit_together_is_refused(home: Path, cli: Cli) -> None:
    shop = Shop(home)
    shop.app = hr.App("shop", home=str(home), checkpoint_interval="200ms", guarantee="at_least_once")
    shop.app.input("sales", RATES).send_to(shop.app.output("worth"))
    with shop.running():
        refused = cli("savepoint", "create", "shop", "one", "--quiet")
    assert (refused.code, "at_least_once" in refused.err) == (2, True)
    shop.close()
