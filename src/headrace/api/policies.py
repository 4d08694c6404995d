"""Check ``on_error=`` and ``dead_letter=``, which decide what happens to failed messages."""

from __future__ import annotations

from headrace.api.handles import Output
from headrace.api.literals import one_of
from headrace.api.operators.spec import OnError
from headrace.core.errors import DeclarationError


def dead_letter_id(on_error: OnError, dead_letter: Output | None, what: str) -> str | None:
    """Return the id of the dead-letter stream, or None under another policy; ``what`` names in errors what fails."""
    one_of("on_error", on_error, OnError)
    if on_error == "dead_letter" and dead_letter is None:
        raise DeclarationError(
            f'on_error="dead_letter" needs the output that {what} go to',
            hint='name it: dead_letter=app.output("views-unreadable")',
        )
    if on_error != "dead_letter" and dead_letter is not None:
        raise DeclarationError(
            f'dead_letter= is given, but on_error is "{on_error}"', hint='write on_error="dead_letter"'
        )
    if dead_letter is None:
        return None
    if not isinstance(dead_letter, Output):
        raise DeclarationError(
            f"dead_letter= takes an output, not {type(dead_letter).__name__} {dead_letter!s:.80}",
            hint='write dead_letter=app.output("views-unreadable")',
        )
    return dead_letter.id
