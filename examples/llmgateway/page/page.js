"use strict";

const byId = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const plural = (n, thing) => `${number(n)} ${thing}${n === 1 ? "" : "s"}`;
const longPrompt = "Explain how a canal lock works. ".repeat(63).slice(0, 2000); // 500 tokens
const questions = {
  short: { prompt: "How does a canal lock work, briefly?  ..", max_tokens: 100 },
  long: { prompt: longPrompt, max_tokens: 1500 },
};

const headers = (key = byId("team").value) => ({ Authorization: `Bearer ${key}`, "Content-Type": "application/json" });
const body = (kind) => JSON.stringify({ model: byId("model").value, ...questions[kind] });

// busy disables the buttons that start something while something runs.
function busy(is) {
  document.querySelectorAll("button.act").forEach((button) => { button.disabled = is; });
}

// showFields shows what the answer says about the limits.
function showFields(response) {
  const rows = [["Status", `${response.status}`]];
  for (const name of ["RateLimit", "RateLimit-Policy", "Retry-After"]) {
    if (response.headers.has(name)) {
      rows.push([name, response.headers.get(name)]);
    }
  }
  byId("fields").replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("div");
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    row.append(dt, dd);
    return row;
  }));
}

function clear(text) {
  byId("summary").textContent = text;
  byId("answer").textContent = "";
  byId("fields").replaceChildren();
  byId("tiles").replaceChildren();
  byId("tiles").hidden = true;
}

// read shows the events of an answer.
async function read(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const lines = (text + value).split("\n");
    text = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: {"))) {
      byId("answer").append(JSON.parse(line.slice(6)).delta ?? "");
    }
  }
}

// account says what an answer has cost.
function account({ estimate, used, outcome }) {
  const back = estimate - used;
  const settled = back >= 0 ? `${number(back)} went back` : `${number(-back)} more were taken`;
  switch (outcome) {
    case "the model was not asked, or refused":
      return `The model refused, so all ${number(estimate)} tokens that were reserved went back, and so did the request.`;
    case "":
      return "It has not ended yet.";
  }
  const how = { complete: "The answer is complete" }[outcome] ?? `${outcome[0].toUpperCase()}${outcome.slice(1)}`;
  return used === 0 ? `${how}, before it said what it used: the ${number(estimate)} tokens that were reserved stay.`
    : `${how}: ${number(estimate)} tokens were reserved, ${number(used)} used, and ${settled}.`;
}

async function find(id) {
  for (let tries = 0; tries < 40; tries++) { // the gateway notices a moment later that a client has left
    const response = await fetch(`/demo/answers/${id}`);
    const entry = response.ok ? await response.json() : undefined;
    if (entry?.outcome) {
      return entry;
    }
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
  return undefined;
}

let hangup = new AbortController();

async function ask(kind) {
  const id = crypto.randomUUID();
  hangup = new AbortController();
  clear("The model answers…");
  busy(true);
  byId("hangup").disabled = false;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: { ...headers(), "X-Request-Id": id }, body: body(kind), signal: hangup.signal,
    });
    showFields(response);
    if (response.status === 429) {
      const { "violated-policies": limits = [] } = await response.json();
      byId("summary").textContent = `Refused: there are not enough ${limits.join(" and ")} left. Nothing was charged. ` +
        `It may be sent again in ${plural(Number(response.headers.get("Retry-After")), "second")}.`;
      return;
    }
    if (response.ok) {
      await read(response);
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      byId("summary").textContent = "The gateway cannot be reached.";
      return;
    }
  } finally {
    byId("hangup").disabled = true;
    busy(false);
  }
  const entry = await find(id).catch(() => undefined);
  byId("summary").textContent = entry ? account(entry) : "The gateway does not know what became of it.";
}

