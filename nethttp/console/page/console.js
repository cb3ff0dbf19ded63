// Swaps the content of a live page for a new one, and stops while the page is hidden.
"use strict";
(() => {
  const content = document.getElementById("content");
  const every = Number(content?.dataset.every);
  if (!every) return;
  const url = new URL(location.href);
  url.searchParams.set("fragment", "1");
  let timer = 0;
  let failures = 0;

  const later = () => {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(swap, every * 1000 * Math.min(1 + failures, 5));
  };

  // A field that an operator is in keeps its text, and a selection stays.
  const busy = () => content.querySelector("form")?.contains(document.activeElement) || String(getSelection()) !== "";

  async function swap() {
    if (document.hidden) return;
    if (busy()) return later();
    try {
      const answer = await fetch(url, { redirect: "error", signal: AbortSignal.timeout(10_000) });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (busy()) return later();
      const wrong = document.getElementById("wrong");
      wrong.textContent = answer.headers.get("Lockkeeper-Wrong") ?? wrong.textContent;
      wrong.parentElement.hidden = wrong.textContent === "0";
      const focus = document.activeElement?.closest("#content") ? document.activeElement.getAttribute("href") : null;
      const fresh = new DOMParser().parseFromString(text, "text/html");
      content.replaceChildren(...fresh.body.childNodes);
      if (focus) [...content.querySelectorAll("a")].find((a) => a.getAttribute("href") === focus)?.focus({ preventScroll: true });
      content.classList.remove("swapped");
      void content.offsetWidth;
      content.classList.add("swapped");
      failures = 0;
    } catch {
      failures++;
      if (!content.querySelector(".stale")) {
        const note = document.createElement("p");
        note.className = "error stale";
        note.setAttribute("role", "alert");
        note.textContent = "This page does not refresh: its server does not answer, or your session has ended.";
        content.prepend(note);
      }
    }
    later();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : swap()));
  later();
})();
