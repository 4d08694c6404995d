"""The simulator: whole apps over the real host, protocol, operators and stores, in virtual time, with seeded faults.

A run is a seed. The seed chooses the app's shape, its messages, every delay and every fault; the same seed does
the same thing again, so that a failure can be looked at as a story.

What is real: the run loop of a container with the hosts of its tasks, which are generators that pause wherever they
would block, so that a crash is to stop asking; the protocol, the frame codec and ``TaskState``; the coordinator's
ledger and its generations. What is simulated is the world behind the host's ports:

- ``systems``: consumers, producers and admins of partitioned logs whose appends are in flight, land late, land twice,
  in part, or die with their writer (``storage``); sources, some written by another exactly-once app (``sources``);
  transactional targets that lose their answers.
- ``disks``: folders are dicts, may be lost, locked or damaged; snapshots are copies.
- ``objects``: a store of snapshots, whose answers get lost, and hosts that are lost with their disks.
- ``calls``: an event loop in virtual time. ``container``: a process with its clock, its sleep and its death.
- ``coordinator`` and ``cluster``: who is current, and who places containers. ``readers`` read at the edge. ``faults``
  says what goes wrong.

- ``startpoints``: a user who writes startpoints at random moments into the real book, which the real desk of the
  coordinator fans out and grants.

- ``kinesis``: a stream whose shards split, merge and expire, read by the real consumer; ``dealings``: the real dealing
  in the driver, and heartbeats that take a while or are lost; ``shard_judge`` judges what commits say of shards. The
  apps are in ``slotted``.

There are two kinds of shapes. The bare ones (``shapes``) have a light task without operators (``bare``,
``processors``), which does something else at each attempt, on purpose. The apps (``declared``, ``planned``) are
declared with the public API and planned by the planner, with their real operators. In some of both kinds positions
in sources move (``MOVED`` in ``shapes``): there ``moves`` judges the history of each source partition.

The oracle (``oracle``) judges each commit at the moment it lands, right after the event that is to blame, and
state, completeness and committed output at the end. It knows what a task has done from what passes through the ports
(``journal``). Of an app (``app_oracle``) it rebuilds the state in each changelog, compares it with each copy, and
compares the outputs with what plain Python makes of the whole input (``expected``). ``savepoints`` takes savepoints of
a run and judges whether they fit together (shapes ``...+cuts``). ``timelines`` restores them, with other numbers of
tasks at times (``...+restores``). In shapes ``...+objects``, hosts have no disk in common. A sleep that is
interrupted for nothing must change nothing, or the container would sometimes sleep too long.

In shapes ``...+power`` all is on one machine, whose power is cut at times (``power``), and what wasn't synced is lost.

``python -m simulator --seeds 300`` runs it.
"""
