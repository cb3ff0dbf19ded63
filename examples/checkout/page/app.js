"use strict";

// The customer. A real page would have a session; this one sends a user name, which the program
// trusts.
const user = "visitor-" + crypto.randomUUID().slice(0, 8);

const byId = (id) => document.getElementById(id);
const buttons = document.querySelectorAll("button");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The text of a tile, for users who cannot see its colour.
const names = { soldout: "sold out", "sold over": "sold, and was not there", away: "turned away", unknown: "outcome unknown", lost: "charged, answer lost" };
const legends = ["of-payments", "of-sale", "of-cars", "of-crash"];

// A tile is a request, and its colour is the outcome.
function newTile(number) {
  const tile = document.createElement("li");
  tile.textContent = number;
  byId("tiles").append(tile);
  const set = (outcome) => {
    tile.className = outcome;
    tile.setAttribute("aria-label", `request ${number}: ${names[outcome] ?? outcome}`);
  };
  set("sent");
  return set;
}

// insist sends a request until it has an answer. A 409 with Retry-After means that another request
// is in flight: it sends the same request again after that time. It returns undefined if there is
// no answer.
async function insist(send, show) {
  for (let tries = 0; tries < 20; tries++) {
    let response;
    try {
      response = await send();
    } catch {
      return undefined;
    }
    if (response.status !== 409 || !response.headers.has("Retry-After")) {
      return response;
    }
    show("waiting");
    await pause(1000 * Number(response.headers.get("Retry-After")));
  }
  return undefined;
}

// outcomeOf returns the outcome of a payment. A 409 is a problem, whose type says which one.
async function outcomeOf(response) {
  switch (response?.status) {
    case 409:
      return (await response.json()).type.endsWith("#response-not-retained") ? "lost" : "unknown";
    case 429:
      return "denied";
    case 502:
      return "died";
  }
  return !response?.ok ? "failed" : response.headers.get("Idempotency-Replayed") === "true" ? "replayed" : "charged";
}

// pay sends one payment. It waits while a request with the same key is in flight.
async function pay(key, show, sku = "tea") {
  const response = await insist(() => fetch("/api/checkout", {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": key, "X-User": user },
    body: JSON.stringify({ sku, quantity: 1 }),
  }), show);
  const outcome = await outcomeOf(response);
  show(outcome);
  return { outcome, order: response?.ok ? (await response.json()).order_id : undefined };
}

// change asks for a change of the stock of tea.
const change = (path, quantity, buyer) => fetch(`/api/stock/tea${path}`, {
  method: "POST",
  headers: { "Content-Type": "application/json", "X-User": buyer },
  body: JSON.stringify({ quantity }),
});

// take buys one item in a sale, which counts how many it has sold.
async function take(sale, query, buyer, show) {
  const response = await insist(() => change(`/take${query}`, 1, buyer), show);
  const outcome = response?.ok ? "sold" : response?.status === 409 ? "soldout" : "failed";
  if (outcome === "sold") {
    sale.sold++;
  }
  show(sale.sold > sale.items && outcome === "sold" ? "sold over" : outcome);
  return { outcome };
}

// look requests an order that does not exist, which is answered at once.
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

