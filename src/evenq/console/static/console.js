// Times in the browser's zone, charts, tables that are scrolled by keyboard, and a notice on a page that cannot be
// refreshed. Pages work without it.
"use strict";

function localTimes(root) {
  for (const element of root.querySelectorAll("time:not([title])")) {
    const at = new Date(element.dateTime);
    element.title = element.dateTime;
    element.textContent = at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
  }
}

async function chart(element) {
  element.dataset.drawn = "yes";
  const answer = await fetch(element.dataset.history, { headers: { "HX-Request": "true" } });
  if (!answer.ok) return;
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--faint"), grid: { stroke: style.getPropertyValue("--line") } };
  new uPlot({
    width: Math.min(element.clientWidth, 900), height: 180, legend: { live: true },
    series: [{}, { label: element.dataset.label, stroke: style.getPropertyValue("--accent"), width: 2 }],
    axes: [axis, { ...axis, size: 80 }],
  }, await answer.json(), element);
}

// A table that is wider than the screen is a stop of the Tab key, named by the heading before it.
function scrolled() {
  let heading = "";
  for (const element of document.querySelectorAll("h1, h2, .wide")) {
    if (!element.matches(".wide")) {
      heading = element.textContent;
    } else if (element.scrollWidth > element.clientWidth) {
      element.tabIndex = 0;
      element.setAttribute("role", "region");
      element.setAttribute("aria-label", heading);
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) element.removeAttribute(name);
    }
  }
}

function prepare(root) {
  localTimes(root);
  scrolled();
  for (const element of root.querySelectorAll(".chart:not([data-drawn])")) chart(element);
}

prepare(document);
window.addEventListener("resize", scrolled);

const notice = document.createElement("p");
notice.className = "problem";
notice.setAttribute("role", "alert");

function notRefreshed(event) {
  if (notice.isConnected) return;
  const answer = event.detail.xhr?.responseText ?? "";
  const reason = new DOMParser().parseFromString(answer, "text/html").body.textContent.trim().slice(0, 300);
  notice.textContent = `This page is not up to date since ${new Date().toLocaleTimeString()}: `
    + `${reason || "the console does not answer"}. It is refreshed when this has ended.`;
  document.querySelector("h1").after(notice);
}

document.body.addEventListener("htmx:responseError", notRefreshed);
document.body.addEventListener("htmx:sendError", notRefreshed);
// A refresh replaces elements: the focus, scrolled tables and open details are those of the same place afterwards.
const STOPS = "a[href], button, input, select, textarea, summary, [tabindex]";
let place = null;

document.body.addEventListener("htmx:beforeSwap", () => {
  const parts = (selector) => [...document.querySelectorAll(`#live ${selector}`)];
  const focused = document.activeElement;
  place = {
    link: focused.closest("#live") && focused.getAttribute("href"),
    stop: [...document.querySelectorAll(`#live :is(${STOPS})`)].indexOf(focused),
    scrolled: parts(".wide").map((element) => element.scrollLeft),
    open: parts("details").map((element) => element.open),
  };
});
document.body.addEventListener("htmx:afterSwap", () => {
  notice.remove();
  prepare(document);
  if (place === null) return;
  const parts = (selector) => [...document.querySelectorAll(`#live ${selector}`)];
  parts(".wide").forEach((element, index) => { element.scrollLeft = place.scrolled[index] ?? 0; });
  parts("details").forEach((element, index) => { element.open = place.open[index] ?? element.open; });
  if (place.stop >= 0) {
    const stops = [...document.querySelectorAll(`#live :is(${STOPS})`)];
    const same = stops.find((element) => place.link && element.getAttribute("href") === place.link);
    (same ?? stops[place.stop])?.focus({ preventScroll: true });
  }
  place = null;
});
// A tab that nobody looks at does not poll, and a text that somebody selects, perhaps to copy it, stays.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  const selection = getSelection();
  const selected = !selection.isCollapsed && selection.anchorNode.parentElement?.closest("#live");
  if ((document.hidden || selected) && event.detail.requestConfig.verb === "get") event.preventDefault();
});
