"""``hr.runs``: apps that run beside your code in a notebook or a script. ``App.start`` starts one."""

from headrace.run.run import Run, RunStatus, running

__all__ = ["Run", "RunStatus", "running"]
