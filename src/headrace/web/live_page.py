"""The files of a live page: the picture of the plan with places for numbers, and scripts that fill them.

The scripts are plain modules without a library. What they show comes as server-sent events from the coordinator
(``runners/dashboard``); the picture, the legend and the descriptions are those of the plan page.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from headrace.plan.render import RenderedPlan
from headrace.web.plan_drawing import plan_picture
from headrace.web.plan_page import asset, descriptions, legend, summary

_SCRIPTS = ("live.js", "looks.js", "charts.js", "words.js", "plan_page.js")
_STATES = (
    ("busy", "busy"),
    ("held", "held back"),
    ("idle", "idle"),
    ("starting", "starting"),
    ("lost", "lost"),
    ("done", "finished"),
)


def live_files(plan: RenderedPlan, *, peek: bool = False) -> Mapping[str, str]:
    """All files of the page of an app, by name. ``peek``: it may show messages."""
    return {"index.html": _index(plan, peek=peek), **static_files("plan_page.css", "live.css", *_SCRIPTS)}


def overview_files() -> Mapping[str, str]:
    """All files of the page that lists the apps of a home."""
    files = static_files("overview.html", "plan_page.css", "live.css", "overview.js", "words.js")
    return {"index.html": files.pop("overview.html"), **files}


def static_files(*names: str) -> dict[str, str]:
    """Files of this package."""
    return {name: asset(name) for name in names}


def _index(plan: RenderedPlan, *, peek: bool) -> str:
    picture, peeks = plan_picture(plan, live=True), " data-peek" if peek else ""
    states = "".join(f'<li><span class="cell {class_}"></span>{words}</li>' for class_, words in _STATES)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(plan.app)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="dashboard/plan_page.css">
<link rel="stylesheet" href="dashboard/live.css">
<script type="module" src="dashboard/live.js"></script>
<script type="module" src="dashboard/plan_page.js"></script>
</head>
<body class="live"{peeks}>
<header>
<h1>{escape(plan.app)}</h1>
<span id="state" class="badge">connecting</span>
<p id="summary">{summary(plan)}</p>
<p id="connection" role="status"></p>
</header>
<ul id="numbers" class="numbers"></ul>
<section id="reasons" aria-live="polite" hidden><h2>What holds what</h2><ul></ul></section>
<section id="stages" class="narrow"><h2>Stages</h2><ul></ul></section>
<ul class="legend states">{states}</ul>
{legend(picture)}
<main id="top">
{picture}
</main>
<section id="history"><h2>The last hour</h2>
<nav id="span"></nav>
<div id="charts" class="charts"></div></section>
<section id="errors" hidden><h2>Errors and warnings</h2><ul></ul></section>
<section id="containers"><h2>Containers</h2><div class="scrolls"><table></table></div></section>
<section id="profile" hidden><h2></h2><div></div></section>
<section id="outputs" hidden><h2>Outputs</h2><div class="scrolls"><table></table></div></section>
{"".join(descriptions(plan))}
<div id="tip" role="tooltip" hidden></div>
<noscript>This page needs scripts; they come from the app itself.</noscript>
</body>
</html>
"""
