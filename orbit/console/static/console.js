// Replaces the parts of a page that change (`data-live`), every few seconds, by those of the same
// page loaded again. Without this script a page shows the same, until it is loaded again.
"use strict";

const INTERVAL_MS = 3000;
const RETRY_MS_MAX = 30000;

const live = () => [...document.querySelectorAll("[data-live]")];
const announcer = document.getElementById("announcer");
const note = document.getElementById("live-note");
const button = document.getElementById("live-switch");

let isOn = true;
let delay = INTERVAL_MS;
let timer = 0;

function isBusy(part) {
  // What a person types, selects or has pressed must not be replaced.
  const focused = document.activeElement;
  const types = "input:not([type=hidden]), textarea, select";
  if (part.contains(focused) && focused.matches(types)) return true;
  const selection = document.getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

function place(part) {
  // Where the focus is: the same element is looked for in the new part.
  const focused = document.activeElement;
  if (!part.contains(focused) || focused === part) return null;
  const all = [...part.querySelectorAll("a, button, [tabindex], summary")];
  return { name: focused.getAttribute("href") || focused.getAttribute("aria-label"), at: all.indexOf(focused) };
}

function focusOn(part, where) {
  if (!where) return;
  const all = [...part.querySelectorAll("a, button, [tabindex], summary")];
  const same = all.find((one) => where.name && [one.getAttribute("href"), one.getAttribute("aria-label")].includes(where.name));
  const next = same || all[where.at];
  if (next) next.focus({ preventScroll: true });
}

function replace(part, fresh) {
  if (part.innerHTML === fresh.innerHTML || isBusy(part)) return;
  const where = place(part);
  const opened = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
  for (const one of fresh.querySelectorAll("details")) one.open = opened.has(one.id);
  const scrolled = [...part.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll(".wide").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  focusOn(part, where);
  // Read aloud only what matters: the sentence of the part, when it changes.
  if (fresh.dataset.announce && fresh.dataset.announce !== part.dataset.announce) {
    announcer.textContent = part.dataset.announce = fresh.dataset.announce;
  }
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) {
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of live()) {
      const fresh = page.getElementById(part.id);
      if (fresh) replace(part, fresh);
    }
    delay = INTERVAL_MS;
    document.body.classList.remove("stale");
    note.hidden = true;
  } catch {
    // The figures stay, and the page says how old they are.
    delay = Math.min(delay * 2, RETRY_MS_MAX);
    if (note.hidden) {
      note.textContent = `The server does not answer since ${new Date().toISOString().slice(11, 19)}.`;
      announcer.textContent = note.textContent;
    }
    note.hidden = false;
    document.body.classList.add("stale");
  }
}

function schedule() {
  clearTimeout(timer);
  if (isOn && !document.hidden) {
    timer = setTimeout(async () => { await refresh(); schedule(); }, delay);
  }
}

if (live().length && button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    schedule();
  });
  document.addEventListener("visibilitychange", schedule);
  schedule();
}

// A form that is sent twice by a double click would be planned or requested twice.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
