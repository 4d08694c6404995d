"""Whatever changes an app goes through, it gives what a plain model of it gives, or says which change doesn't fit.

The model keeps one piece of state for each durable part of the app, and knows of each change what must be refused. Set
``HEADRACE_CHANGES`` to try that many lives of an app.
"""

from __future__ import annotations

import os

from changing_life import Life
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drawn import examples

EXAMPLES = int(os.environ.get("HEADRACE_CHANGES", examples(25)))


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_changed_app_does_what_its_model_does_or_is_refused(data: st.DataObject) -> None:
    with Life(lambda strategy, label: data.draw(strategy, label=label)) as life:
        for _ in range(data.draw(st.integers(1, 3), label="changes")):
            life.goes_on()
            life.changes()
        life.goes_on()
        life.ends()
