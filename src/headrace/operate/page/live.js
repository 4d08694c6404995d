// The live page of an app: events keep `view` current, and each part of the page is drawn from it.

import { Charts } from "./charts.js";
import { peekPlace, profileButton } from "./looks.js";
import { STATES, behind, bytes, clock, count, el, follow, millis, patched, span, svg } from "./words.js";

const CELLS_MAX = 200;
const ROWS_MAX = 60;
const ORDER = Object.keys(STATES);
const byId = (id) => document.getElementById(id);
const charts = new Charts(byId("charts"), byId("span"));
const tip = byId("tip");
let view = { stages: {}, tasks: {}, steps: {}, containers: {}, outputs: {}, reasons: [], errors: [], app: {} };
let latest = {};
let drawing = false;
let over = false;

follow({
  whole: (data) => {
    view = data.view;
    latest = data.history.at(-1) ?? {};
    charts.replace(data.history);
    draw();
  },
  change: (data) => {
    view = patched(view, data.patch);
    if (data.point) latest = data.point;
    charts.add(data.point);
    draw();
  },
  said: (words) => {
    over = words !== "";
    byId("connection").textContent = words;
    document.body.classList.toggle("stale", over);
  },
});

const draw = () => {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const now = Math.max(latest.t ?? 0, 0) || Date.now();
    const tasks = byStage();
    head(now);
    numbers(now, tasks);
    reasons(now);
    picture(now, tasks);
    narrow(now, tasks);
    containers();
    outputs();
    errors(now);
    described(now, tasks);
  });
};
addEventListener("hashchange", draw);

// Tasks with their names, by stage, in the order of their numbers.
const byStage = () => {
  const found = {};
  for (const [name, task] of Object.entries(view.tasks)) {
    const at = name.lastIndexOf("/");
    (found[name.slice(0, at)] ??= []).push({ name, number: Number(name.slice(at + 1)), ...task });
  }
  for (const tasks of Object.values(found)) tasks.sort((a, b) => a.number - b.number);
  return found;
};

// -- the head

const head = (now) => {
  const { state = "connecting", started, ended, guarantee } = view.app;
  byId("state").textContent = state;
  byId("state").className = `badge ${state}`;
  const tasks = Object.keys(view.tasks).length;
  const since = started ? `${ended ? "ran" : "up"} ${span((ended ?? now) - started)}` : "";
  const stages = Object.keys(view.stages).length;
  byId("summary").textContent = [
    `${stages} stage${stages === 1 ? "" : "s"}`,
    `${tasks} task${tasks === 1 ? "" : "s"}`,
    guarantee?.replaceAll("_", "-"),
    since,
  ].join(" · ");
};

const numbers = (now, byStages) => {
  const tasks = Object.values(byStages).flat().filter((task) => task.state !== "done");
  const commits = tasks.map((task) => task.committed).filter((time) => time !== undefined);
  const lag = tasks.reduce((sum, task) => sum + (task.lag ?? 0), 0);
  const busiest = tasks.reduce((best, task) => (task.busy > (best?.busy ?? -1) ? task : best), null);
  const shown = [
    ["in", `${count(latest.in)}/s`],
    ["out", `${count(latest.out)}/s`],
    ["99 % sent within", millis(latest.p99)],
    ["unread", count(lag)],
    ["oldest checkpoint", commits.length ? `${span(now - Math.min(...commits))} ago` : "–"],
    ["busiest task", busiest ? `${busiest.busy} %` : "–", busiest?.name],
    ["state", bytes(latest.state)],
  ];
  byId("numbers").replaceChildren(
    ...shown.map(([words, value, title]) => el("li", { title }, el("b", {}, value), el("span", {}, words))),
  );
};

const reasons = (now) => {
  const place = byId("reasons");
  place.hidden = view.reasons.length === 0;
  place.querySelector("ul").replaceChildren(
    ...view.reasons.map((one) =>
      el(
        "li",
        { class: one.kind, title: one.tasks.join(", ") },
        el("span", { class: "for" }, span(now - one.since)),
        el("p", {}, one.text),
        el("p", { class: "remedy" }, one.remedy),
      ),
    ),
  );
};

