"""The simulator: whole apps over the real protocol, operators and stores, in virtual time, with seeded faults.

A run is a seed. The seed chooses the app's shape, its messages, every delay and every fault; the same seed does
the same thing again, so that a failure can be looked at as a story. What is simulated is the world around the
protocol: partitioned logs whose appends are in flight, land late, land twice, in part, or die with their writer
(``storage``); tasks as generators that yield around every instruction, so that a crash is to stop asking
(``task``); hosts with local folders, a coordinator and its metadata store (``cluster``); readers at the edge
(``readers``); what goes wrong (``faults``). What is real: ``checkpoint`` (protocol, records, changelog, reader),
the frame codec and the bookkeeping of watermarks and ends.

There are two kinds of shapes. The bare ones (``shapes``) have stand-ins for operators and state (``processors``),
which differ at each attempt on purpose. The apps (``declared``, ``planned``) are declared with the public API and
planned by the planner; ``app_task`` hosts the real ``Task`` with its operators and stores, reception, outlet, state
and publishing, over folders that are dicts (``local``) and targets that lose their answers (``edges``).

The oracle (``oracle``) judges each commit at the moment it lands, right after the event that is to blame, and
state, completeness and committed output at the end. Of an app (``app_oracle``) it rebuilds the state in each
changelog, compares it with each copy, and compares the outputs with what plain Python makes of the whole input
(``expected``). ``python -m simulator --seeds 300`` runs it.
"""
