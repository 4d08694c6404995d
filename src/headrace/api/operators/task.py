"""Low-level tasks, declared by ``app.task`` or ``Stream.process``: one node for the task and one for each output."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from typing_extensions import override

from headrace.api.checks import Location, SchemaLike
from headrace.api.draft import Draft, Output, Table
from headrace.api.flow import Flow, check_flow
from headrace.api.operators.join import TableUse, TaskTable, table_uses
from headrace.api.operators.spec import (
    EventTime,
    LostTime,
    OnError,
    OperatorSpec,
    StateMeaning,
    Time,
    check_time_column,
    expiry,
    is_time,
    names,
    typed,
)
from headrace.api.operators.steps import TASK_OUTPUT, SideOutput
from headrace.api.tasks import StoreSpec, Task, overrides, stores_of
from headrace.core.clock import format_ms
from headrace.core.errors import DeclarationError
from headrace.core.ids import check_id
from headrace.rows.schema import Schema
from headrace.stores.encoding import KeyEncoding

F = TypeVar("F", bound=Flow)

_METHODS = (
    Task.init,
    Task.process,
    Task.process_batch,
    Task.on_timer,
    Task.on_watermark,
    Task.on_end_of_stream,
    Task.close,
)


@dataclass(frozen=True, slots=True, eq=False)
class TaskStep(OperatorSpec):
    """A low-level task: an instance of the user's class, of which every task of the stage gets a copy.

    ``inputs`` are the names and schemas of its flows, in the order of the node's inputs. All that it emits are side
    outputs, one for each of ``outputs``. ``timed``: all inputs have an event time. ``on_error`` says what happens to
    messages on which it raises. It uses ``tables``; for each one that is local, its flows pass a ``TaskTable``.
    """

    task: Any
    inputs: tuple[tuple[str, Schema], ...]
    outputs: tuple[tuple[str, Schema], ...]
    stores: tuple[StoreSpec, ...]
    timed: bool
    on_error: OnError = "fail"
    tables: tuple[TableUse, ...] = ()
    kind = "task"
    places_results = False
    hidden_state = "a low-level task"
    gathers_keys = True

    @property
    @override
    def detail(self) -> str:
        words = [type(self.task).__name__]
        words += [f"to {names(tuple(name for name, _ in self.outputs))}"] if self.outputs else []
        stores = [f"{store.attribute} by {names(tuple(store.key.columns))}" for store in self.stores]
        for n, store in enumerate(self.stores):
            stores[n] += "" if store.ttl_ms is None else f" for {format_ms(store.ttl_ms)}"
        words += [f"keeps {' and '.join(stores)}"] if stores else []
        for verb, writes in (("reads", False), ("writes", True)):
            used = tuple(use.table for use in self.tables if use.writes is writes)
            words += [f"{verb} {' and '.join(used)}"] if used else []
        return ", ".join(words)

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        version = {"version": str(self.task.version)}
        stores = {
            store.id: StateMeaning(
                fixed={"kind": "store", "key": typed(store.key.columns, store.key), "expiry": expiry(store.ttl_ms)}
                | version,
                columns={name: str(dtype) for name, dtype in store.value.columns.items()},
                key=tuple(store.key.columns),
            )
            for store in self.stores
        }
        # Timers have keys that are values, without names, so they can be dealt by any columns.
        every = dict.fromkeys(name for _, schema in self.inputs for name in schema.columns)
        return {id_: StateMeaning(fixed={"kind": self.kind} | version, key=tuple(every)), **stores}

    @property
    @override
    def queryable_stores(self) -> tuple[StoreSpec, ...]:
        return self.stores


_WITHIN_NAMES = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def add_task(
    draft: Draft,
    flow_type: type[F],
    task: object,
    inputs: object,
    outputs: Mapping[str, SchemaLike] | None,
    id_: str | None,
    event_time: str | Mapping[str, str] | None,
    on_error: OnError,
    dead_letter: Output | str | None,
    tables: Mapping[str, Table] | None,
    writes: str | Iterable[str],
    here: Location,
) -> dict[str, F]:
    """Add a low-level task, by default named after its class, to the draft. Return the flow of each output."""
    own = _checked_task(task)
    if not isinstance(inputs, Mapping) or not inputs:
        raise DeclarationError(
            f"inputs= must be a dict of the streams that the task takes, not {type(inputs).__name__} {inputs!s:.80}",
            hint='write inputs={"views": views}',
        )
    flows = {check_id("the input", name): check_flow(f, f"the input {name!r}", draft) for name, f in inputs.items()}
    uses = table_uses(draft, {} if tables is None else tables, writes)
    schemas = {check_id("the output", name): Schema.of(columns) for name, columns in (outputs or {}).items()}
    times = _output_times(flows, schemas, event_time, here)
    first = next(iter(flows.values()))
    letters = first._letters_to(on_error, dead_letter, here)
    name = draft.claim("a task", id_, here, _WITHIN_NAMES.sub("-", type(own).__name__).lower())
    reaching = tuple(_past_tables(flow, uses, here) for flow in flows.values())
    step = TaskStep(
        task=_copied(own),
        inputs=tuple((input_, flow.schema) for input_, flow in flows.items()),
        outputs=tuple(schemas.items()),
        stores=_claimed_stores(draft, own, name, here),
        timed=all(flow._time is not None for flow in flows.values()),
        on_error=on_error,
        tables=uses,
    )
    draft.add("task", step, reaching, here, id_=name)
    first._send_letters(name, letters, here)
    found = {}
    for output, schema in schemas.items():
        time = times[output]
        known = time if isinstance(time, EventTime) else None
        node = draft.add(
            f"{name}-{output}", SideOutput(f"{TASK_OUTPUT}{output}"), (name,), here, schema=schema, event_time=known
        )
        found[output] = flow_type(draft, node.id, schema, time)
    return found


def _past_tables(flow: Flow, uses: Sequence[TableUse], here: Location) -> str:
    for use in uses:
        step = TaskTable(use.table, use.writes)
        flow = flow._then(step.kind, step, here, flow._schema, flow._time)
    return flow.node


def _checked_task(task: object) -> Task:
    if isinstance(task, type) and issubclass(task, Task):
        raise DeclarationError(
            f"a task must be an instance, not the class {task.__name__}",
            hint=f"create one with its parameters: {task.__name__}(...)",
        )
    if not isinstance(task, Task):
        raise DeclarationError(
            f"a task must be an instance of a subclass of hr.tasks.Task, not {type(task).__name__} {task!s:.80}",
            hint="write class Alerts(hr.tasks.Task): ..., and pass Alerts()",
        )
    name = type(task).__name__
    by_message, by_batch = overrides(task, Task.process), overrides(task, Task.process_batch)
    if by_message == by_batch:
        which = "both process and process_batch" if by_message else "neither process nor process_batch"
        raise DeclarationError(
            f"{name} overrides {which}",
            hint="override one: process(self, message, out), or process_batch(self, rows, out) for DataFrames",
        )
    for method in _METHODS:
        function = getattr(type(task), method.__name__)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise DeclarationError(
                f"{name}.{method.__name__} is {'async' if inspect.iscoroutinefunction(function) else 'a generator'}",
                hint="write a plain method, and send results with out.send(...)",
            )
    return task


def _copied(task: Task) -> Task:
    """A copy, so that later changes to the instance don't reach the app. Each task will need one as well."""
    try:
        return copy.deepcopy(task)
    except Exception as error:
        raise DeclarationError(
            f"this {type(task).__name__} can't be copied: {error}",
            hint="every task gets a copy, so open connections, files and locks in init(self, context)",
        ) from error


