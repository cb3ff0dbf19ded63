"use strict";

const byId = (id) => document.getElementById(id);
const plural = (n, thing, things = `${thing}s`) => `${n} ${n === 1 ? thing : things}`;

// post sends the form, from the address that was chosen: the program believes it, since it believes proxies
// on its own machine.
const post = (path, password) => fetch(path, {
  method: "POST",
  headers: { "X-Forwarded-For": byId("address").value },
  body: new URLSearchParams({ account: byId("account").value, password }),
});

function busy(is) {
  document.querySelectorAll("button.act").forEach((button) => { button.disabled = is; });
}

function clear(text) {
  byId("summary").textContent = text;
  byId("fields").replaceChildren();
  byId("tiles").replaceChildren();
  byId("tiles").hidden = true;
}

// showFields shows what an answer says.
function showFields(rows) {
  byId("fields").replaceChildren(...rows.filter(([, value]) => value).map(([name, value]) => {
    const row = document.createElement("div");
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    row.append(dt, dd);
    return row;
  }));
}

const span = (seconds) => seconds < 120 ? plural(seconds, "second") : plural(Math.round(seconds / 60), "minute");

async function logIn() {
  clear("The password is checked…");
  busy(true);
  try {
    const response = await post("/login", byId("password").value);
    const problem = response.status === 429 ? await response.json() : {};
    const after = response.headers.get("Retry-After");
    showFields([["Status", `${response.status}`], ["Retry-After", after], ["Type", problem.type], ["Detail", problem.detail]]);
    byId("summary").textContent = {
      204: "You are in. That counts as nothing, and this browser is known now.",
      401: "The account or the password is wrong. That counts.",
      429: `Refused, and the password was not looked at: right or wrong, try again in ${span(Number(after))}.`,
    }[response.status] ?? "That did not work, and counts as nothing.";
  } catch {
    byId("summary").textContent = "The server cannot be reached.";
  } finally {
    busy(false);
  }
}

const outcomes = { 401: "tried", 429: "denied" };

// guess lets the server try 100 wrong passwords.
async function guess(from) {
  clear("Trying 100…");
  busy(true);
  byId("tiles").hidden = false;
  const refusals = [];
  try {
    const response = await post(`/demo/guess?from=${from}`, "any");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const answer of lines.map((line) => JSON.parse(line))) {
        const tile = document.createElement("li");
        tile.className = outcomes[answer.status] ?? "failed";
        tile.textContent = byId("tiles").children.length + 1;
        tile.setAttribute("aria-label", `answer ${tile.textContent}: ${{ tried: "tried", denied: "refused" }[tile.className] ?? "failed"}`);
        byId("tiles").append(tile);
        if (answer.status === 429) {
          refusals.push(answer);
        }
      }
    }
    const count = (outcome) => document.querySelectorAll(`#tiles li.${outcome}`).length;
    const failed = count("failed") === 0 ? "" : ` ${count("failed")} failed.`;
    byId("summary").textContent = `100 wrong passwords at once: ${plural(count("tried"), "was", "were")} tried, and ${count("denied")} refused ` +
      `before anybody looked at the password.${failed}`;
    const last = refusals.sort((a, b) => a.retry_after - b.retry_after).at(-1);
    if (last) {
      showFields([["Status", "429"], ["Retry-After", last.retry_after], ["Type", last.problem?.type], ["Detail", last.problem?.detail]]);
    }
  } catch {
    byId("summary").textContent = "The server cannot be reached.";
  } finally {
    busy(false);
  }
}

const labels = {
  pair: "of this account from this address",
  account: "of this account from everywhere",
  device: "of this account in this browser, which its owner has used",
  address: "of this address, with all accounts",
};

function showBudget({ name, capacity, left, held }) {
  let found = document.querySelector(`[data-limit="${name}"]`);
  if (!found) {
    found = document.createElement("div");
    found.className = "budget";
    found.dataset.limit = name;
    found.innerHTML = '<p><span class="name"></span> <span class="figures"></span></p><div class="bar" role="img"><span class="left"></span></div>';
    byId("bars").append(found);
  }
  const says = `${left} of ${capacity} left` + (held ? `, held for ${span(held)}` : "");
  found.classList.toggle("overdrawn", held > 0 || left === 0);
  found.querySelector(".name").textContent = labels[name];
  found.querySelector(".figures").textContent = says;
  found.querySelector(".bar").setAttribute("aria-label", says);
  found.querySelector(".left").style.width = `${100 * left / capacity}%`;
}

async function refresh() {
  try {
    const response = await post("/demo/budgets", "any");
    if (response.ok) {
      const budgets = await response.json();
      const shown = [...byId("bars").children].map((bar) => bar.dataset.limit);
      if (budgets.some(({ name }, i) => name !== shown[i])) { // this browser is known, or not any more
        byId("bars").replaceChildren();
      }
      budgets.forEach(showBudget);
    }
  } catch {
    // The next one may get through.
  }
  setTimeout(refresh, 300);
}

// say sends what support, or the user, asks for.
async function say(path, done) {
  clear("");
  const response = await post(path, "any").catch(() => undefined);
  byId("summary").textContent = response?.ok ? done : "That did not work.";
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  logIn();
});
byId("one").addEventListener("click", () => guess("one"));
byId("many").addEventListener("click", () => guess("many"));
byId("forget").addEventListener("click", () => say("/demo/forget", "This browser is not known any more."));
byId("reset").addEventListener("click", () => say("/demo/reset", "All failures of this account and of this address are forgotten."));

refresh();