// -- the picture

const picture = (now, tasks) => {
  for (const box of document.querySelectorAll(".plan .stage")) {
    const stage = view.stages[box.dataset.stage];
    box.classList.remove(...ORDER);
    box.querySelector(".measured").replaceChildren(...(stage ? measured(box.dataset.stage, stage, tasks, now, 240) : []));
    if (stage) box.classList.add(stage.state);
  }
  for (const text of document.querySelectorAll(".plan .rate")) {
    const { reads, writes, stream } = text.dataset;
    const rate = reads ? view.stages[reads]?.reads?.[stream] : view.stages[writes]?.writes?.[stream];
    text.textContent = rate === undefined ? "" : `${count(rate)}/s`;
  }
  for (const row of document.querySelectorAll(".plan a.operator, .plan a.table")) {
    const id = decodeURIComponent(row.getAttribute("href")).replace(/^#(operator|table)-/, "");
    const step = view.steps[`${row.closest(".stage").dataset.stage}/${id}`];
    let live = row.querySelector(".step");
    if (!live) {
      live = el("span", { class: "step" }, el("span", {}), el("span", { class: "share" }));
      row.append(live);
    }
    const words = step ? [step.rate ? `${count(step.rate)}/s` : "", step.keys === undefined ? "" : `${count(step.keys)} keys`] : [];
    live.firstChild.textContent = words.filter(Boolean).join(", ");
    live.lastChild.style.width = `${step?.busy ?? 0}%`;
    row.classList.toggle("held", Boolean(step?.held));
    row.classList.toggle("hot", (step?.busy ?? 0) >= 50);
  }
};

const measured = (name, stage, tasks, now, width) => {
  const busy = stage.tasks > 1 ? `busy ${stage.busy} %, at most ${stage.busiest} %` : `busy ${stage.busy} %`;
  const idle = stage.idle ? `, ${stage.idle} idle` : "";
  const why = stage.state === "held" && stage.held ? `held back: ${stage.held}` : STATES[stage.state];
  const words = stage.state === "busy" || stage.state === "idle" ? busy : why;
  return [
    el("p", {}, el("span", { class: `dot ${stage.state}` }), el("span", {}, words), el("span", {}, `${count(stage.rate)}/s`)),
    el("p", {}, el("span", {}, `${behind(stage.watermark, now)}${idle}`), el("span", {}, `${count(stage.lag)} unread`)),
    strip(name, tasks[name] ?? [], width),
  ];
};

// A cell for each task, or for several neighbours if there are very many: the worst of them counts.
const strip = (name, tasks, width) => {
  const together = Math.max(1, Math.ceil(tasks.length / CELLS_MAX));
  const cells = [];
  for (let at = 0; at < tasks.length; at += together) {
    const some = tasks.slice(at, at + together);
    const worst = some.reduce((a, b) => (ORDER.indexOf(b.state) < ORDER.indexOf(a.state) ? b : a));
    cells.push({ worst, busy: Math.max(...some.map((task) => task.busy)), some });
  }
  const step = cells.length > 80 ? 6 : cells.length > 24 ? 8 : Math.min(24, Math.floor(width / Math.max(1, cells.length)));
  const size = { x: step - (step > 8 ? 2 : 1), y: cells.length > 80 ? 5 : cells.length > 24 ? 7 : 12 };
  const across = Math.max(1, Math.floor(width / step));
  const paths = {};
  cells.forEach(({ worst, busy }, n) => {
    const shade = worst.state === "busy" ? ` b${Math.min(3, Math.floor(busy / 25))}` : "";
    const [x, y] = [(n % across) * step, Math.floor(n / across) * (size.y + 1)];
    paths[worst.state + shade] = `${paths[worst.state + shade] ?? ""}M${x} ${y}h${size.x}v${size.y}h${-size.x}z`;
  });
  const height = Math.ceil(cells.length / across) * (size.y + 1);
  const drawn = svg("svg", { class: "strip", width, height, role: "img", "aria-label": `${tasks.length} tasks` });
  drawn.append(...Object.entries(paths).map(([kind, d]) => svg("path", { class: `cell ${kind}`, d })));
  drawn.addEventListener("pointermove", (event) => {
    const box = drawn.getBoundingClientRect();
    const zoomed = box.width / width;
    const [x, y] = [(event.clientX - box.left) / zoomed, (event.clientY - box.top) / zoomed];
    show(event, cells[Math.floor(y / (size.y + 1)) * across + Math.floor(x / step)]);
  });
  drawn.addEventListener("pointerleave", () => show(null));
  drawn.addEventListener("click", () => {
    location.hash = `#stage-${name}`;
  });
  return drawn;
};

const show = (event, cell) => {
  tip.hidden = !cell;
  if (!cell) return;
  const { worst, some } = cell;
  const name = some.length > 1 ? `${some[0].name} to ${some.at(-1).name}: ${worst.name}` : worst.name;
  const words = [`${name}: ${STATES[worst.state]}, busy ${worst.busy} %`, `${count(worst.rate)}/s, ${count(worst.lag)} unread`];
  if (worst.held) words.push(worst.held);
  tip.replaceChildren(...words.map((line) => el("p", {}, line)));
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 14}px`;
};

const narrow = (now, tasks) => {
  const place = byId("stages");
  const width = Math.min(place.clientWidth - 26, 600);
  if (width <= 0) return;
  place.querySelector("ul").replaceChildren(
    ...Object.entries(view.stages).map(([name, stage]) =>
      el("li", { class: `measured ${stage.state}` }, el("a", { href: `#stage-${name}` }, name), ...measured(name, stage, tasks, now, width)),
    ),
  );
};

