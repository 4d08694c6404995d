from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.protocol.frame_judge import RULES, FrameJudge
from headrace.protocol.machine import DECISIONS, STEPS, ProtocolMachine
from headrace.protocol.protocol import Phase
from protocol_tables import DRAWINGS, main, redraw

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_is_up_to_date():
    page = PAGE.read_text()
    assert redraw(page) == page, "run: python tests/protocol_tables.py docs/protocol.md"
    for name in DRAWINGS:
        assert f"<!-- drawn: {name} -->" in page


def test_an_unknown_drawing_is_an_error():
    with pytest.raises(UsageError, match="there is no drawing named 'cat'"):
        redraw("<!-- drawn: cat -->\n<!-- end -->")


def test_pages_are_redrawn_in_place(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- drawn: rules -->\nold\n<!-- end -->\nafter\n")
    main([str(page)])
    assert "old" not in page.read_text()
    assert page.read_text().startswith("before\n")
    main([])
    assert "| fencing | append abort | replaying |" in capsys.readouterr().out


def test_the_tables_name_methods_and_phases_that_are_there():
    for step in STEPS:
        assert not step.then or step.then[-1][0] is ProtocolMachine.always
    assert all(callable(getattr(FrameJudge, name)) for rule in RULES for name in (rule.when, rule.then))
    assert {step.phase for step in STEPS} == set(Phase) - {Phase.RUNNING}
    assert {phase for step in STEPS for _, phase in step.then} | {d.phase for d in DECISIONS} == set(Phase)
