// The apps of a home: how each is, with a link to its own page.

import { behind, count, el, follow, patched, span } from "./words.js";

const byId = (id) => document.getElementById(id);
let view = { place: "", apps: [], now: 0 };

follow({
  whole: (data) => {
    view = data.view;
    draw();
  },
  change: (data) => {
    view = patched(view, data.patch);
    draw();
  },
  said: (words) => {
    byId("connection").textContent = words;
    document.body.classList.toggle("stale", words !== "");
  },
});

const TITLES = ["<app", "<state", "<stages", "msg/s", "unread", "watermark", "tasks", "containers", "<since"];

const draw = () => {
  const now = view.now;
  byId("summary").textContent = view.place;
  byId("none").hidden = view.apps.length > 0;
  const head = el("tr", {}, ...TITLES.map((title) => el("th", { class: title.startsWith("<") ? "" : "right" }, title.replace("<", ""))));
  const rows = view.apps.map((app) => {
    const name = app.url ? el("a", { href: app.url }, app.name) : app.name;
    const when = app.ended ? `ended ${span(now - app.ended)} ago` : `up ${span(now - app.started)}`;
    const cells = [
      name,
      el("span", { class: `badge ${app.held ? "held" : app.state}` }, app.held && app.state === "running" ? "held back" : app.state),
      app.stages,
      app.ended ? "–" : count(app.rate),
      app.ended ? "–" : count(app.lag),
      app.ended ? "–" : behind(app.watermark, now),
      app.ended ? "–" : String(app.tasks),
      app.ended ? "–" : String(app.containers),
      when,
    ];
    return el("tr", {}, ...cells.map((cell, n) => el("td", { class: TITLES[n].startsWith("<") ? "" : "right" }, cell)));
  });
  byId("apps").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
  const waiting = view.apps.filter((app) => app.startpoints);
  byId("startpoints").hidden = waiting.length === 0;
  byId("startpoints").querySelector("ul").replaceChildren(
    ...waiting.flatMap((app) => app.startpoints.map((words) => el("li", {}, el("b", {}, app.name), ` ${words}`))),
  );
  const wrong = view.apps.filter((app) => app.trouble);
  byId("errors").hidden = wrong.length === 0;
  byId("errors").querySelector("ul").replaceChildren(
    ...wrong.map((app) =>
      el("li", {}, el("p", { class: "who" }, el("b", {}, app.name)), el("pre", {}, app.trouble), app.hint && el("p", { class: "remedy" }, app.hint)),
    ),
  );
};
