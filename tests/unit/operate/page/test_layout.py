"""Placing boxes: nothing overlaps, all links lead to the right, few lines cross."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.operate.page.plan_page import Box, Layout, Link, lay_out

BOX = Box(100, 40)


def link(source: str, target: str) -> Link:
    return Link(source, target, 20, 20)


def placed(names: str, *links: str) -> Layout:
    boxes = dict.fromkeys(names, BOX)
    return lay_out(boxes, [link(*pair) for pair in links], gap_x=50, gap_y=20)


def test_a_chain_is_one_level_line():
    layout = placed("abc", "ab", "bc")
    assert layout.places == {"a": (0, 0), "b": (150, 0), "c": (300, 0)}
    assert (layout.width, layout.height) == (400, 40)
    assert {y for _, y in layout.routes[0]} == {20}


def test_what_meets_stands_in_the_middle_of_what_it_meets():
    layout = placed("abc", "ac", "bc")
    assert layout.places["c"][1] == 30
    assert layout.places["b"][1] - layout.places["a"][1] == 60


def test_boxes_are_ordered_so_that_links_do_not_cross():
    layout = placed("abcd", "ad", "bc")
    assert (layout.places["a"][1] < layout.places["b"][1]) == (layout.places["d"][1] < layout.places["c"][1])


def test_a_link_over_several_ranks_passes_beside_the_boxes_between():
    layout = placed("abc", "ab", "bc", "ac")
    top = layout.places["b"][1]
    level = [y for x, y in layout.routes[2] if 150 <= x <= 250]
    assert level and all(y < top or y > top + 40 for y in level)


def test_a_source_stands_beside_its_reader():
    assert placed("abcd", "ab", "bc", "dc").places["d"][0] == 150


def test_nothing_takes_no_place():
    assert lay_out({}, [], gap_x=1, gap_y=1) == Layout({}, [], 0, 0)


@st.composite
def pictures(draw: st.DrawFn) -> tuple[dict[str, Box], list[Link]]:
    names = [f"n{n}" for n in range(draw(st.integers(1, 12)))]
    size = st.sampled_from([30.0, 60.0, 110.0])
    boxes = {name: Box(draw(size), draw(size)) for name in names}
    pairs = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=16))
    links = [Link(a, b, boxes[a].height / 2, boxes[b].height / 2) for a, b in pairs if int(a[1:]) < int(b[1:])]
    return boxes, links


@given(pictures())
@settings(max_examples=examples(150), deadline=None)
def test_boxes_keep_apart_and_links_run_to_the_right(picture):
    boxes, links = picture
    layout = lay_out(boxes, links, gap_x=40, gap_y=20)
    for one, other in combinations(boxes, 2):
        (x, y), (other_x, other_y) = layout.places[one], layout.places[other]
        beside = x + boxes[one].width <= other_x or other_x + boxes[other].width <= x
        above = y + boxes[one].height + 19.9 <= other_y or other_y + boxes[other].height + 19.9 <= y
        assert beside or above, (one, other)
    for name, (x, y) in layout.places.items():
        assert x >= -0.01 and x + boxes[name].width <= layout.width + 0.01
        assert y >= -0.01 and y + boxes[name].height <= layout.height + 0.01
    for line, route in zip(links, layout.routes, strict=True):
        start, end = layout.places[line.source], layout.places[line.target]
        assert route[0] == (start[0] + boxes[line.source].width, start[1] + line.source_y)
        assert route[-1] == (end[0], end[1] + line.target_y)
        assert all(left[0] <= right[0] for left, right in pairwise(route))
    assert lay_out(boxes, links, gap_x=40, gap_y=20) == layout
