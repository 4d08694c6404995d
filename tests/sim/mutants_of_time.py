"""Mistakes with the time and the end of inputs that are apart: each operator and each stream has its own."""

from __future__ import annotations

from msgspec.structs import replace
from mutant_kit import mutant

from headrace.task.event_time import PartitionTime, Progress, combined
from headrace.task.host.attempt import Attempt
from headrace.task.outputs.outlet import Announcer
from headrace.task.task import Chain, Task, _Step
from simulator.run import Parts

APART = ("app-apart", "app-apart-async")


class OneForAll(Task):
    """As if each operator took all inputs of the task."""

    def advance(self):
        news = None if self.finished else self.times.news()
        if news is not None:
            self.chain.advance(dict.fromkeys(news, combined(news.values())))


mutant("one time for all", "the slowest input of a task holds back all operators", Parts(task=OneForAll), *APART)


def all_outputs_alike(self):
    whole = combined([step.after for step in self._steps.values() if not step.operator.after])
    return dict.fromkeys(self.outputs, whole)


class OneForAllOutputs(Task):
    """Tells all readers what holds for the slowest of them."""

    @property
    def outputs(self):
        return all_outputs_alike(self.chain)


mutant("one time for all outputs", "no stream ends before the task", Parts(task=OneForAllOutputs), *APART, first_seed=3)


def let_ends_through(self):
    after = Chain_let_through(self)
    return after._replace(ended=self.reached.ended)


Chain_let_through = _Step._let_through


mutant(
    "an end overtakes rows",
    "an end passes a step that waits before the rows that it holds",
    Parts(),
    "app-apart-async",
    "app-async",
    patches=((_Step, "_let_through", let_ends_through),),
)


def all_at_once(self, inputs):
    """Ends as soon as one of the inputs has."""
    first = [p for p in inputs.values() if p.ended]
    Chain_advance(self, {s: Progress(p.watermark, ended=True) for s, p in inputs.items()} if first else inputs)


Chain_advance = Chain.advance


mutant(
    "the first end is the end",
    "operators end when any input of their task has ended",
    Parts(),
    *APART,
    patches=((Chain, "advance", all_at_once),),
)


def nothing_written(self, ended, progress):
    pass


mutant(
    "written ends aren't restored",
    "a restart writes an end again",
    Parts(),
    "app-apart",
    first_seed=48,
    patches=((Announcer, "resume", nothing_written),),
)


def saved_before_it_is_written(self):
    streams = [stream for stream, progress in self.task.outputs.items() if progress.ended]
    ended = [str(self._scope.outputs[stream].spec.stream) for stream in streams]
    return replace(self.task.save(), ended_streams=ended)


mutant(
    "an end counts as written when it is known",
    "a commit between the end of a step and the frame that says so loses the frame with a restart",
    Parts(),
    "app-apart",
    patches=((Attempt, "save", saved_before_it_is_written),),
    first_seed=186,
)


class EndsAgain(Task):
    def load(self, times):
        super().load(replace(times, ended_operators=[]))


mutant(
    "ended operators aren't restored",
    "a step ends again after a restart",
    Parts(task=EndsAgain),
    "app-apart",
    first_seed=47,
)


class ResumesAtTheInputs(Task):
    def load(self, times):
        super().load(replace(times, operators={}, streams={}))


mutant(
    "times of operators aren't restored",
    "a restart works out how far operators had come from inputs, of which some were silent and are not",
    Parts(task=ResumesAtTheInputs),
    "app-silent",
    first_seed=49,
)


class Unended(Task):
    def load(self, times):
        partitions = [replace(one, progress=one.progress._replace(ended=False)) for one in times.partitions]
        super().load(replace(times, partitions=partitions))


mutant(
    "ended inputs aren't restored",
    "a restart waits for the end of what has ended",
    Parts(task=Unended),
    "app-apart",
    first_seed=10,
)


def one_end_is_enough(self, task, task_count):
    PartitionTime_end(self, task, task_count)
    self.end()


PartitionTime_end = PartitionTime.on_end_of_stream


mutant(
    "one task's end is the partition's",
    "a partition ends with the first task that ends it",
    Parts(),
    *APART,
    "app-counts",
    patches=((PartitionTime, "on_end_of_stream", one_end_is_enough),),
    first_seed=2,
)
