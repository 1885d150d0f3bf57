// The form to settings of a run, and settings back to the form.
import { $, h } from "./dom.js";
import { splitWords, weightId } from "./settings.js";
import { WISHES, choice } from "./wishes.js";

const ROLES = ["user", "assistant", "system"];

// Numbers with a slider and a box each. An empty box leaves the choice to the preset.
const NUMBERS = {
  length: { label: "Length", min: 1, max: 200, step: 1, usual: 20, limit: "max_tokens", unit: "tokens" },
  samples: { label: "Samples", min: 1, max: 8, step: 1, usual: 1, limit: "max_texts" },
  seed: { label: "Seed", min: 0, max: 99, step: 1, usual: 0 },
  strength: { label: "Strength", min: 0, max: 4, step: 0.1, usual: 1 },
  steps: { label: "Steps", min: 1, max: 100, step: 1, usual: 40, limit: "max_steps" },
  until: { label: "Until", min: 0.5, max: 1, step: 0.01, usual: 0.95 },
  temperature: { label: "Temperature", min: 0, max: 2, step: 0.05, usual: 0 },
  top_p: { label: "Top-p", min: 0.05, max: 1, step: 0.05, usual: 1 },
};
const MAIN = ["length", "samples", "seed"];
// Of each constraint; the box takes more than the slider.
const WEIGHT = { label: "Weight", min: 0.25, max: 4, step: 0.05, usual: 1, help: "How much it counts, beside the others and beside fluency" };

