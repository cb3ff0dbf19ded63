"use strict";

// The customer. A real page would have a session; this one sends a user name, which the program
// trusts.
const user = "visitor-" + crypto.randomUUID().slice(0, 8);

const byId = (id) => document.getElementById(id);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const plural = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;

// An element with a text, and others in it.
function element(name, text, ...children) {
  const e = document.createElement(name);
  e.append(...[text].filter(Boolean), ...children);
  return e;
}

// What an outcome is called. Those that are not here are types of problems, which name themselves.
const names = {
  soldout: "sold out", over: "sold, and was not there", counted: "took stock", passed: "let through",
  waiting: "waits for its twin", "in-flight": "refused: twin in flight", "quota-exceeded": "over the limit",
  "too-many-at-once": "turned away", "too-late": "too late: cancelled",
};
const nameOf = (outcome) => names[outcome] ?? outcome.replaceAll("-", " ");

// A tile is a request, and its colour is the outcome.
function newTile(number) {
  const tile = element("li", `${number}`);
  byId("tiles").append(tile);
  const show = (outcome) => {
    tile.className = outcome;
    tile.setAttribute("aria-label", `request ${number}: ${nameOf(outcome)}`);
  };
  show("sent");
  return show;
}

// What a client can see of an answer beside its status.
const fields = ["Retry-After", "RateLimit", "RateLimit-Policy", "Idempotency-Replayed", "Link"];
const members = ["violated-policies", "original-status"];

