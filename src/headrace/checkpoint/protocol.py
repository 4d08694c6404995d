"""The exactly-once protocol of one task: events in, instructions out. No I/O, no clock, no logging.

Theory of operation
===================

A task reads partitions that several upstream tasks write, keeps state, and writes partitions that several tasks
read. Everything it does between two commits becomes true at once, or never happened. What makes it true is one
record in the task's changelog, the *commit*. Five small machines take part; each knows only its own matter.

``Changelog`` (module ``changelog``) decides which records of a changelog count, although dead and half-dead
incarnations of the task may append to it too. Each incarnation, and each rollback, is a new *generation*. It
begins by appending an *abort*: from there on nothing of an older generation counts. A task that finds a
generation above its own, at its start or before its own commit, stops; older ones never stop anybody.

``Sending`` (module ``sending``) names what leaves the task: every frame has (generation, seq) and the label of
the version it belongs to. ``Receiving`` (module ``receiving``) judges what comes in, frame by frame: duplicate,
void, in turn, too early, or a sign that something already processed never happened. ``ReadCommitted`` (module
``reading``) is the reader at the edge: it hands out frames once their commit is known.

``Node`` (module ``node``) is the task: it decides *when* to commit, in which order a commit, a start and a
rollback go, and what each leaves behind. It applies the tables in this module.

Versions. Each commit has a version C; versions rise. A task without a living upstream task is *timer-driven*: it
commits when the shared clock (milliseconds / interval) has passed its label, even when it has seen nothing, for
others wait for it. A task with one is *command-driven*: it commits M when every upstream task has closed it. So
a version travels through the graph, and every commit holds exactly the effects of the versions up to its own.
The label of outgoing frames is chosen once, at a commit or restore: C + 1 for a command-driven task,
max(C + 1, clock) for a timer-driven one, so that a task which was down rejoins at the current version.

Start and rollback are one thing. A task that starts fences its changelog, reads it to its own fence, takes up the
last commit that counts, and says so downstream with a *restore* frame: "committed through seq S; the rest of older
generations is void". A reader that has processed any of the rest does the same. That ends, because a restore which
voids nothing that was processed is merely noted; and it ends soon, because after a restart a task first scans its
inputs ahead for the restores that lie there, and never processes what they void.

The end. When all inputs have ended, the task fires what is open and sends end-of-stream. Its final commit is
announced with next = END, which closes every version there could be. It is over once that is acknowledged.

At-least-once is the same machine with barriers off: frames are labelled UNVERSIONED, every upstream task counts as
closed for good, so the task is timer-driven; no checkpoint frames are sent and a restore rolls nobody back.

The host's contract
===================

The host (a container's run loop, or the simulator) owns I/O, buffers, state and time. For each task it

1. makes a ``Node`` with a ``writer`` text that no other incarnation has;
2. calls ``tick`` with the wall clock, at least once an interval and before ``start``;
3. after every event, performs ``next_step()`` until that is None, calling ``performed()`` after each instruction
   (``start`` answers ``TakeGeneration``; nothing answers ``End`` and ``Stop``). ``due`` says without a call that
   there may be one. An instruction may take its time: other tasks go on meanwhile;
4. while there is none, calls ``receive`` with each frame of an intermediate input, in order of the partition, and
   does what the verdict says. Frames to be processed may be gathered and processed together, but before the next
   instruction is performed. Source messages are processed while there is no instruction, too; their positions
   are the host's and go into ``seal``;
5. stamps every outgoing frame with ``stamp``, and sends the frames of a partition in the order of their stamps. What
   was received before a commit and still waits for others to answer leaves before its ``FlushOutputs`` is performed;
6. calls ``inputs_ended`` when every source has ended and every end-of-stream has been processed;
7. keeps early frames in a buffer for each label, in order of arrival. Buffers survive nothing: what is in them is
   read again;
8. answers ``TakeGeneration`` with the furthest local state that the changelog can bring up to date: the folder's,
   else the newest snapshot's, else None and empty stores. When that base can't be read (trimmed, behind the end, no
   record there, None though the changelog has lost its beginning) or ``changelog`` answers ``MISFIT``, it throws the
   local state away and calls ``rebase`` with the next one. A range to *check* that was trimmed is met by a task only
   that was replaced long ago: it stops. A snapshot is durable before the changelog is trimmed, up to its commit;
9. drops all uncommitted state on ``Verdict.ROLLBACK``, on ``TakeGeneration``, and when it dies;
10. may call ``abandon`` when something went wrong outside (a full disk, a commit of which it isn't known whether it
   was written): the task rolls back, and the changelog tells what is true;
11. never reads an intermediate input from another place than it is told. An offset that was trimmed is met by
    tasks only that were replaced long ago: such a task stops.

A crash between any two instructions is safe, and so is a replacement that starts at any time, also while the
old incarnation lives. The only thing that must never happen is that two incarnations get one generation; it
is found out, by the writer in the abort records, and stops both.

Tables
======

``STEPS``: phases that wait for the host. ``DECISIONS``: what a running task does next; the first row whose guard
holds. ``receiving.RULES``: what becomes of a frame. The names in them are methods of ``Node`` and ``Receiving``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Where a task stands: what it waits for."""

    DOWN = "down"
    FENCING = "fencing"
    REPLAYING = "replaying"
    RESUMING = "resuming"
    ANNOUNCING = "announcing"
    SCANNING = "scanning"
    RUNNING = "running"
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
    OVER = "over"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Step:
    """``gives`` makes the instruction; once performed, ``effect`` runs and the first ``then`` that holds follows."""

    phase: Phase
    gives: str
    then: tuple[tuple[str, Phase], ...]
    effect: str = "nothing"


