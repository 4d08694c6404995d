// Numbers as words, and elements of a page.

export const el = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return made;
};

export const svg = (name, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

export const count = (number) => {
  if (number === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(number) >= size) {
      const scale = unit === "k" ? 1e3 : size;
      return `${short(number / scale)}${unit}`;
    }
  }
  return number >= 100 ? Math.round(number).toLocaleString("en") : short(number);
};

const short = (number) => {
  if (number === 0) return "0";
  return number >= 100 ? number.toFixed(0) : String(Number(number.toPrecision(number >= 10 ? 3 : 2)));
};

export const bytes = (number) => {
  if (number === undefined) return "–";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (number >= size) return `${short(number / size)} ${unit}`;
  }
  return `${Math.round(number)} B`;
};

export const millis = (ms) => {
  if (ms === undefined) return "–";
  return ms < 1000 ? `${short(ms)} ms` : span(ms);
};

export const span = (ms) => {
  const seconds = Math.abs(ms) / 1000;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${seconds >= 10 ? Math.round(seconds) : seconds.toFixed(1)} s`;
};

export const behind = (time, now) => {
  if (time === undefined) return "–";
  const ms = now - time;
  if (Math.abs(ms) > 1000 * 86400 * 36500) return ms < 0 ? "end" : "–";
  return ms >= 0 ? `${span(ms)} behind` : `${span(ms)} ahead`;
};

export const clock = (time, seconds = true) =>
  new Date(time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });

export const STATES = {
  lost: "lost",
  held: "held back",
  starting: "starting",
  busy: "busy",
  idle: "idle",
  done: "finished",
};

// A merge patch as in RFC 7396: null takes a member away.
export const patched = (before, patch) => {
  const after = { ...before };
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete after[name];
    else if (typeof value === "object" && !Array.isArray(value)) after[name] = patched(after[name] ?? {}, value);
    else after[name] = value;
  }
  return after;
};

// Follow events: the whole, then changes. What was missed while the connection was away comes after it is back.
export const follow = ({ whole, change, said }) => {
  let last = "";
  let failures = 0;
  let ended = false;
  let heard = Date.now();
  let source;
  const open = () => {
    source = new EventSource(`dashboard/events${last ? `?after=${encodeURIComponent(last)}` : ""}`);
    const on = (name, act) =>
      source.addEventListener(name, (event) => {
        failures = 0;
        heard = Date.now();
        if (event.lastEventId) last = event.lastEventId;
        said("");
        act(JSON.parse(event.data));
      });
    on("whole", whole);
    on("change", change);
    on("beat", () => {});
    on("end", () => {
      ended = true;
      source.close();
      said("this was the last that it said");
    });
    source.addEventListener("error", () => {
      if (!ended) again();
    });
  };
  const again = async () => {
    source.close();
    failures += 1;
    let words = "no connection: trying again";
    if (failures > 1) {
      try {
        const answer = await fetch("dashboard", { cache: "no-store" });
        if (answer.status === 401) words = "it was started again: run headrace dashboard, and open the new address";
      } catch {
        words = "no connection: it has ended, or its driver can't be reached; trying again";
      }
    }
    said(words);
    setTimeout(open, Math.min(1000 * failures, 10000));
  };
  setInterval(() => {
    if (!ended && Date.now() - heard > 20000) {
      heard = Date.now();
      again();
    }
  }, 5000);
  open();
};