// -- tables

const table = (titles, rows) => [
  el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { class: /^[<]/.test(title) ? "" : "right" }, title.replace("<", ""))))),
  el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, n) => el("td", { class: /^[<]/.test(titles[n]) ? "" : "right" }, cell))))),
];

const badge = (state) => el("span", { class: `badge ${state}` }, STATES[state] ?? state);

const containers = () => {
  const rows = Object.entries(view.containers).map(([id, one]) => [
    id,
    badge(one.state),
    one.host ?? "–",
    String(one.pid ?? "–"),
    String(one.attempt ?? "–"),
    String(one.tasks),
    bytes(one.memory),
    one.cpu === undefined ? "–" : span(one.cpu * 1000),
    String(one.restarts ?? 0),
    one.state === "running" && !over ? profileButton(id) : "",
    one.silent === undefined ? "" : `silent for ${span(one.silent)}`,
  ]);
  const titles = ["<container", "<state", "<host", "pid", "attempt", "tasks", "peak memory", "processor", "restarts", "<", "<"];
  byId("containers").querySelector("table").replaceChildren(...table(titles, rows));
};

const outputs = () => {
  const found = Object.entries(view.outputs);
  byId("outputs").hidden = found.length === 0;
  const rows = found.map(([id, one]) => [
    el("a", { href: `#stream-${id}` }, id),
    one.delivery,
    one.waiting ? `${count(one.waiting)} versions, ${bytes(one.bytes)}` : "–",
    one.error ? `${one.failures} failures: ${one.error}` : "",
  ]);
  byId("outputs").querySelector("table").replaceChildren(...table(["<output", "<delivery", "not yet published", "<"], rows));
};

const errors = (now) => {
  const place = byId("errors");
  place.hidden = view.errors.length === 0;
  const list = place.querySelector("ul");
  const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.of));
  list.replaceChildren(
    ...view.errors.map((one) => {
      const times = one.times ? `, ${count(one.times)} times` : "";
      const key = one.who + one.text;
      const trace = one.trace && el("details", { "data-of": key, open: open.has(key) }, el("summary", {}, "traceback"), el("pre", {}, one.trace));
      return el(
        "li",
        { class: one.fatal ? "fatal" : "" },
        el("p", { class: "who" }, el("b", {}, one.who), ` ${clock(one.at)}, ${span(now - one.at)} ago${times}`),
        el("pre", {}, one.text),
        one.hint && el("p", { class: "remedy" }, one.hint),
        trace,
      );
    }),
  );
};

