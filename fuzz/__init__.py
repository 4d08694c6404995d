"""Feeds damaged bytes to everything that decodes bytes from outside, and odd rows to every kind of step.

``python -m fuzz`` runs it; ``make fuzz MINUTES=10`` for longer. What may come out is a value or a ``DataError`` (a
``ProtocolError`` between processes). Everything else is a finding: another exception, a crash, a hang, or memory out of
proportion. It is saved as a file from which ``python -m fuzz --replay FILE`` repeats it.
"""