function tile(status) {
  const li = document.createElement("li");
  const n = byId("tiles").children.length + 1;
  li.className = status === 200 ? "passed" : status === 429 ? "denied" : "failed";
  li.textContent = n;
  li.setAttribute("aria-label", `answer ${n}: ${status === 200 ? "passed" : status === 429 ? "refused" : "failed"}`);
  byId("tiles").append(li);
}

// rush lets the server send 100 questions.
async function rush() {
  clear("Sending 100…");
  busy(true);
  byId("tiles").hidden = false;
  try {
    const response = await fetch("/demo/rush", { method: "POST", headers: headers(), body: body("long") });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      const lines = (text + value).split("\n");
      text = lines.pop();
      lines.forEach((line) => tile(Number(line)));
      if (byId("tiles").children.length === 100) { // the answers go on
        describe();
      }
    }
  } catch {
    byId("summary").textContent = "The gateway cannot be reached.";
  } finally {
    busy(false);
  }
}

function describe() {
  const count = (outcome) => document.querySelectorAll(`#tiles li.${outcome}`).length;
  const failed = count("failed") === 0 ? "" : ` ${count("failed")} failed.`;
  byId("summary").textContent = `${plural(byId("tiles").children.length, "question")} at once: ${count("passed")} passed, ` +
    `and ${count("denied")} were refused before the model was asked.${failed}`;
}

// bar makes, or finds, the bar of a bucket.
function bar(card, name) {
  let found = card.querySelector(`[data-limit="${name}"]`);
  if (!found) {
    found = document.createElement("div");
    found.className = "budget";
    found.dataset.limit = name;
    found.innerHTML = '<p><span class="name"></span> <span class="figures"></span></p>' +
      '<div class="bar" role="img"><span class="used"></span><span class="reserved"></span></div>';
    card.append(found);
  }
  return found;
}

function showBudget(card, { name, capacity, used, reserved, reset }) {
  const left = capacity - used - reserved;
  const says = `${number(used)} used, ${number(reserved)} reserved, ` +
    (left >= 0 ? `${number(left)} left` : `overdrawn by ${number(-left)}, full in ${reset} s`);
  const found = bar(card, name);
  found.classList.toggle("overdrawn", left < 0);
  found.querySelector(".name").textContent = `${number(capacity)} ${name} a minute`;
  found.querySelector(".figures").textContent = says;
  found.querySelector(".bar").setAttribute("aria-label", says);
  const percent = (n) => `${Math.min(100 * n / Math.max(capacity, used + reserved), 100)}%`;
  found.querySelector(".used").style.width = percent(used);
  found.querySelector(".reserved").style.width = percent(reserved);
}

// showRoom says how many long questions fit.
function showRoom(budgets) {
  const cost = { requests: 1, tokens: 2000 };
  const fit = Math.min(...budgets.map(({ name, capacity, used, reserved }) => Math.floor((capacity - used - reserved) / cost[name])));
  const says = `there is room for ${Math.max(fit, 0)} now`;
  const room = byId("rush").querySelector("span");
  if (room.textContent !== says) {
    room.textContent = says;
  }
}

async function refresh() {
  await Promise.all([...byId("team").options].map(async ({ value: key }) => {
    try {
      const response = await fetch("/demo/budgets", { headers: headers(key) });
      if (response.ok) {
        const budgets = await response.json();
        budgets.forEach((budget) => showBudget(byId(key), budget));
        if (key === byId("team").value) {
          showRoom(budgets);
        }
      }
    } catch {
      // The next one may get through.
    }
  }));
  setTimeout(refresh, 200);
}

byId("short").addEventListener("click", () => ask("short"));
byId("long").addEventListener("click", () => ask("long"));
byId("rush").addEventListener("click", rush);
byId("hangup").addEventListener("click", () => hangup.abort());
byId("reset").addEventListener("click", async () => {
  clear("");
  const response = await fetch("/demo/reset", { method: "POST", headers: headers() }).catch(() => undefined);
  byId("summary").textContent = response?.ok ? "The buckets are full." : "The buckets are as they were.";
});

refresh();
