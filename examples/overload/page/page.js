"use strict";

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const e = document.createElement(name);
  e.className = className ?? "";
  e.textContent = text ?? "";
  return e;
}

const ms = (n, patience) => n >= patience ? `≥ ${patience}` : `${n}`;
const capacity = (n) => n === 0 ? "none" : `${n}`;

// showChart has a bar for each second of each phase.
function showChart({ phases, possible }) {
  const highest = 1.25 * possible;
  const chart = byId("chart");
  const limit = element("div", "limit");
  limit.style.bottom = `${100 * possible / highest}%`;
  chart.replaceChildren(limit, ...phases.map((phase) => {
    const group = element("div", "phase");
    group.append(...phase.rows.map((row) => {
      const bar = element("div", "bar");
      for (const [name, n] of [["orders", row.high], ["searches", row.low]]) {
        const part = element("span", name);
        part.style.height = `${Math.min(100, 100 * n / highest)}%`;
        bar.append(part);
      }
      return bar;
    }));
    return group;
  }));
  const last = phases.at(-1);
  const row = last?.rows.at(-1);
  if (row) {
    chart.setAttribute("aria-label", `${last.name}, second ${last.rows.length}: ${row.high} orders and ${row.low} searches in time, of ${possible} that can be served.`);
  }
}

// showNow has the last second in figures.
function showNow({ phases, patience }) {
  const row = phases.at(-1)?.rows.at(-1);
  if (!row) {
    return;
  }
  byId("high").textContent = row.high;
  byId("low").textContent = row.low;
  byId("refused").textContent = row.refused;
  byId("late").textContent = row.late + row.failed;
  byId("p99").textContent = ms(row.p99, patience);
  byId("capacity").textContent = capacity(row.capacity);
}

function showPhases({ phases, patience }) {
  byId("phases").replaceChildren(...phases.filter(({ settled }) => settled).map(({ name, settled }) => {
    const tr = element("tr");
    const th = element("th", "", name);
    th.scope = "row";
    tr.append(th, ...[
      settled.high, settled.low, settled.refused, settled.late + settled.failed, ms(settled.p99, patience), capacity(settled.capacity),
    ].map((text) => element("td", "", text)));
    return tr;
  }));
}

function showFile({ rules, path }) {
  byId("file").hidden = !rules;
  if (byId("text").textContent !== rules) { // it may be selected
    byId("text").textContent = rules;
  }
  byId("path").textContent = path;
}

// say changes the text that is read aloud only when there is something new.
function say({ running, phases, possible, load }) {
  const last = phases.at(-1);
  if (!last) {
    return;
  }
  const ended = phases.findLast(({ settled }) => settled);
  const found = ended ? ` With ${ended.name}, ${ended.settled.high + ended.settled.low} of ${load} requests a second are answered in time, and ${possible} can be.` : "";
  const text = running && !last.settled ? `Phase ${phases.length}, ${last.name}: ${last.about}${found}` : `The load has ended.${found}`;
  if (byId("summary").textContent !== text) {
    byId("summary").textContent = text;
  }
}

let shown = "";

async function refresh() {
  try {
    const response = await fetch("/state");
    const text = await response.text();
    if (response.ok && text !== shown) {
      shown = text;
      const state = JSON.parse(text);
      for (const show of [showChart, showNow, showPhases, showFile, say]) {
        show(state);
      }
      byId("scene").textContent = `${state.possible} requests a second can be served, and ${state.load} come. Half of them are orders, and half are searches, ` +
        `which are of low priority. A client that has waited for ${state.patience} ms leaves, and its work is done all the same.`;
    }
  } catch {
    // The next one may get through.
  }
  setTimeout(refresh, 300);
}

document.querySelectorAll("button.act").forEach((button) => {
  button.addEventListener("click", async () => {
    const response = await fetch(`/play/${button.id}`, { method: "POST" }).catch(() => undefined);
    if (!response?.ok) {
      byId("summary").textContent = "The server cannot be reached.";
    }
  });
});

refresh();