// resultOf reads an answer: its outcome, which is the type of its problem if it has one, and what a
// client sees. Without an answer the response is undefined.
async function resultOf(response, byStatus) {
  if (!response) {
    return { outcome: "failed", answer: "no answer" };
  }
  const { headers, status } = response;
  const text = await response.text().catch(() => "");
  const body = parsed(text);
  const problem = body.type?.split("#")[1];
  const replayed = headers.get("Idempotency-Replayed") === "true";
  const seen = fields.filter((name) => headers.has(name) && (status === 429 || !name.startsWith("RateLimit")));
  return {
    outcome: replayed ? "replayed" : problem ?? byStatus[status] ?? "failed",
    answer: [
      problem ? `${status} ${problem}` : `${status}`,
      ...members.filter((name) => name in body).map((name) => `${name}: ${body[name]}`),
      ...seen.map((name) => `${name}: ${headers.get(name)}`),
    ].join(", "),
    order: body.order_id,
    request: response.request && curl(response.request),
    response: [`${status} ${response.statusText}`.trim(), ...[...headers].map((field) => field.join(": ")), "", text].join("\n").trim(),
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

// curl returns the command that sends a request as this page has sent it.
function curl({ method, path, headers, body }) {
  const quoted = (value) => `'${value.replaceAll("'", "'\\''")}'`;
  return [`curl -i -X ${method} ${quoted(location.origin + path)}`,
    ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    ...body === undefined ? [] : [`-d ${quoted(body)}`]].join(" \\\n  ");
}

// ask sends a request. The response has it, too, to be shown beside the answer.
async function ask(method, path, headers, body) {
  return Object.assign(await fetch(path, { method, headers, body }), { request: { method, path, headers, body } });
}

const post = (path, body, headers = {}) =>
  ask("POST", path, { "Content-Type": "application/json", "X-User": user, ...headers }, JSON.stringify(body));
const get = (path) => ask("GET", path, { "X-User": user });
const once = (send) => send().catch(() => undefined);

// insist sends a request until it has an answer. A 409 with Retry-After means that another request
// is in flight: it sends the same request again after that time, and tells the shop's counters so.
async function insist(send, show) {
  for (let tries = 0; tries < 20; tries++) {
    const response = await once(() => send(tries > 0 ? { "X-Retry": tries } : {}));
    if (response?.status !== 409 || !response.headers.has("Retry-After")) {
      return response;
    }
    show("waiting");
    await pause(1000 * Number(response.headers.get("Retry-After")));
  }
  return undefined;
}

// payment returns what sends a payment. It insists, unless it is told not to.
function payment(key, { path = "", sku = "tea", quantity = 1, insists = true } = {}) {
  const send = (headers) => post(`/api/checkout${path}`, { sku, quantity }, { ...key && { "Idempotency-Key": key }, ...headers });
  return async (show) => resultOf(await (insists ? insist(send, show) : once(send)), { 201: "charged", 502: "died" });
}

// inTurn sends each request after the answer to the one before it.
function inTurn(...sends) {
  let before = Promise.resolve();
  return sends.map((send) => (show) => {
    before = before.then(() => send(show));
    return before;
  });
}

let busy = false;

function setBusy(is) {
  busy = is;
  // A button that is disabled would lose the focus.
  document.querySelectorAll("button.act").forEach((button) => button.setAttribute("aria-disabled", is));
}

// run sends all requests at once, after their preparation has succeeded, and shows the outcome.
async function run(requests, describe, { prepare, shelf = false } = {}) {
  setBusy(true);
  byId("summary").textContent = "Sending…";
  byId("answers").replaceChildren();
  byId("talk").hidden = true;
  byId("tiles").replaceChildren();
  byId("tiles").classList.toggle("many", requests.length > 40);
  byId("shelf").hidden = !shelf;
  let ticking;
  try {
    if (prepare && !await prepare()) {
      byId("summary").textContent = "The stock could not be set. Try again.";
      return;
    }
    await refresh();
    now = { requests: requests.length, charges: 0, replayed: 0, denied: 0 };
    before = all.charges;
    ticking = setInterval(refresh, 150);
    const results = await Promise.all(requests.map(async (send, i) => {
      const show = newTile(i + 1);
      const result = await send(show);
      show(result.outcome);
      now.replayed += result.outcome === "replayed";
      now.denied += result.outcome === "quota-exceeded";
      return result;
    }));
    const count = (outcome) => results.filter((r) => r.outcome === outcome).length;
    const orders = new Set(results.map((r) => r.order).filter(Boolean)).size;
    byId("answers").replaceChildren(...[...Map.groupBy(results, (r) => r.outcome)].map(([outcome, group]) => {
      const { answer, request, response } = group.at(-1);
      const item = element("li", "", element("strong", `${group.length} ${nameOf(outcome)}`), element("code", answer));
      item.className = outcome;
      if (request) {
        item.append(element("details", "", element("summary", group.length > 1 ? "The last one in full" : "In full"),
          element("pre", `${request}\n\n${response}`)));
      }
      return item;
    }));
    byId("talk").hidden = false;
    byId("summary").textContent = describe(count, orders);
  } finally {
    clearInterval(ticking);
    await refresh();
    setBusy(false);
  }
}

// all is what the instance has counted, and now what the last button has sent, and what came of it.
// Only the shop knows of its charges: they are those since the button was pressed, with those of
// other visitors.
let all = { charges: 0 };
let now = { requests: 0, charges: 0, replayed: 0, denied: 0 };
let before = 0; // all charges, when the button was pressed

async function refresh() {
  try {
    all = await (await fetch("/api/stats")).json();
    now.charges = now.requests && all.charges - before;
    byId("console").hidden = !all.console;
    for (const name of Object.keys(now)) {
      byId(name).textContent = all[name];
      byId(`${name}-now`).textContent = now[name];
    }
  } catch {
    // The next one may get through.
  }
}

const on = (id, trial) => byId(id).addEventListener("click", () => { if (!busy) { trial(); } });

// sentence says what became of requests, with those that no button wants.
const sentence = (what, count, ...parts) => `${what}: ` + [
  ...parts,
  count("quota-exceeded") && `${count("quota-exceeded")} denied`,
  count("failed") && `${count("failed")} failed`,
].filter(Boolean).join(", ") + ".";

// expect describes requests by a text, if they had these outcomes.
const expect = (outcomes, text) => (count) =>
  Object.entries(outcomes).every(([outcome, n]) => count(outcome) === n) ? text : sentence("It went otherwise", count, "see below");

const payments = (what) => (count, orders) => sentence(what, count,
  plural(count("charged"), "charge"), plural(orders, "order"), count("replayed") && plural(count("replayed"), "replay"));

const newKey = () => crypto.randomUUID();
const twice = (send) => [send, send];

on("pay", () => run([payment(newKey())], payments("1 request")));
on("same", () => run(Array(20).fill(payment(newKey())), payments("20 requests, one key")));
on("different", () => run(Array.from({ length: 20 }, () => payment(newKey())), payments("20 requests, 20 keys")));
on("twin", () => run(twice(payment(newKey(), { insists: false })),
  expect({ charged: 1, "in-flight": 1 }, "Two at once: 1 charge, and 1 told to come back.")));
on("patient", () => run(twice(payment(newKey(), { path: "/wait" })),
  expect({ charged: 1, replayed: 1 }, "Two at once: 1 charge, and 1 waited for that answer.")));
on("reused", () => {
  const key = newKey();
  run(inTurn(payment(key), payment(key, { quantity: 2 })),
    expect({ charged: 1, "key-reused": 1 }, "One key, two orders: only the first was charged."));
});
on("keyless", () => run([payment(undefined), payment('"a')],
  expect({ "key-missing": 1, "key-malformed": 1 }, "No usable key: both refused, nothing charged.")));

// The payment in the middle of which the shop has died.
let interrupted;

on("crash", () => {
  interrupted = newKey();
  run([payment(interrupted, { sku: "crash" })],
    expect({ died: 1 }, "Charged, and no order. Now send that payment again."));
});

const ends = {
  charged: "It ran again: no second charge, and now an order.",
  replayed: "The shop found the charge: here is the order.",
  "outcome-unknown": "Charged or not? Nobody knows: it does not run again.",
  "response-not-retained": "It was charged, but the order is not shown again.",
};

on("again", () => {
  if (!interrupted) {
    byId("summary").textContent = "First let the shop die.";
    return;
  }
  run([payment(interrupted, { sku: "crash" })],
    (count) => ends[Object.keys(ends).find((outcome) => count(outcome) === 1)] ?? sentence("There was no order", count, "see below"));
});

on("unknown", () => run(inTurn(...twice(payment(newKey(), { path: "/once", sku: "crash" }))),
  expect({ died: 1, "outcome-unknown": 1 }, ends["outcome-unknown"])));
on("giftcard", () => run(inTurn(...twice(payment(newKey(), { sku: "giftcard" }))),
  expect({ charged: 1, "response-not-retained": 1 }, "Charged once, and its code was shown once.")));
on("outage", () => run([payment(newKey(), { path: "/down" })],
  expect({ "temporary-reduced-capacity": 1 }, "Refused at once, and nothing charged.")));

// look requests an order that does not exist, which is answered at once.
const look = async () => resultOf(await once(() => get("/api/orders/none")), { 404: "passed" });

on("flood", () => run(Array(100).fill(look), (count) =>
  `100 at once: ${count("passed")} let through, ${count("quota-exceeded")} refused at no cost.`));

const takeStock = async () => resultOf(await once(() => post("/api/stock/tea/count")), { 200: "counted" });

on("count", () => run(twice(takeStock), expect({ counted: 1, locked: 1 }, "One takes stock, and the other is told to come back.")));

// showSold shows how much was sold in a sale: of the stock, and beyond it.
function showSold({ buyers, items, sold }) {
  const tooMany = Math.max(sold - items, 0);
  const show = (id, n) => {
    byId(id).style.width = `${100 * n / buyers}%`;
    byId(id).textContent = n || "";
  };
  show("in-stock", sold - tooMany);
  show("too-many", tooMany);
  byId("end").style.left = `${100 * items / buyers}%`;
  byId("end").textContent = `${items} in stock`;
  byId("shelf").setAttribute("aria-label", `${items} in stock, ${sold} sold, ${tooMany} too many`);
}

// flashSale sets the stock, and sends one purchase for each of many buyers.
function flashSale(query) {
  const sale = { buyers: 200, items: 50, sold: 0 };
  const take = (buyer) => async (show) => {
    const send = (headers) => post(`/api/stock/tea/take${query}`, { quantity: 1 }, { "X-User": `buyer-${buyer}`, ...headers });
    const result = await resultOf(await insist(send, show), { 200: "sold", 409: "soldout" });
    if (result.outcome === "sold") {
      sale.sold++;
      result.outcome = sale.sold > sale.items ? "over" : "sold";
      showSold(sale);
    }
    return result;
  };
  showSold(sale);
  run(Array.from({ length: sale.buyers }, (_, i) => take(i + 1)), (count) =>
    sentence(`${sale.buyers} buyers, ${sale.items} items`, count, `${sale.sold} sold`, `${count("over") || "not one"} too many`),
  { prepare: async () => (await once(() => post("/api/stock/tea", { quantity: sale.items })))?.ok, shelf: true });
}

on("sale", () => flashSale(""));
on("oversale", () => flashSale("?lock=off"));

// orders are those that this page has placed without a payment, by their ID.
const orders = new Map();

const dollars = (cents) => `$${(cents / 100).toFixed(2)}`;
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;

// newOrder shows an order, which is updated from then on: its button keeps the focus.
function newOrder(id) {
  const number = orders.size + 1;
  const what = element("span");
  const state = element("strong");
  const pay = element("button", `Pay order ${number}`);
  pay.id = `pay-${number}`;
  pay.type = "button";
  pay.className = "act";
  pay.addEventListener("click", () => { if (!busy) { payOrder(id); } });
  const item = element("li", "", element("div", "", what, state), pay);
  byId("orders").prepend(item);
  const order = { id, number, what, state, pay, item };
  orders.set(id, order);
  return order;
}

const stateOf = {
  unpaid: (seconds) => seconds > 0 ? `${clock(seconds)} left to pay` : "its time is over",
  paid: () => "paid",
  cancelled: () => "cancelled: not paid",
};

// showOrder shows the status of an order, and the time that is left.
function showOrder({ status, ends, item, state, pay }) {
  item.className = status;
  const text = stateOf[status](Math.max(0, Math.ceil((ends - performance.now()) / 1000)));
  if (state.textContent !== text) {
    state.textContent = text;
  }
  if (status !== "unpaid") {
    if (document.activeElement === pay) {
      byId("order").focus(); // the button that was pressed goes
    }
    pay.remove();
  }
}

// lookAtOrders shows this page's orders and the stock, as the shop has them now.
async function lookAtOrders() {
  try {
    const read = async (path) => (await get(path)).json();
    const [list, { left }] = await Promise.all([read("/api/orders"), read("/api/stock/coffee")]);
    for (const { order_id: id, status, left_seconds: seconds, amount_cents: cents } of list.toReversed()) {
      const order = orders.get(id) ?? newOrder(id);
      order.what.textContent = `Order ${order.number}, ${dollars(cents)}`;
      Object.assign(order, { status, ends: performance.now() + 1000 * seconds });
      showOrder(order);
    }
    byId("coffee").textContent = `${plural(left, "tin")} of coffee on the shelf.`;
  } catch {
    // The next look may get through.
  }
}

const open = () => [...orders.values()].filter((order) => order.status === "unpaid");

setInterval(() => {
  open().forEach(showOrder);
  if (open().some((order) => order.ends <= performance.now())) {
    lookAtOrders();
  }
}, 1000);

// stockUp fills an empty shelf, unless there are tins that may come back to it.
async function stockUp() {
  const response = await once(() => get("/api/stock/coffee"));
  if (!response?.ok) {
    return false;
  }
  return (await response.json()).left > 0 || open().length > 0 || (await once(() => post("/api/stock/coffee", { quantity: 10 })))?.ok;
}

on("order", async () => {
  const key = newKey();
  const place = (headers) => post("/api/orders", { sku: "coffee", quantity: 1 }, { "Idempotency-Key": key, ...headers });
  await run([async (show) => resultOf(await insist(place, show), { 201: "placed", 409: "soldout" })], (count) => {
    if (count("placed")) { return "Placed: a tin is yours until its time is over."; }
    return count("soldout") ? "Sold out: no tin is left." : sentence("There is no order", count, "see below");
  }, { prepare: stockUp });
  await lookAtOrders();
});

async function payOrder(id) {
  const key = newKey();
  const pay = (headers) => post(`/api/orders/${id}/pay`, undefined, { "Idempotency-Key": key, ...headers });
  await run([async (show) => resultOf(await insist(pay, show), { 200: "charged", 409: "too-late" })], (count) => {
    if (count("charged")) { return "Paid in time: the tin is yours."; }
    return count("too-late") ? "Too late: it was cancelled, and is not charged." : sentence("It is not paid", count, "see below");
  });
  await lookAtOrders();
}

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

// lookAtPark shows the state of the car park on the server, and returns the number of cars in it.
async function lookAtPark(path) {
  let park;
  try {
    const response = await get(`${path}/places`);
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
async function watch(path, sent) {
  let over = false;
  sent.finally(() => { over = true; });
  for (let looks = 0, cars = 1; !over || cars > 0 && looks < 20; looks += over ? 1 : 0) {
    cars = await lookAtPark(path);
    await pause(40);
  }
}

// carThatLeft returns the response that the server reports of a request that it has sent itself.
function carThatLeft(path, status, problem, after) {
  const response = new Response(problem ? JSON.stringify({ type: problem }) : "", { status, headers: after ? { "Retry-After": after } : {} });
  response.headers.delete("Content-Type"); // which was not reported
  return Object.assign(response, { request: { method: "GET", path, headers: { "X-User": user } } });
}

// rush lets the server send a number of cars, and resolves each one that leaves with its response.
// The page itself could not: a browser opens at most six connections to a server, and queues other
// requests until one is free. With two cars parked and four waiting, a seventh would never arrive,
// and the page could not read the state.
async function rush(path, leave) {
  try {
    const response = await post(`${path}/rush`, { quantity: leave.length });
    if (!response.ok) {
      leave.forEach((resolve) => resolve(response.clone()));
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const { number, status, problem, retry_after: after } of lines.map((line) => JSON.parse(line))) {
        leave[number - 1](status ? carThatLeft(path, status, problem, after) : undefined);
      }
    }
  } catch {
    // Cars without an answer have failed.
  } finally {
    leave.forEach((resolve) => resolve(undefined));
  }
}

// sendCars sends a number of cars, which are turned away with a problem of this type.
function sendCars(path, n, refusal) {
  const leave = [];
  const cars = Array.from({ length: n }, () => {
    const left = new Promise((resolve) => { leave.push(resolve); });
    return async () => resultOf(await left, { 200: "served" });
  });
  watch(path, run(cars, (count) => sentence(plural(n, "car"), count, `${count("served")} served`,
    count("served") > 2 && "two at a time", count(refusal) && `${count(refusal)} turned away`)));
  rush(path, leave);
}

on("car-1", () => sendCars("/api/report", 1, "too-many-at-once"));
on("car-12", () => sendCars("/api/report", 12, "too-many-at-once"));
on("strangers", () => sendCars("/api/report/public", 12, "temporary-reduced-capacity"));

// A wide window has room for the answers; in a narrow one they would hide the buttons.
byId("talk").open = matchMedia("(min-width: 64rem)").matches;
refresh();
lookAtOrders();
lookAtPark("/api/report");