STEPS = (
    # start and rollback
    Step(Phase.DOWN, "take_generation", (("always", Phase.FENCING),)),
    Step(Phase.FENCING, "append_abort", (("always", Phase.REPLAYING),)),
    Step(Phase.REPLAYING, "read_changelog", (("fenced", Phase.STOPPED), ("always", Phase.RESUMING)), "adopt_record"),
    Step(Phase.RESUMING, "resume", (("always", Phase.ANNOUNCING),)),
    Step(Phase.ANNOUNCING, "send_restores", (("ended", Phase.CONFIRMING), ("always", Phase.SCANNING))),
    Step(Phase.SCANNING, "scan_ahead", (("always", Phase.RUNNING),)),
    # running
    Step(Phase.FEEDING, "feed", (("always", Phase.RUNNING),), "fed"),
    Step(Phase.FINISHING, "finish", (("always", Phase.RUNNING),), "finished"),
    # commit
    Step(Phase.FLUSHING, "flush_outputs", (("always", Phase.APPENDING),)),
    Step(Phase.APPENDING, "append_changes", (("always", Phase.COMMITTING),)),
    Step(Phase.COMMITTING, "append_commit", (("always", Phase.CHECKING),)),
    Step(Phase.CHECKING, "read_changelog", (("fenced", Phase.STOPPED), ("always", Phase.STORING)), "check_commit"),
    Step(Phase.STORING, "write_local", (("always", Phase.CLOSING),)),
    Step(Phase.CLOSING, "send_checkpoints", (("ended", Phase.CONFIRMING), ("always", Phase.REPORTING)), "committed"),
    Step(Phase.CONFIRMING, "flush_outputs", (("always", Phase.REPORTING),)),
    Step(Phase.REPORTING, "report", (("ended", Phase.OVER), ("always", Phase.RUNNING))),
    # the two ends
    Step(Phase.OVER, "end", ()),
    Step(Phase.STOPPED, "stop", ()),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """When the method ``when`` says yes, ``then`` decides and the phase follows."""

    when: str
    then: str
    phase: Phase
    says: str


DECISIONS = (
    Decision("buffer_due", "decide_feed", Phase.FEEDING, "a buffered label <= max(T, M): feed the lowest"),
    Decision("finish_due", "nothing", Phase.FINISHING, "all inputs ended, end-of-stream not sent: finish"),
    Decision("final_due", "decide_final", Phase.FLUSHING, "end-of-stream sent and M = END: final commit, next END"),
    Decision("version_closed", "decide_command", Phase.FLUSHING, "C < M < END: commit M, next M + 1"),
    Decision(
        "clock_passed", "decide_timer", Phase.FLUSHING, "M = END and clock > label: commit, next max(V + 1, clock)"
    ),
)
