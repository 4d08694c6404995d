"""The simulator: whole apps over the real protocol and record codecs, in virtual time, with seeded faults.

A run is a seed. The seed chooses the app's shape, its messages, every delay and every fault; the same seed does
the same thing again, so that a failure can be looked at as a story. What is simulated is the world around the
protocol: partitioned logs whose appends are in flight, land late, land twice or die with their writer
(``storage``); tasks as generators that yield around every instruction, so that a crash is to stop asking
(``task``); hosts with local folders, a coordinator and its metadata store (``cluster``); readers at the edge
(``readers``); what goes wrong (``faults``). What is real: ``checkpoint`` (protocol, records, changelog, reader),
the frame codec and the bookkeeping of watermarks and ends.

The oracle (``oracle``) judges each commit at the moment it lands, when the event that is to blame is at hand, and
state, completeness and committed output at the end. ``python -m headrace.testing.sim --seeds 300`` runs it.
"""
