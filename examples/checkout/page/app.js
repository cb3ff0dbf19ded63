"use strict";

// The customer. A real page would have a session; this one says who it is, as the program believes.
const user = "visitor-" + crypto.randomUUID().slice(0, 8);
const body = JSON.stringify({ sku: "tea", quantity: 1 });

const byId = (id) => document.getElementById(id);
const buttons = document.querySelectorAll("button");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A tile is a request, and its colour what became of it.
function newTile(number) {
  const tile = document.createElement("li");
  tile.textContent = number;
  byId("tiles").append(tile);
  const set = (outcome) => {
    tile.className = outcome;
    tile.setAttribute("aria-label", `request ${number}: ${outcome}`);
  };
  set("sent");
  return set;
}

// pay sends one payment until it has an answer. A 409 means that a request with the same key is
// being processed: ask again, with the same key, when the answer says.
async function pay(key, show) {
  for (let tries = 0; tries < 20; tries++) {
    let response;
    try {
      response = await fetch("/api/checkout", {
        method: "POST",
        headers: { "Content-Type": "application/json", "Idempotency-Key": key, "X-User": user },
        body,
      });
    } catch {
      show("failed");
      return { outcome: "failed" };
    }
    if (response.status === 409 && response.headers.has("Retry-After")) {
      show("waiting");
      await pause(1000 * Number(response.headers.get("Retry-After")));
      continue;
    }
    const answer = await response.json();
    const outcome = response.status === 429 ? "denied"
      : !response.ok ? "failed"
      : response.headers.get("Idempotency-Replayed") === "true" ? "replayed" : "charged";
    show(outcome);
    return { outcome, order: answer.order_id };
  }
  show("failed");
  return { outcome: "failed" };
}

// look asks for an order that is not there: a question that is answered at once.
async function look(show) {
  let outcome = "failed";
  try {
    const response = await fetch("/api/orders/none", { headers: { "X-User": user } });
    outcome = response.status === 429 ? "denied" : response.status === 404 ? "passed" : "failed";
  } catch {
    // It has failed.
  }
  show(outcome);
  return { outcome };
}

// run sends all requests at once, and says what came of them.
async function run(requests, describe) {
  buttons.forEach((button) => { button.disabled = true; });
  byId("tiles").replaceChildren();
  byId("summary").textContent = "Sending…";
  const ticking = setInterval(refresh, 150);
  try {
    const results = await Promise.all(requests.map((send, i) => send(newTile(i + 1))));
    const count = (outcome) => results.filter((r) => r.outcome === outcome).length;
    const orders = new Set(results.map((r) => r.order).filter(Boolean)).size;
    byId("summary").textContent = describe(count, orders);
  } finally {
    clearInterval(ticking);
    await refresh();
    buttons.forEach((button) => { button.disabled = false; });
  }
}

async function refresh() {
  try {
    const stats = await (await fetch("/api/stats")).json();
    for (const name of ["requests", "charges", "replayed", "denied"]) {
      byId(name).textContent = stats[name];
    }
  } catch {
    // The next one may get through.
  }
}

const plural = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const payment = (key) => (show) => pay(key, show);
const denied = (count) => count("denied") === 0 ? "" :
  ` ${plural(count("denied"), "request")} came too fast and cost nothing: wait a moment before the next trial.`;

byId("pay").addEventListener("click", () => run([payment(crypto.randomUUID())], (count) =>
  (count("charged") === 1 ? "One request, one charge." : "The payment did not go through.") + denied(count)));

byId("same").addEventListener("click", () => run(Array(20).fill(payment(crypto.randomUUID())), (count, orders) =>
  `20 requests with one key: ${plural(count("charged"), "charge")}, ${plural(orders, "order")}. ` +
  `The other ${count("replayed")} were given the same answer again.` + denied(count)));

byId("different").addEventListener("click", () => run(Array.from({ length: 20 }, () => payment(crypto.randomUUID())), (count, orders) =>
  `20 requests with a key each are 20 payments: ${plural(count("charged"), "charge")}, ${plural(orders, "order")}.` + denied(count)));

byId("flood").addEventListener("click", () => run(Array(100).fill(look), (count) =>
  `100 requests at once: ${count("passed")} were let through, and ${count("denied")} refused with 429 before they cost anything.`));

refresh();
