"""``hr.runs``: apps that run beside your code in a notebook or a script. ``App.start`` starts one."""

from headrace.runners.run import Run, running
from headrace.runners.run_status import RunStatus

__all__ = ["Run", "RunStatus", "running"]
