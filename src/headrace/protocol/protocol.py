"""The exactly-once protocol of one task: events in, instructions out. No I/O, no clock, no logging.

Theory of operation
===================

A task reads partitions that several upstream tasks write, keeps state, and writes partitions that several tasks
read. Everything it does between two commits takes effect at once, or never happened. One record in the task's
changelog decides which: the *commit*. Five small state machines take part.

``Changelog`` decides which records of a changelog count. Dead incarnations of the task, and zombies that were declared
dead and still run, may append to it too. Each incarnation, and each rollback, is a new *generation*, which starts by
appending an *abort* record. A task stops when it finds a generation above its own, either at its start or before its
own commit. An older generation never stops a task. ``FrameStamper`` gives each frame that the task sends its
(generation, seq) and label. ``FrameJudge`` judges each frame that arrives: a duplicate, void, next in turn, too early,
or proof that something already processed never happened. ``ReadCommitted`` is the reader outside the app.
``ProtocolMachine`` decides *when* to commit, and orders the steps of a commit, a start and a rollback.

Versions. Each commit has a version C, and versions rise. A task is *timer-driven* while it has no live upstream task:
it commits when the shared clock (milliseconds / interval) has passed its label, even if it has received nothing,
because downstream tasks wait for its versions. A task with live upstream tasks is *command-driven*: it commits M when
every upstream task has closed M. So a version travels through the graph, and each commit holds exactly the effects of
the versions up to its own. The label of outgoing frames is C + 1 for a command-driven task, max(C + 1, clock) for a
timer-driven one, so that a task that was down rejoins at the current version.

Late tasks. While an upstream task is down, it closes nothing, and M stands still. So after a while the host has it *set
aside* (SEP-10: "progress on processing node failure"; ``frame_judge``). That is safe because a commit may leave out any
frames; it must only not contain what isn't committed. Frames that are left out get into later commits, although their
labels are lower. So a version with a late task isn't complete, which matters to cuts and to whoever counts on
completeness (``whole``). Any task may be set aside at any time: a wrong guess costs a rollback.

Start and rollback are the same procedure. The task appends its abort record, reads the changelog up to it, adopts the
last commit that counts, and announces it downstream with a *restore* frame: "committed through seq S; the rest of older
generations is void". A reader records that as a *fence*, which voids frames, and if it has processed any of the void
frames, it rolls back too. The cascade ends, because a restore that voids nothing processed causes no rollback. It ends
soon, because a task that starts or rolls back first scans its inputs ahead for restores, and never processes what they
void.

Startpoints. The coordinator gives a task its orders together with a generation: where to read partitions of sources,
whatever was committed (``machine``). Nothing else of the protocol knows of them: to a task, messages that are read
again are new messages.

Cuts. A cut is a version that all tasks commit exactly, where they otherwise may pass over versions. At a cut, nothing
that a task has processed is missing in the commit of another, and nothing is on its way between them. So the states
that hosts keep at a cut (``Keep``) are a consistent copy of the whole app: a *savepoint*. A task that is given a cut
too late misses it, which cancels the cut, as if a task has started twice around it (``misfit`` in ``life.folder``).

Founding. Restoring a savepoint begins a new *timeline*: changelogs and intermediate streams under new names. A task
whose changelog is empty, and which is to be founded, first commits what it takes over (``Found``), and then resumes
from that commit as from any other.

The end. When all inputs have ended, the task fires its open windows and sends end-of-stream. Its final commit is
announced with next = END, which closes every version there could be. The task is over once that is acknowledged.

At-least-once is the same machine with barriers off. Frames are labelled UNVERSIONED. Every upstream task counts as
permanently closed, so every task is timer-driven. No checkpoint frames are sent, and no restore rolls a task back.

The host's contract
===================

The host (a container's run loop, or the simulator) owns I/O, buffers, state and time. For each task it

1. creates a ``ProtocolMachine`` with a ``writer`` text that no other incarnation has;
2. calls ``tick`` with the wall clock before ``start``, and at least once an interval;
3. after every event, performs ``next_step()`` until that returns None, and calls ``performed()`` after each
   instruction. Exceptions: it answers ``TakeGeneration`` with ``start``, and does not answer ``End`` and ``Stop``.
   ``due`` is a cheap test of whether there may be an instruction. An instruction may take a long time; other tasks
   run meanwhile;
4. while there is no instruction, calls ``receive`` with each frame of an intermediate input, in partition order, and
   follows the verdict. It may collect frames to process them together, but must process them before it performs the
   next instruction. Source messages too are processed only while there is no instruction; the host keeps
   their positions and passes them to ``seal``;
5. stamps every outgoing frame with ``stamp``, and sends the frames of each partition in the order of their stamps.
   The results of all messages received before a commit are sent before its ``FlushOutputs`` is performed. So the host
   first waits for operators that hold messages because calls haven't been answered;
6. calls ``inputs_ended`` when every source has ended and every end-of-stream has been processed;
7. keeps early frames in the version buffer, by label and in order of arrival. The buffer is not durable: after a start
   or rollback its frames are read again. If it is full, it keeps only their places, and reads them again when they are
   fed: until a commit covers them, they aren't trimmed. The host must not stop receiving a partition instead: behind
   one task's early frames there may be the checkpoint of another task that the version in progress waits for;
8. answers ``TakeGeneration`` with the most recent local state that the changelog can bring up to date: that of the
   local folder, else that of the newest snapshot, else None together with empty stores. The base may prove unusable:
   its offset was trimmed, is past the end or holds no record, or it is None and the changelog has lost its
   beginning, or ``changelog`` answers ``MISFIT``. The host then throws the local state away and calls ``rebase`` with
   the next candidate. If the range to *check* was trimmed, the task was replaced long ago: it stops. A snapshot is
   made durable before the changelog is trimmed up to the snapshot's commit;
9. drops all uncommitted state on ``Verdict.ROLLBACK``, on ``TakeGeneration``, and when it dies;
10. answers ``Found`` by filling its stores with its share of what the donors hold; the changes and the record that
    the machine was given become the first commit. It answers ``Keep`` with a durable copy of local state and record;
11. reports to the coordinator each order that it applied, and each that it can't apply; then it stops.
    ``ReleaseOrders`` waits until the coordinator knows;
12. may call ``set_aside`` while the task is ``lagging``, and should do so only if the late tasks are down or very slow:
    it should have read what was there in the inputs when it lost its patience;
13. may call ``abandon`` after an external failure (a full disk, or a commit that may or may not have been written):
    the task rolls back, and the changelog says what was committed;
14. reads intermediate inputs only from the offsets that the instructions give; None is the beginning of the stream.
    Only a task that was replaced long ago meets a trimmed offset, or a beginning that was trimmed: it stops.

A crash between any two instructions is safe. So is a replacement that starts at any time, even while the old
incarnation lives. Two incarnations must never get the same generation. If that happens, the writers in the abort
records differ; both incarnations detect it and stop.

Tables
======

``STEPS``: the phases in which the machine waits for the host. ``DECISIONS``: what a running task does next; the first
row whose guard holds applies. ``frame_judge.RULES``: what happens to a received frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.protocol.instructions import Instruction

Guard = Callable[[Any], bool]
Effect = Callable[[Any], None]


class Phase(Enum):
    """What the machine is doing: each phase but ``RUNNING`` waits for one instruction to be performed."""

    DOWN = "down"
    FENCING = "fencing"
    REPLAYING = "replaying"
    FOUNDING = "founding"
    RESUMING = "resuming"
    ANNOUNCING = "announcing"
    SCANNING = "scanning"
    RUNNING = "running"
    KEEPING = "keeping"
    FEEDING = "feeding"
    FINISHING = "finishing"
    FLUSHING = "flushing"
    APPENDING = "appending"
    COMMITTING = "committing"
    CHECKING = "checking"
    STORING = "storing"
    CLOSING = "closing"
    CONFIRMING = "confirming"
    REPORTING = "reporting"
    RELEASING = "releasing"
    OVER = "over"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Step:
    """The host performs ``instruction``, ``effect`` runs, and the first phase in ``then`` whose guard holds follows."""

    phase: Phase
    instruction: Callable[[Any], Instruction]
    then: tuple[tuple[Guard, Phase], ...]
    effect: Effect | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One row: if the guard ``when`` holds, the method ``then`` runs and the machine enters ``phase``."""

    when: Guard
    then: Effect
    phase: Phase
    summary: str
