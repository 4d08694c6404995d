// Looks into running containers: rows that a step takes, and what the threads of a container do. Asked until it is over.

import { count, el } from "./words.js";

const AGAIN_MS = 500;
const SECONDS = 5;
const SMALLEST = 0.01;
const LINES_MAX = 150;
const COMMON = 3;
const LOOP = "headrace.task.container.";

const newId = () => crypto.getRandomValues(new Uint32Array(3)).join("-");

// Ask again and again; `show` gets each answer and returns whether that was the last one.
const ask = async (what, query, show) => {
  let over = false;
  while (!over) {
    let answer;
    try {
      answer = await (await fetch(`dashboard/${what}?${new URLSearchParams(query)}`, { cache: "no-store" })).json();
    } catch {
      answer = { error: "no connection to the app" };
    }
    over = show(answer) || Boolean(answer.error);
    if (!over) await new Promise((next) => setTimeout(next, AGAIN_MS));
  }
};

const trouble = ({ error, hint }) => [el("p", { class: "trouble" }, error), hint && el("p", { class: "remedy" }, hint)].filter(Boolean);

// -- rows

// The place below what is known of a step from which its messages can be seen. It is made once.
export const peekPlace = (section, stage, step) => {
  if (document.body.dataset.peek === undefined || section.querySelector(".look")) return;
  const found = el("div", { class: "scrolls" });
  const button = el("button", { type: "button" }, "Peek at messages");
  button.addEventListener("click", async () => {
    button.disabled = true;
    found.replaceChildren(el("p", {}, "waits for messages"));
    await ask("peek", { id: newId(), stage, step }, (answer) => {
      found.replaceChildren(...(answer.error ? trouble(answer) : rows(answer)));
      return answer.over;
    });
    button.disabled = false;
  });
  section.querySelector(".now").after(el("div", { class: "look" }, button, found));
};

const rows = ({ columns, rows, over }) => {
  if (!rows.length) return [el("p", {}, over ? "no message has come" : "waits for messages")];
  const head = el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", {}, name))));
  const body = rows.map((row) => el("tr", {}, ...row.map((value) => el("td", { title: value }, value))));
  return [el("table", {}, head, el("tbody", {}, ...body)), el("p", {}, "Seen while they are processed: some may be processed again.")];
};

// -- profiles

const buttons = {};

// The button that profiles a container; it stays the same when its row is drawn again.
export const profileButton = (container) => {
  buttons[container] ??= el("button", { type: "button", onclick: () => profile(container) }, `profile ${SECONDS} s`);
  return buttons[container];
};

const profile = async (container) => {
  const id = newId();
  const query = { id, container, seconds: SECONDS };
  const place = document.getElementById("profile");
  const shown = place.querySelector("div");
  place.hidden = false;
  place.querySelector("h2").textContent = `Profile of container ${container}`;
  for (const button of Object.values(buttons)) button.disabled = true;
  shown.replaceChildren(el("p", {}, `looks at its threads for ${SECONDS} seconds`));
  await ask("profile", query, (answer) => {
    if (answer.error) shown.replaceChildren(...trouble(answer));
    else if (!answer.leftMs) shown.replaceChildren(...profiled(answer, { ...query, as: "collapsed" }));
    return !answer.error && !answer.leftMs;
  });
  for (const button of Object.values(buttons)) button.disabled = false;
};

const profiled = ({ stacks, samples }, query) => {
  const threads = {};
  for (const [stack, times] of Object.entries(stacks)) {
    const [thread, ...frames] = stack.split(";");
    (threads[thread] ??= []).push({ frames, times });
  }
  const loops = (found) => found.some(({ frames }) => frames.some((frame) => frame.startsWith(LOOP)));
  const names = Object.keys(threads).sort((a, b) => loops(threads[b]) - loops(threads[a]) || a.localeCompare(b));
  const tree = el("ol", { class: "frames" });
  const choose = el("select", { "aria-label": "thread" }, ...names.map((name) => el("option", { value: name }, name)));
  const show = () => tree.replaceChildren(...lines(threads[choose.value] ?? []));
  choose.addEventListener("change", show);
  show();
  const link = el("a", { href: `dashboard/profile?${new URLSearchParams(query)}`, download: "" }, "collapsed stacks");
  return [el("p", {}, choose, ` ${count(samples)} looks; as `, link, " for flame graphs"), tree];
};

// A line for each frame with what it has called below it, and its share of the looks. Of the calls that nearly all looks
// have in common, the innermost are shown.
const lines = (stacks) => {
  const total = stacks.reduce((sum, { times }) => sum + times, 0);
  const root = { times: total, below: new Map() };
  for (const { frames, times } of stacks) {
    let at = root;
    for (const frame of frames) {
      if (!at.below.has(frame)) at.below.set(frame, { times: 0, below: new Map() });
      at = at.below.get(frame);
      at.times += times;
    }
  }
  const common = [root];
  const next = () => [...common.at(-1).below.values()].find((one) => one.times >= (1 - SMALLEST) * total);
  while (next()) common.push(next());
  const found = [];
  const walk = (node, depth) => {
    for (const [name, one] of [...node.below].sort((a, b) => b[1].times - a[1].times)) {
      const share = one.times / total;
      if (share < SMALLEST || found.length >= LINES_MAX) continue;
      const percent = `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
      const bar = el("span", { class: "bar", style: `width: ${(100 * share).toFixed(1)}%` });
      const words = el("span", { class: "frame", style: `--depth: ${Math.min(depth, 40)}` }, name);
      found.push(el("li", { title: name }, bar, el("b", {}, percent), words));
      walk(one, depth + 1);
    }
  };
  walk(common.at(-COMMON - 1) ?? root, 0);
  return found;
};
