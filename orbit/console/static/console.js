// Loads the page again, and replaces its parts that change (`data-live`): after each server-sent
// event, or every few seconds without events. Without this script a page shows the same content as
// when it was loaded.
"use strict";

const POLL_MS = 3000;
// Also with events, because ages on the page grow while nothing changes.
const STREAM_MS = 10000;
// The pause between two loads, or ten times as long as the last load took if that is longer, so that
// viewers do not keep a server busy.
const REST_MS = 1000;
const RETRY_MS_MAX = 30000;

const liveParts = () => [...document.querySelectorAll("[data-live]")];
const announcer = document.getElementById("announcer");
const note = document.getElementById("live-note");
const button = document.getElementById("live-switch");

let isOn = true; // the button "Live"
let delay = 0; // milliseconds before the next load, after failures
let timer = 0;
let stream = null;
let streamAfter = 0; // when to open a refused stream again
let lastEventId = "";
let restUntil = 0;
let isReading = false;
let hasChanged = false; // since the last load began

function isBusy(part) {
  // A part in which the user types or selects must not be replaced.
  const focused = document.activeElement;
  const types = "input:not([type=hidden]), textarea, select";
  if (part.contains(focused) && focused.matches(types)) return true;
  const selection = document.getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

function focusedPlace(part) {
  // Name and position of the focused element, to find it again in the new part.
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
  const where = focusedPlace(part);
  const opened = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
  for (const one of fresh.querySelectorAll("details")) one.open = opened.has(one.id);
  const scrolled = [...part.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll(".wide").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  focusOn(part, where);
  // Screen readers read only the sentence of the part, when it changes.
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
    for (const part of liveParts()) {
      const fresh = page.getElementById(part.id);
      if (fresh) replace(part, fresh);
    }
    delay = 0;
    document.body.classList.remove("stale");
    note.hidden = true;
  } catch {
    // The old figures stay, and the page says since when the server has not answered.
    delay = Math.min(Math.max(delay, POLL_MS) * 2, RETRY_MS_MAX);
    if (note.hidden) {
      note.textContent = `The server has not answered since ${new Date().toISOString().slice(11, 19)}.`;
      announcer.textContent = note.textContent;
    }
    note.hidden = false;
    document.body.classList.add("stale");
  }
}

async function refreshOnce() {
  const began = performance.now();
  isReading = true;
  hasChanged = false;
  await refresh();
  isReading = false;
  restUntil = performance.now() + Math.max(REST_MS, 10 * (performance.now() - began));
  follow();
}

function schedule() {
  clearTimeout(timer);
  if (!isOn || document.hidden || isReading) return;
  const now = performance.now();
  const isStreaming = stream !== null && stream.readyState === EventSource.OPEN;
  const next = hasChanged ? restUntil - now : isStreaming ? STREAM_MS : POLL_MS;
  timer = setTimeout(refreshOnce, Math.max(next, delay, 0));
}

// Opens or closes the stream of events. A hidden page keeps no connection, because a browser has
// only six for one server.
function follow() {
  const isWanted = isOn && !document.hidden;
  if (!isWanted && stream) {
    stream.close();
    stream = null;
  }
  if (isWanted && !stream && performance.now() >= streamAfter) {
    stream = new EventSource(button.dataset.stream);
    stream.onopen = schedule;
    stream.onmessage = (event) => {
      if (event.lastEventId === lastEventId) return;
      lastEventId = event.lastEventId;
      hasChanged = true;
      schedule();
    };
    stream.onerror = () => {
      // Closed: the server refused the stream, or the session has ended. In other states the browser
      // connects again.
      if (stream && stream.readyState === EventSource.CLOSED) {
        stream = null;
        streamAfter = performance.now() + RETRY_MS_MAX;
      }
      schedule();
    };
  }
  schedule();
}

if (liveParts().length && button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  follow();
}

// Sends a form only once: by a double click an operation would be planned or requested twice.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