// -- what is clicked

const described = (now, tasks) => {
  const id = decodeURIComponent(location.hash.slice(1));
  const section = id ? byId(id) : null;
  const place = section?.querySelector(".now");
  if (!place) return;
  const [, kind, name] = id.match(/^(stage|operator|stream|table)-(.*)$/) ?? [];
  const made = { stage: aboutStage, operator: aboutStep, table: aboutStep, stream: aboutStream }[kind];
  if (made) place.replaceChildren(...made(name, now, tasks));
  const step = kind === "operator" && Object.keys(view.steps).find((one) => one.endsWith(`/${name}`));
  if (step) peekPlace(section, step.slice(0, -name.length - 1), name);
};

const facts = (pairs) => {
  const known = pairs.filter(([, value]) => value !== undefined && value !== "");
  return el("dl", {}, ...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
};

const COUNTS = {
  late: "came too late",
  failed: "skipped as a function failed",
  skipped: "skipped as they can't be read",
  dead_lettered: "sent to dead letters",
};

const aboutStage = (name, now, byStages) => {
  const stage = view.stages[name];
  if (!stage) return [el("p", {}, "runs in another deployment")];
  const tasks = [...(byStages[name] ?? [])];
  const order = (task) => ORDER.indexOf(task.state) * 1000 - task.busy;
  tasks.sort((a, b) => order(a) - order(b) || a.number - b.number);
  const lost = Object.entries(stage.counts ?? {}).map(([kind, number]) => `${count(number)} ${COUNTS[kind] ?? kind}`);
  const rows = tasks.slice(0, ROWS_MAX).map((task) => [
    task.name,
    badge(task.state),
    `${task.busy} %`,
    count(task.rate),
    count(task.lag),
    behind(task.watermark, now),
    task.committed === undefined ? "–" : `${span(now - task.committed)} ago`,
    millis(task.took),
    bytes(task.size),
    count(task.late ?? 0),
    String(task.container ?? "–"),
    task.held ?? "",
  ]);
  const titles = ["<task", "<state", "busy", "msg/s", "unread", "watermark", "committed", "took", "size", "late", "container", "<"];
  const more = tasks.length > ROWS_MAX ? el("p", {}, `and ${tasks.length - ROWS_MAX} more, which are better off`) : "";
  return [
    facts([["messages", lost.join(", ")]]),
    el("div", { class: "scrolls" }, el("table", {}, ...table(titles, rows))),
    more,
  ].filter(Boolean);
};

const aboutStep = (id) => {
  const found = Object.entries(view.steps).filter(([name]) => name.endsWith(`/${id}`));
  return found.map(([name, step]) =>
    facts([
      ["in stage", name.slice(0, -id.length - 1)],
      ["takes", step.rate === undefined ? "" : `${count(step.rate)} messages/s`],
      ["in its function", step.busy === undefined ? "" : `${step.busy} % of the time of its busiest task`],
      ["keeps", step.keys === undefined ? "" : `${count(step.keys)} keys`],
      ["now", step.held ? "holds its tasks up" : ""],
    ]),
  );
};

const aboutStream = (id) => {
  const pairs = [];
  for (const [name, stage] of Object.entries(view.stages)) {
    if (stage.writes?.[id] !== undefined) pairs.push([`stage ${name} writes`, `${count(stage.writes[id])} messages/s`]);
    if (stage.reads?.[id] !== undefined) pairs.push([`stage ${name} reads`, `${count(stage.reads[id])} messages/s`]);
  }
  const output = view.outputs[id];
  if (output?.error) pairs.push(["can't be written", output.error]);
  return [facts(pairs)];
};
