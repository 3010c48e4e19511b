// What the pages do besides: they stay as they are without it. Nothing here reads or writes anything but pages of
// the console.
"use strict";

(() => {
  const live = document.getElementById("live");
  const sections = [...document.querySelectorAll("[data-live]")];
  const PAUSED = "atomic-phases-paused";
  let failures = 0;

  // Times: the reader's own beside UTC, behind each.
  function localTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.getTime()) && !time.dataset.local) {
        time.dataset.local = "1";
        time.title += " · " + at.toLocaleString() + " here";
      }
    }
  }

  function copyButtons(root) {
    for (const text of root.querySelectorAll("[data-copy]")) {
      if (text.dataset.copy || !navigator.clipboard) continue;
      text.dataset.copy = "1";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      const words = text.textContent;
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(words);
          button.textContent = "Copied";
        } catch {
          button.textContent = "Not allowed";
        }
      });
      text.after(" ", button);
    }
  }

  // A reader who marks or fills in something is not disturbed.
  function isBusy() {
    const selection = document.getSelection();
    const active = document.activeElement;
    return document.hidden
      || (selection !== null && !selection.isCollapsed)
      || (active !== null && active.closest("form, details[open], [data-live] a, [data-live] button") !== null)
      || [...document.querySelectorAll("textarea, select, input:not([type=hidden])")].some((field) => isChanged(field));
  }

  function isChanged(field) {
    if (field.type === "radio" || field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.options) {
      const chosen = [...field.options].findIndex((option) => option.defaultSelected);
      return field.selectedIndex !== Math.max(chosen, 0);
    }
    return field.value !== field.defaultValue;
  }

  // A link of a page that was read at another address leads to where it leads there.
  function leadAsAt(address, root) {
    for (const name of ["href", "action"]) {
      for (const one of root.querySelectorAll("[" + name + "]")) {
        one.setAttribute(name, new URL(one.getAttribute(name), address).href);
      }
    }
  }

  // A form that was refused is shown at the address it was sent to, which leads, read by itself, to the page above.
  async function refresh() {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // Not a page of the console: a sign-in page, for example.
    if (page.body.dataset.search === undefined) throw new Error("another page");
    // The reader may have begun something meanwhile.
    if (isBusy() || isPaused()) return;
    for (const section of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(section.id);
      if (fresh === null) continue;
      if (answer.redirected) leadAsAt(answer.url, fresh);
      localTimes(fresh);
      copyButtons(fresh);
      section.replaceChildren(...fresh.childNodes);
    }
  }

  function isPaused() {
    try { return localStorage.getItem(PAUSED) !== null; } catch { return false; }
  }

  function pause(on) {
    try {
      if (on) localStorage.setItem(PAUSED, "1"); else localStorage.removeItem(PAUSED);
    } catch { /* It is for this page, then. */ }
  }

  function startLive() {
    if (live === null || sections.length === 0) return;
    const every = Math.min(...sections.map((section) => Number(section.dataset.live) || 10));
    const text = document.createElement("span");
    const button = document.createElement("button");
    button.type = "button";
    live.append(text, " ", button);
    let paused = isPaused();
    const tell = () => {
      text.textContent = paused ? "Not refreshed."
        : failures > 0 ? "The console does not answer; trying again."
        : "Refreshed every " + every + " s.";
      button.textContent = paused ? "Refresh" : "Pause";
    };
    button.addEventListener("click", () => {
      paused = !paused;
      pause(paused);
      tell();
    });
    tell();
    const tick = async () => {
      if (!paused && !isBusy()) {
        try {
          await refresh();
          failures = 0;
        } catch {
          failures += 1;
        }
        tell();
      }
      // A console that does not answer is asked less often.
      setTimeout(tick, every * 1000 * Math.min(1 + failures, 6));
    };
    setTimeout(tick, every * 1000);
  }

  // "/" leads to the search.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof Element && event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    const field = document.getElementById("find");
    if (field !== null) field.focus(); else location.assign(document.body.dataset.search);
  });
  if (location.hash === "#find") document.getElementById("find")?.focus();

  localTimes(document);
  copyButtons(document);
  startLive();
})();
