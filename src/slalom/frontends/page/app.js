// The page: form, link, stream and results wired together.
import { $, copyBy, h } from "./dom.js";
import { Form } from "./form.js";
import { commandLine, curlCall, pythonProgram } from "./repeat.js";
import { Results } from "./results.js";
import { fromLink, hasWish, settingOf, toBody, toLink } from "./settings.js";
import { Refusal, fetchProps, steer } from "./stream.js";

const EXAMPLES = [
  ["The pizza, but badly reviewed", { prompt: "The pizza", sentiment: "negative" }],
  ["The city, with a satellite or an astronaut", { prompt: "The city", keywords: ["satellite", "astronaut"] }],
  ["A night in space, without moon or stars", { prompt: "The night", topic: "space", avoid: ["moon", "stars"], length: 30 }],
];
const REPEATED = { command: commandLine, python: pythonProgram, curl: (run, server) => curlCall(run, server, location.origin, Boolean($("key").value)) };

let server = {};
let running = null; // the AbortController of a run under way
let repeatAs = "command";
const results = new Results();
const form = new Form(server, changed);

/** Keep the address and the text to copy in step with the form. */
function changed() {
  const run = form.read();
  history.replaceState(null, "", `#${toLink(run)}`);
  $("repeat-text").textContent = REPEATED[repeatAs](run, server);
}

function fill(run) {
  form.fill(run);
  changed();
}

async function meet() {
  try {
    server = await fetchProps($("key").value);
  } catch (error) {
    complain(error);
    return;
  }
  const run = form.read();
  form.serve(server);
  fill(run);
  $("model").textContent = [server.model, server.engine].filter(Boolean).join(" · ");
  complain(null);
}

async function write() {
  if (running) return;
  const run = form.read();
  const lacking = missing(run);
  if (lacking) {
    complain(new Refusal(lacking.message), lacking.control);
    return;
  }
  complain(null);
  running = new AbortController();
  busy(true);
  results.announce(run);
  let how = "done";
  try {
    for await (const one of steer({ model: server.model, ...toBody(run), compare: true }, $("key").value, running.signal)) results.take(one);
  } catch (error) {
    how = error.name === "AbortError" ? "stopped" : "failed";
    if (how === "failed") complain(error);
  }
  running = null;
  busy(false);
  results.end(how);
}

/** What must be filled in before anything can be written. */
function missing(run) {
  if (run.messages ? !run.messages.some((one) => one.content.trim()) : !run.prompt.trim()) {
    return { message: "There is nothing to begin with: write a prompt.", control: run.messages ? "messages" : "prompt" };
  }
  if (!hasWish(run)) return { message: "There is nothing to steer towards: add a constraint, and say what it wants.", control: null };
  return null;
}

function busy(writing) {
  $("write").disabled = writing;
  $("stop-writing").disabled = !writing;
  $("results").setAttribute("aria-busy", String(writing));
  if (writing) $("stop-writing").focus();
  else if (document.activeElement === document.body || document.activeElement === $("stop-writing")) $("write").focus({ preventScroll: true });
}

/** Say what went wrong, and lead to where it can be mended. */
function complain(error, control = null) {
  $("problem").hidden = !error;
  $("problem").textContent = error ? (error instanceof Refusal ? error.message : `The page failed: ${error.message}`) : "";
  if (!error) return;
  if (error.status === 401 || error.status === 403) {
    $("access").open = true;
    $("key").focus();
  } else if (control || error.param) form.point(control ?? settingOf(error.param));
  else if (!hasWish(form.read())) $("add-wishes").querySelector("button")?.focus();
}

function keepKey() {
  try {
    sessionStorage.setItem("slalom-key", $("key").value);
  } catch {
    // then it lasts as long as the page
  }
  changed();
}

function keptKey() {
  try {
    return sessionStorage.getItem("slalom-key") ?? "";
  } catch {
    return "";
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    write();
  }
});
$("stop-writing").addEventListener("click", () => running?.abort());
$("copy-link").addEventListener("click", () => copyBy($("copy-link"), location.href));
$("copy").addEventListener("click", () => copyBy($("copy"), $("repeat-text").textContent));
for (const button of $("repeat-as").children) {
  button.addEventListener("click", () => {
    repeatAs = button.dataset.as;
    for (const one of $("repeat-as").children) one.setAttribute("aria-pressed", String(one === button));
    changed();
  });
}
$("key").addEventListener("input", keepKey);
$("key").addEventListener("change", () => server.model === undefined && meet());
addEventListener("hashchange", () => fill(fromLink(location.hash)));
$("examples").append(
  ...EXAMPLES.map(([title, run]) =>
    h("li", {}, h("button", { type: "button", class: "example", onclick: () => {
      fill(run);
      $("write").focus();
    } }, title)),
  ),
);

$("key").value = keptKey();
fill(location.hash.length > 1 ? fromLink(location.hash) : { prompt: "The pizza", sentiment: "negative" });
meet();
