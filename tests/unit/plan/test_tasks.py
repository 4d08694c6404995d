"""Which task reads which partition, and the tasks' producer ids."""

from __future__ import annotations

import zlib

from graph_builder import AppBuilder
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import TaskName
from headrace.plan.stages import PRODUCER_MAX, producer_ids


def inputs_of(app: AppBuilder, containers: int = 1) -> dict[str, list[str]]:
    return {
        str(task.name): [str(ssp).removeprefix("log.") for ssp in task.inputs]
        for stage in app.plan(containers).stages
        for task in stage.tasks
    }


def test_task_n_reads_partition_n_of_each_stream_that_has_so_many():
    app = AppBuilder()
    app.output("out", app.merge("m", app.input("a", 1), app.input("b", 3)))
    assert inputs_of(app) == {"a/0": ["a[0]", "b[0]"], "a/1": ["b[1]"], "a/2": ["b[2]"]}


def test_every_task_reads_all_of_a_broadcast_stream():
    app = AppBuilder(intermediate_partitions=2)
    app.output("out", app.join("j", app.input("a", 2), app.broadcast("rules", app.input("r", 1))))
    inputs = inputs_of(app)
    assert inputs["rules/0"] == ["a[0]", "rules[0]", "rules[1]"]
    assert inputs["rules/1"] == ["a[1]", "rules[0]", "rules[1]"]
    assert inputs["r/0"] == ["r[0]"]


def test_a_stage_that_reads_only_broadcast_streams_is_one_task():
    app = AppBuilder(intermediate_partitions=3)
    app.output("out", app.broadcast("rules", app.input("r", 2)))
    assert inputs_of(app)["rules/0"] == ["rules[0]", "rules[1]", "rules[2]"]
    assert "rules/1" not in inputs_of(app)


def test_side_inputs_are_read_by_partition_for_local_tables_and_whole_for_global_ones():
    app = AppBuilder()
    local = app.table("local", app.side_input("parted", 2))
    whole = app.table("whole", app.side_input("full", 2), kind="global")
    app.output("out", app.table_join("k", app.table_join("j", app.input("s", 2), local), whole))
    assert inputs_of(app) == {
        "s/0": ["full[0]", "full[1]", "parted[0]", "s[0]"],
        "s/1": ["full[0]", "full[1]", "parted[1]", "s[1]"],
    }


def test_side_inputs_count_for_the_number_of_tasks():
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 3))
    app.output("out", app.table_join("j", app.broadcast("b", app.input("s", 1), partitions=1), t))
    assert inputs_of(app)["b/2"] == ["b[0]", "side[2]"]


def test_grouping_by_container_gives_each_container_one_task_that_reads_all():
    app = AppBuilder(grouping="container")
    app.output("out", app.partition_by("by-k", app.input("s", 2)))
    assert inputs_of(app, containers=2) == {
        "s/0": ["s[0]", "s[1]"],
        "s/1": ["s[0]", "s[1]"],
        "by-k/0": ["by-k[0]", "by-k[1]"],
        "by-k/1": ["by-k[0]", "by-k[1]"],
    }


# -- producer ids ---------------------------------------------------------------------------------------

NAMES = st.lists(
    st.builds(TaskName, st.text("abc-", min_size=1, max_size=6), st.integers(0, 300)),
    unique=True,
    max_size=200,
)


@given(NAMES, st.randoms(use_true_random=False))
def test_producer_ids_are_unique_positive_int32_whatever_the_order(names, random):
    ids = producer_ids("app", names)
    assert len(set(ids.values())) == len(names)
    assert all(0 < number <= PRODUCER_MAX for number in ids.values())
    random.shuffle(names)
    assert producer_ids("app", names) == ids


def test_the_id_of_a_task_is_always_the_same_number():
    # Golden: frames on disk contain these.
    assert producer_ids("views", [TaskName("by-member", 0), TaskName("by-member", 1)]) == {
        TaskName("by-member", 0): 641664163,
        TaskName("by-member", 1): 1362637881,
    }


def test_tasks_of_apps_that_write_one_stream_have_ids_of_their_own():
    name = TaskName("by-member", 0)
    assert producer_ids("views", [name]) != producer_ids("views-2", [name])


def test_other_stages_come_and_go_without_changing_an_id():
    app = AppBuilder()
    by_k = app.partition_by("by-k", app.input("s", 4))
    app.output("out", by_k)
    before = {task.name: task.producer for stage in app.plan().stages for task in stage.tasks}
    app.output("out", app.partition_by("a-new-one", app.input("another", 9)))
    after = {task.name: task.producer for stage in app.plan().stages for task in stage.tasks}
    assert before.items() < after.items()


def test_of_two_names_that_hash_alike_the_later_one_moves_to_the_next_free_number():
    seen: dict[int, TaskName] = {}
    pair = None
    for n in range(400_000):
        name = TaskName("stage-" + str(n % 613), n)
        number = zlib.crc32(f"app/{name}".encode()) % PRODUCER_MAX
        if number in seen:
            pair = (seen[number], name)
            break
        seen[number] = name
    assert pair is not None
    alone = producer_ids("app", pair[:1])[pair[0]]
    assert alone == producer_ids("app", pair[1:])[pair[1]]
    ids = producer_ids("app", pair)
    assert ids[min(pair)] == alone
    assert ids[max(pair)] == alone % PRODUCER_MAX + 1
