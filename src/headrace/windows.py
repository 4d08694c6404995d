"""More window shapes, and the types of all shapes. ``tumbling``, ``hopping`` and ``session`` are at the top level."""

from headrace.api.flow import WindowedStream
from headrace.api.specs import CountWindow, GlobalWindow, Hopping, Session, Sliding, Tumbling
from headrace.api.windows import count, global_, sliding

__all__ = [
    "CountWindow",
    "GlobalWindow",
    "Hopping",
    "Session",
    "Sliding",
    "Tumbling",
    "WindowedStream",
    "count",
    "global_",
    "sliding",
]

TYPE_CHECKING = False  # type checkers take it for true, and go on to report names that don't exist
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from headrace.api.other_names import WINDOWS, missing

        raise missing("hr.windows", name, WINDOWS, __all__)