// run sends all requests at once, after their preparation has succeeded, and shows the outcome.
async function run(requests, describe, legend = "of-payments", prepare = undefined) {
  buttons.forEach((button) => { button.disabled = true; });
  byId("tiles").replaceChildren();
  byId("tiles").classList.toggle("many", requests.length > 100);
  legends.forEach((id) => { byId(id).hidden = id !== legend; });
  byId("summary").textContent = "Sending…";
  const ticking = setInterval(refresh, 150);
  try {
    if (prepare && !await prepare()) {
      byId("summary").textContent = "The stock could not be set. Try again.";
      return;
    }
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
    byId("office").hidden = !stats.admin;
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

// The payment in the middle of which the shop has died.
let interrupted;

byId("crash").addEventListener("click", () => {
  interrupted = crypto.randomUUID();
  run([(show) => pay(interrupted, show, "crash")], (count) => (count("died") === 1
    ? "The customer was charged and has no order, and the shop does not know. Send that payment again."
    : "The payment did not get that far.") + denied(count), "of-crash");
});

const ends = {
  charged: "It ran again. The provider recognised the key and did not charge twice, and now there is an order.",
  replayed: "The shop has found out that it was charged: here is the order.",
  unknown: "Nobody knows what became of it, so it is not run again. An operator has to find out.",
  lost: "It was charged, but the order cannot be shown again. It is not run again.",
};

byId("again").addEventListener("click", () => {
  if (!interrupted) {
    byId("summary").textContent = "First let the shop die.";
    return;
  }
  run([(show) => pay(interrupted, show, "crash")], (count) =>
    (ends[Object.keys(ends).find((outcome) => count(outcome) === 1)] ?? "There was no answer.") + denied(count), "of-crash");
});

// office calls the operator's part of the shop. It returns what is to be said if that has failed.
async function office(path, options) {
  try {
    const response = await fetch(`/admin/payments${path}`, {
      ...options, headers: { "Content-Type": "application/json", Authorization: `Bearer ${byId("token").value}` },
    });
    const answer = response.status === 204 ? undefined : await response.json();
    return response.ok ? { answer } : { failed: answer.detail };
  } catch {
    return { failed: "The shop cannot be reached." };
  }
}

// An element with a text, and others in it.
function element(name, text, ...children) {
  const e = document.createElement(name);
  e.append(...[text].filter(Boolean), ...children);
  return e;
}

// unknownPayment shows a payment of unknown outcome, with the ways to resolve it.
function unknownPayment(payment) {
  const way = (outcome, text) => {
    const button = element("button", "", element("strong", text));
    button.type = "button";
    button.dataset.outcome = outcome;
    button.addEventListener("click", () => resolve(payment, outcome));
    return button;
  };
  const ways = element("div", "",
    way("charged", "It was charged: place the order"),
    way("answer lost", "It was charged: no more than that"),
    way("never charged", "It was never charged: let it run"));
  ways.className = "ways";
  const age = payment.age_seconds < 1 ? "just now" : `${plural(payment.age_seconds, "second")} ago`;
  const evidence = element("p", payment.charge ? `The provider has the charge ${payment.charge}.` : "The provider has no charge for it.");
  evidence.className = "hint";
  const item = element("li", "", element("p", `Unknown: attempt ${payment.attempt} at ${payment.holder}, ${age}`), evidence, ways);
  item.className = "unknown";
  return item;
}

// showUnknown lists the payments of unknown outcome.
async function showUnknown(says = "") {
  const { answer, failed } = await office("", {});
  byId("unresolved").replaceChildren(...(answer ?? []).map(unknownPayment));
  const found = answer?.length === 0 ? "There is none." : `There ${answer?.length === 1 ? "is" : "are"} ${answer?.length}.`;
  byId("office-says").textContent = [says, failed ?? found].filter(Boolean).join(" ");
}

// resolve says what became of a payment, as it was when it was shown.
async function resolve({ id, version }, outcome) {
  const { failed } = await office(`/${id}`, { method: "POST", body: JSON.stringify({ version, outcome, why: byId("why").value }) });
  await showUnknown(failed ?? "It is resolved.");
}

byId("look").addEventListener("submit", (event) => {
  event.preventDefault();
  showUnknown();
});

// flashSale sets the stock, and sends one purchase for each of many buyers.
function flashSale(query) {
  const buyers = 200;
  const sale = { items: 50, sold: 0 };
  const fill = () => change("", sale.items, user).then((response) => response.ok, () => false);
  const requests = Array.from({ length: buyers }, (_, i) => (show) => take(sale, query, `buyer-${i + 1}`, show));
  return run(requests, (count) => {
    const sold = count("sold");
    const failed = count("failed") === 0 ? "" : ` ${count("failed")} failed.`;
    return `${buyers} buyers, ${sale.items} items: ` +
      (sold > sale.items ? `${sold} sold. ${sold - sale.items} too many.` : `${sold} sold, and not one too many.`) + failed;
  }, "of-sale", fill);
}

byId("sale").addEventListener("click", () => flashSale(""));
byId("oversale").addEventListener("click", () => flashSale("?lock=off"));

// row shows a number of places in a row as taken.
function row(id, places, taken) {
  const list = byId(id);
  while (list.children.length < Math.max(places, taken)) {
    const place = document.createElement("li");
    place.innerHTML = '<svg><use href="#car"/></svg>';
    list.append(place);
  }
  [...list.children].forEach((place, i) => place.classList.toggle("taken", i < taken));
}

// look shows the state of the car park on the server, and returns the number of cars in it.
async function lookAtPark() {
  let park;
  try {
    const response = await fetch("/api/report/places");
    if (!response.ok) {
      return 0;
    }
    park = await response.json();
  } catch {
    return 0; // the next one may get through
  }
  row("places", park.places, park.taken);
  row("lane", park.may_wait, park.waiting);
  byId("served").textContent = park.served;
  byId("away").textContent = park.turned_away;
  byId("occupancy").textContent = `${park.taken} of ${plural(park.places, "space")} taken, ${plural(park.waiting, "car")} waiting.`;
  return park.taken + park.waiting;
}

// watch shows the car park until the cars that were sent have gone.
async function watch(sent) {
  let over = false;
  sent.finally(() => { over = true; });
  for (let looks = 0, cars = 1; !over || cars > 0 && looks < 20; looks += over ? 1 : 0) {
    cars = await lookAtPark();
    await pause(40);
  }
}

// rush lets the server send a number of cars, and resolves each one that leaves. The page itself
// could not: a browser opens at most six connections to a server, and queues other requests until
// one is free. With two cars parked and four waiting, a seventh would never arrive, and the page
// could not read the state.
async function rush(leave) {
  try {
    const response = await fetch("/api/report/rush", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-User": user },
      body: JSON.stringify({ quantity: leave.length }),
    });
    if (response.status === 429) {
      leave.forEach((resolve) => resolve("denied"));
      return;
    }
    if (!response.ok) {
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const { number, status } of lines.map((line) => JSON.parse(line))) {
        leave[number - 1](status === 200 ? "served" : status === 429 ? "away" : "failed");
      }
    }
  } catch {
    // Cars without an outcome have failed.
  } finally {
    leave.forEach((resolve) => resolve("failed"));
  }
}

function sendCars(n) {
  const leave = [];
  const cars = Array.from({ length: n }, () => {
    const left = new Promise((resolve) => { leave.push(resolve); });
    return async (show) => {
      const outcome = await left;
      show(outcome);
      return { outcome };
    };
  });
  watch(run(cars, (count) => {
    const served = `${count("served")} served` + (count("served") > 2 ? ", two at a time" : "");
    const away = count("away") === 0 ? "" : `, and ${count("away")} turned away`;
    const failed = count("failed") === 0 ? "" : ` ${count("failed")} failed.`;
    return `${plural(n, "car")}: ${served}${away}.` + failed + denied(count);
  }, "of-cars"));
  return rush(leave);
}

byId("car-1").addEventListener("click", () => sendCars(1));
byId("car-12").addEventListener("click", () => sendCars(12));

refresh();
lookAtPark();
