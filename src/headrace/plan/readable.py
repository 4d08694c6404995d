"""A plan for people: as text, and as tables in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from typing_extensions import override

from headrace.plan.model import Plan
from headrace.plan.render import render
from headrace.plan.text import to_html, to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadablePlan(Plan):
    """A plan whose ``str`` is the text of ``App.explain``, and which a notebook shows as tables."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the same plan in readable form."""
        return cls(**{each.name: getattr(plan, each.name) for each in fields(plan)})

    @override
    def __str__(self) -> str:
        return to_text(render(self)).rstrip("\n")

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        return to_html(render(self))
