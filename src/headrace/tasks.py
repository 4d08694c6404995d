"""Low-level tasks: classes whose methods are called with messages, timers and time; ``app.task`` runs them."""

from headrace.api.tasks import Out, Store, Task, TaskContext, Timer

__all__ = ["Out", "Store", "Task", "TaskContext", "Timer"]
