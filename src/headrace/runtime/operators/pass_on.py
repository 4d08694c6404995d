"""The operator for nodes that hand rows on as they are: inputs, merges and side outputs."""

from __future__ import annotations

from headrace.api.operators.streams import Input, Merge, SideOutput
from headrace.api.specs import Node
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext


class PassOnOperator(Operator):
    """Hands rows on; everything else is decided by who is connected to it."""

    def __init__(self, node: Node, spec: Input | Merge | SideOutput, context: BuildContext) -> None:
        super().__init__(node)