/** A knob's value in its type: a number or a truth, if it reads like one. */
function typed(text) {
  if (text === "true" || text === "false") return text === "true";
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The form of a server; `changed` is called whenever a setting is. */
export class Form {
  constructor(server, changed) {
    this.server = server;
    this.changed = changed;
    for (const [name, kind] of Object.entries(NUMBERS)) {
      $(MAIN.includes(name) ? "main-settings" : "more-settings").append(this.#number(name, kind));
    }
    $("as-prompt").addEventListener("click", () => this.#ask(false));
    $("as-chat").addEventListener("click", () => this.#ask(true));
    $("add-message").addEventListener("click", () => {
      this.#addMessage({ role: "user", content: "" }).focus();
      changed();
    });
    for (const radio of $("tell").querySelectorAll("input")) radio.addEventListener("change", () => this.#told(true));
    $("form").addEventListener("input", () => this.#edited());
    $("form").addEventListener("change", () => this.#noted()); // a control's own listener may have set others
    this.serve(server);
  }

  /** Offer what this server has. */
  serve(server) {
    this.server = server;
    $("as-chat").disabled = server.chat === false;
    $("as-chat").title = server.chat === false ? "This model has no chat template" : "";
    for (const [name, { limit, max, usual }] of Object.entries(NUMBERS)) {
      const top = server.limits?.[limit] ?? (limit ? max : null);
      const said = server.defaults?.[name] ?? server.defaults?.[limit] ?? usual;
      if (top) $(name).max = top;
      $(`${name}-slider`).max = Math.min(max, top ?? max);
      $(name).placeholder = MAIN.includes(name) ? String(said) : "auto";
      $(name).dataset.usual = said;
      $(name).parentElement.title = server.fields?.properties?.[name]?.description ?? "";
      this.#follow(name);
    }
    const samplers = (server.samplers ?? []).map((one) => one.name);
    const offered = { sampler: samplers, preset: [], select: ["score", "joint", "latest"] };
    $("choices").replaceChildren(
      ...Object.entries(offered).map(([name, options]) =>
        h("div", { class: "field" }, h("label", { for: name }, { sampler: "Sampler", preset: "Preset", select: "Keep the best by" }[name]),
          h("select", { id: name, onchange: () => name === "sampler" && this.#suit({}) },
            h("option", { value: "" }, this.#usual(name)), ...options.map((one) => h("option", { value: one }, one)))),
      ),
    );
    this.#offerWishes();
    this.#suit({});
  }

  /** Offer the presets and knobs of the chosen sampler. */
  #suit(knobs) {
    const sampler = $("sampler").value || this.server.defaults?.sampler;
    const presets = (this.server.presets ?? []).filter((one) => one.sampler === sampler).map((one) => one.name);
    const chosen = $("preset").value;
    $("preset").replaceChildren($("preset").options[0], ...[...new Set(presets)].map((one) => h("option", { value: one }, one)));
    $("preset").value = presets.includes(chosen) ? chosen : "";
    this.#knobs(sampler, knobs);
  }

  #usual(name) {
    const said = this.server.defaults?.[name];
    return said ? `as usual (${said})` : "as the preset says";
  }

  /** What the form says, as settings: only what is set. */
  read() {
    const run = {};
    const weights = {};
    const text = (id) => $(id)?.value ?? "";
    if (this.chat) {
      run.messages = [...$("messages").children].map((item) => ({
        role: item.querySelector("select").value,
        content: item.querySelector("textarea").value,
      }));
    } else run.prompt = text("prompt");
    for (const name of this.wishes) {
      if (name === "detoxify" || name === "whole_sentences") run[name] = true;
      else if (name === "keywords" || name === "avoid") {
        const listed = splitWords(text(name));
        if (listed.length) run[name] = listed;
        if (name === "keywords" && listed.length && text("mode") === "all") run.mode = "all";
      } else if (text(name).trim()) run[name] = name === "regex" ? text(name) : text(name).trim();
      if (name === "classifier" && run.classifier) run.label = text("label");
      const weight = text(weightId(name));
      if (run[name] && weight !== "" && Number(weight) !== WEIGHT.usual) weights[name] = Number(weight);
    }
    if (Object.keys(weights).length) run.weights = weights;
    const tell = document.querySelector("#tell input:checked").value;
    if (tell === "yes" || tell === "no") run.tell = tell === "yes";
    else if (tell === "own" && text("tell-as").trim()) run.tell = text("tell-as").trim();
    for (const name of Object.keys(NUMBERS)) if (text(name) !== "") run[name] = Number(text(name));
    run.seed ??= 0; // a link and a copied text repeat this very run
    for (const name of ["sampler", "preset", "select"]) if (text(name)) run[name] = text(name);
    const stop = text("stop").split("\n").filter(Boolean);
    if (stop.length) run.stop = stop;
    const knobs = [...$("knobs").querySelectorAll("input")].filter((knob) => knob.value.trim() !== "");
    if (knobs.length) run.knobs = Object.fromEntries(knobs.map((knob) => [knob.name, typed(knob.value.trim())]));
    return run;
  }

  /** Show these settings, and no others. */
  fill(run) {
    $("prompt").value = run.prompt ?? "";
    $("messages").replaceChildren();
    for (const message of run.messages ?? []) this.#addMessage(message);
    $("wishes").replaceChildren();
    for (const name of Object.keys(WISHES)) if (run[name]) this.#addWish(name, run);
    const tell = run.tell === undefined || run.tell === "auto" ? "auto" : typeof run.tell === "string" ? "own" : run.tell ? "yes" : "no";
    document.querySelector(`#tell input[value=${tell}]`).checked = true;
    $("tell-as").value = tell === "own" ? run.tell : "";
    for (const name of Object.keys(NUMBERS)) {
      $(name).value = run[name] ?? "";
      this.#follow(name);
    }
    for (const name of ["sampler", "preset", "select"]) {
      if (name === "preset") this.#suit(run.knobs ?? {}); // after the sampler
      const select = $(name);
      if (run[name] && ![...select.options].some((one) => one.value === run[name])) select.append(h("option", { value: run[name] }, run[name]));
      select.value = run[name] ?? "";
    }
    $("stop").value = (run.stop ?? []).join("\n");
    this.#told(false);
    this.#ask(Boolean(run.messages));
    if (this.#moreSet()) $("more").open = true;
  }

  /** The names of the constraints on the form. */
  get wishes() {
    return [...$("wishes").children].map((item) => item.dataset.wish);
  }

  /** Point at a setting that was refused; false if it is not on the form. */
  point(name) {
    const control = $(name === "messages" ? "add-message" : name === "tell" ? "tell-as" : name);
    if (!control || !$("form").contains(control)) return false;
    for (let details = control.closest("details"); details; details = details.parentElement.closest("details")) details.open = true;
    control.setAttribute("aria-invalid", "true");
    control.focus();
    return true;
  }

  #edited() {
    for (const wrong of $("form").querySelectorAll("[aria-invalid]")) wrong.removeAttribute("aria-invalid");
    this.#noted();
  }

  #noted() {
    this.#moreSet();
    this.changed();
  }

  #ask(chat) {
    this.chat = chat;
    $("as-prompt").setAttribute("aria-pressed", String(!chat));
    $("as-chat").setAttribute("aria-pressed", String(chat));
    $("prompt-part").hidden = chat;
    $("chat-part").hidden = !chat;
    if (chat && !$("messages").children.length) this.#addMessage({ role: "user", content: $("prompt").value });
    $("length").placeholder = chat ? "128" : $("length").dataset.usual;
    this.changed();
  }

  #addMessage({ role, content }) {
    const area = h("textarea", { rows: 2, "aria-label": "Message" });
    area.value = content;
    const who = choice("", "Who says it", ROLES, role);
    who.removeAttribute("id");
    const item = h("li", {}, h("div", { class: "row" }, who, this.#remover("message", () => item.remove(), "add-message")), area);
    $("messages").append(item);
    return area;
  }

  /** A button that removes something; then the one that adds such has the focus, or else the next best. */
  #remover(what, remove, adder) {
    return h("button", { type: "button", class: "remove", "aria-label": `Remove ${what}`, title: "Remove", onclick: () => {
      remove();
      this.#offerWishes();
      this.#edited();
      ($(adder) ?? $("add-wishes").querySelector("button") ?? $("write")).focus();
    } }, "×");
  }

  #addWish(name, run) {
    const { title, make, strict } = WISHES[name];
    const remover = this.#remover(title, () => item.remove(), `add-${name}`);
    const item = h("li", { "data-wish": name },
      h("div", { class: "wish" }, h("span", { class: "wish-title" }, title), ...make(run, this.server), remover),
      strict ? h("p", { class: "quiet small" }, strict) : this.#number(weightId(name), { ...WEIGHT, of: title }));
    $("wishes").append(item);
    if (!strict) {
      $(weightId(name)).value = run.weights?.[name] ?? "";
      this.#follow(weightId(name));
    }
    this.#offerWishes();
    return item;
  }

  /** A button for every constraint this server takes and the form has not. */
  #offerWishes() {
    const open = this.server.wishes ?? Object.keys(WISHES);
    const offered = Object.keys(WISHES).filter((name) => open.includes(name) && !this.wishes.includes(name));
    $("add-wishes").replaceChildren(
      ...offered.map((name) =>
        h("button", { type: "button", class: "chip", id: `add-${name}`, "data-add": name, onclick: () => {
          this.#addWish(name, {}).querySelector("input, select, button").focus();
          this.#edited();
        } }, `+ ${WISHES[name].title}`),
      ),
    );
  }

  #told(focus) {
    const own = document.querySelector("#tell input:checked").value === "own";
    $("tell-own").hidden = !own;
    if (own && focus) $("tell-as").focus();
  }

  /** A number's label, slider, box, and the button that empties the box; `of` says whose number it is. */
  #number(id, { label, of, min, max, step, usual, unit, help }) {
    const name = of ? `${label} of ${of}` : label;
    const box = h("input", { type: "number", id, min: min < 1 ? 0 : min, step: "any", inputmode: "decimal", placeholder: usual, "data-usual": usual,
      oninput: () => this.#follow(id) });
    const slider = h("input", { type: "range", id: `${id}-slider`, min, max, step, "aria-label": `${name}, slider`,
      oninput: () => {
        box.value = slider.value;
        this.#follow(id);
      } });
    const back = h("button", { type: "button", class: "remove", "aria-label": `${name} as usual`, title: "As usual", onclick: () => {
      box.value = "";
      this.#follow(id);
      this.#edited();
    } }, "↺");
    const more = of ? h("span", { class: "spoken" }, ` of ${of}`) : unit ? h("span", { class: "quiet" }, ` ${unit}`) : null;
    return h("div", { class: "number", title: help }, h("label", { for: id }, label, more), slider, box, back);
  }

  /** The slider goes where the box is; while the box is empty, where the usual value is. */
  #follow(name) {
    const box = $(name);
    const slider = $(`${name}-slider`);
    const value = box.value === "" ? box.dataset.usual : box.value;
    slider.value = value;
    const span = slider.max - slider.min || 1;
    slider.style.setProperty("--share", `${(100 * (slider.value - slider.min)) / span}%`);
    box.parentElement.classList.toggle("unset", box.value === "");
  }

  /** Boxes for the knobs of a sampler. */
  #knobs(sampler, values) {
    const listed = [...((this.server.samplers ?? []).find((one) => one.name === sampler)?.knobs ?? [])];
    for (const one of Object.keys(values)) if (!listed.some((knob) => knob.name === one)) listed.push({ name: one });
    $("knobs").hidden = !listed.length;
    $("knobs").replaceChildren(
      $("knobs").querySelector("legend"),
      ...listed.map((knob) => {
        const box = h("input", { type: "text", id: `knob-${knob.name}`, name: knob.name, placeholder: knob.default ?? "" });
        box.value = values[knob.name] ?? "";
        return h("div", { class: "knob", title: knob.help }, h("label", { for: box.id }, knob.name), box);
      }),
    );
  }

  /** Say beside the closed drawer how much in it is set. */
  #moreSet() {
    const run = this.read();
    const hidden = [...Object.keys(NUMBERS).filter((name) => !MAIN.includes(name)), "sampler", "preset", "select", "stop", "knobs"];
    const count = hidden.filter((name) => run[name] !== undefined).length;
    $("more-set").textContent = count ? `${count} set` : "";
    return count > 0;
  }
}