def _claimed_stores(draft: Draft, task: Task, id_: str, here: Location) -> tuple[StoreSpec, ...]:
    specs: dict[str, StoreSpec] = {}
    for attribute, store in stores_of(task).items():
        name = store.id or store.name
        if name in specs:
            raise DeclarationError(
                f"{specs[name].attribute!r} and {attribute!r} of {type(task).__name__} "
                f"are stores with the same id, {name!r}",
                hint="give each a hr.tasks.Store(...) and an id of its own",
            )
        check_id("the store", name)
        try:
            KeyEncoding(store.key.columns)
        except DeclarationError as error:
            raise DeclarationError(f"the store {name!r}: {error.message}", hint=error.hint) from error
        # Claim the whole id, step and store: a table of that name would share its state.
        whole = draft.claim(f"the store {attribute!r} of a task", f"{id_}.{name}", here, name)
        specs[name] = StoreSpec(whole, attribute, store.key, store.value, store.ttl_ms)
    return tuple(specs.values())


def _output_times(
    flows: Mapping[str, Flow], schemas: Mapping[str, Schema], event_time: str | Mapping[str, str] | None, here: Location
) -> dict[str, Time]:
    named = dict.fromkeys(schemas, event_time) if isinstance(event_time, str) else dict(event_time or {})
    for output in named:
        if output not in schemas:
            raise DeclarationError(
                f"event_time= names the output {output!r}, which the task doesn't have",
                hint=f"its outputs: {', '.join(schemas) or 'none'}",
            )
    untimed = [name for name, flow in flows.items() if flow._time is None]
    if named and untimed:
        raise DeclarationError(
            f"event_time= needs inputs with an event time, but {untimed[0]!r} has none",
            hint='name the column that holds it: app.input("views", schema, event_time="ts", lateness="5s")',
        )
    return {
        output: check_time_column(column, schema) if (column := named.get(output)) else _kept_time(flows, schema, here)
        for output, schema in schemas.items()
    }


def _kept_time(flows: Mapping[str, Flow], schema: Schema, here: Location) -> Time:
    known = [flow._time for flow in flows.values() if isinstance(flow._time, EventTime)]
    for time in known:
        dtype = schema.columns.get(time.column)
        if dtype is not None and is_time(dtype):
            return time
    if known and all(flow._time is not None for flow in flows.values()):
        return LostTime(known[0].column, "was not kept", "task", here)
    return next((flow._time for flow in flows.values() if isinstance(flow._time, LostTime)), None)
