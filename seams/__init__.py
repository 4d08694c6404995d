"""Covers the seams between parts: apps drawn from the product of inputs, steps, modes, moves and outputs.

Each case is a value for every factor (``factors.py``), an app that is built from them (``apps.py``), an oracle of
plain Python (``oracle.py``), and a way to run it (``modes.py``). ``python -m seams`` runs cases that cover each pair.
"""
