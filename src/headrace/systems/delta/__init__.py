"""Delta tables as targets."""

from headrace.systems.delta.system import DeltaSystem, open_delta

__all__ = ["DeltaSystem", "open_delta"]
