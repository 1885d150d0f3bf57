// The events of a run to what the visitor sees: two texts side by side, their scores, and the search step by step.
import { $, h, short } from "./dom.js";
import { curve } from "./curve.js";

const FULL = 4; // a constraint's score when the wish is fulfilled

/** What is shown of a run; announce it, feed it events, end it. */
export class Results {
  constructor() {
    this.rows = [];
    this.writing = false;
    $("step").addEventListener("input", () => this.#pick(Number($("step").value) - 1));
    $("earlier").addEventListener("click", () => this.#pick(this.shown - 1));
    $("later").addEventListener("click", () => this.#pick(this.shown + 1));
    new ResizeObserver(() => this.#curve()).observe($("curve"));
  }

  /** A run that was asked for; what was shown stays until the server begins with it. */
  announce(run) {
    this.asked = run;
    say("Waiting for the server …");
    if (matchMedia("(max-width: 56rem)").matches) $("results").scrollIntoView();
  }

  #begin(told) {
    const run = this.asked;
    this.run = run;
    this.current = 0;
    this.following = true; // the latest draft is shown until the visitor looks at another
    this.shown = 0;
    this.writing = true;
    this.told = told;
    this.rows = Array.from({ length: run.samples ?? 1 }, () => ({ drafts: [], text: null }));
    $("welcome").hidden = true;
    $("outcome").hidden = false;
    $("which").hidden = this.rows.length < 2;
    $("which").replaceChildren(
      ...this.rows.map((_, index) => h("button", { type: "button", onclick: () => this.#sample(index) }, String(index + 1))),
    );
    this.#sample(0);
    say("Writing …");
  }

  /** An event of the stream. */
  take({ event, data }) {
    if (event === "start") this.#begin(data.told);
    if (event === "draft") this.#row(data.index).drafts.push(data);
    if (event === "text") this.#row(data.index).text = data;
    if (data.index === this.current || event === "start") {
      if (this.following) this.shown = this.#kept();
      this.#show();
    }
    if (event === "draft") $("status").textContent = `Writing … ${data.draft} drafts`;
  }

  /** The run is over: finished, stopped, or failed. */
  end(how) {
    if (!this.writing) {
      say(how === "stopped" ? "Stopped." : "");
      return;
    }
    this.writing = false;
    if (this.following) this.shown = this.#kept();
    this.#show();
    const { text } = this.rows[this.current];
    if (how === "failed") say("");
    else if (how === "stopped") say("Stopped.");
    else say(`Done. ${text?.satisfied ? "As wished" : "Not quite as wished"}.`, text ? ` ${text.prompt} ${text.text}` : "");
  }

  #row(index) {
    this.rows[index] ??= { drafts: [], text: null };
    return this.rows[index];
  }

  /** Which draft to show by itself: the latest while writing, then the one that was kept. */
  #kept() {
    const { drafts } = this.rows[this.current];
    if (this.writing) return Math.max(0, drafts.length - 1);
    return Math.max(0, bestOf(drafts, drafts.length - 1));
  }

  /** A draft's perplexity is that of the model as it was told; a finished text's, of the model told nothing. */
  get #perplexity() {
    return this.told ? "told perplexity" : "perplexity";
  }

  #sample(index) {
    this.current = index;
    this.following = true;
    this.shown = this.#kept();
    for (const [number, button] of [...$("which").children].entries()) button.setAttribute("aria-pressed", String(number === index));
    this.#show();
  }

  #pick(number) {
    const { drafts } = this.rows[this.current];
    this.shown = Math.min(Math.max(0, number), drafts.length - 1);
    this.following = this.writing && this.shown === drafts.length - 1;
    this.#search();
  }

  #show() {
    const { drafts, text } = this.rows[this.current];
    const best = drafts.at(-1)?.best;
    const told = text?.told ?? this.told;
    const prompt = text?.prompt ?? this.run.prompt ?? this.run.messages.at(-1)?.content ?? "";
    const apart = Boolean(this.run.messages);

    prose($("own"), prompt, text?.unsteered ?? null, apart, this.writing);
    facts($("own"), text ? [`perplexity ${short(text.unsteered_perplexity)}`] : []);
    $("steered").querySelector("h2").textContent = told ? "Told and steered" : "Steered";
    prose($("steered"), prompt, text?.text ?? whole(drafts), apart, this.writing);
    $("steered").classList.toggle("waiting", this.writing && !text);
    const counted = (count) => `${count} ${count === 1 ? "draft" : "drafts"}`;
    facts(
      $("steered"),
      text
        ? [`perplexity ${short(text.perplexity)}`, counted(text.steps), `seed ${text.seed}`]
        : best ? ["best so far", `${this.#perplexity} ${short(best.perplexity)}`] : [],
    );
    $("told").textContent = told ? `The model was told: ${told}` : "";
    $("scores").replaceChildren(...(text?.constraints ?? []).map(bar));
    $("scores").hidden = !text;
    this.#search();
  }

  #search() {
    const { drafts } = this.rows[this.current];
    $("search").hidden = !drafts.length;
    if (!drafts.length) return;
    const draft = drafts[this.shown];
    const blocks = drafts.at(-1).block > 0;
    $("step").max = drafts.length;
    $("step").value = this.shown + 1;
    $("step").setAttribute("aria-valuetext", `draft ${draft.draft}, score ${short(draft.score)}, ${yes(draft.satisfied)}`);
    $("step").style.setProperty("--share", `${drafts.length > 1 ? (100 * this.shown) / (drafts.length - 1) : 100}%`);
    $("earlier").disabled = this.shown === 0;
    $("later").disabled = this.shown === drafts.length - 1;
    $("step-facts").textContent = [
      `step ${this.shown + 1} of ${drafts.length}`,
      ...(blocks ? [`block ${draft.block + 1}`] : []),
      `score ${short(draft.score)}`,
      draft.satisfied ? "as wished" : "not yet as wished",
      `${this.#perplexity} ${short(draft.perplexity)}`,
    ].join(" · ");
    $("tokens").replaceChildren(...tokens(draft.tokens));
    const biased = draft.tokens.some((token) => token.bias !== null && token.bias !== undefined);
    const changed = draft.tokens.some((token) => token.changed);
    $("tokens").classList.toggle("biased", biased);
    $("legend").replaceChildren(
      changed ? h("mark", {}, "changed") : "",
      changed ? " since the draft before. " : this.shown ? "Nothing changed since the draft before. " : "The first draft. ",
      biased ? "Under a token: what the sampler proposed for its place." : "",
    );
    prose($("best"), "", draft.best.text.trim(), true, false);
    facts($("best"), [`score ${short(draft.best.score)}`, yes(draft.best.satisfied), `${this.#perplexity} ${short(draft.best.perplexity)}`]);
    this.#curve();
    this.#table();
  }

  #curve() {
    const drafts = this.rows[this.current]?.drafts;
    if (!drafts?.length || !$("curve").clientWidth) return;
    const best = bestOf(drafts, this.shown);
    $("curve").replaceChildren(curve(drafts, this.shown, best, $("curve").clientWidth, (number) => this.#pick(number)));
  }

  #table() {
    const { drafts } = this.rows[this.current];
    const best = bestOf(drafts, drafts.length - 1);
    $("drafts").replaceChildren(
      ...drafts.map((draft, number) =>
        h("tr", { "aria-current": number === this.shown ? "true" : null },
          h("td", {}, h("button", { type: "button", class: "plain", onclick: () => this.#pick(number) }, String(draft.draft)), number === best ? " best" : ""),
          h("td", {}, short(draft.score)), h("td", {}, draft.satisfied ? "yes" : "no"), h("td", {}, short(draft.perplexity)), h("td", {}, draft.text)),
      ),
    );
  }
}

const yes = (satisfied) => (satisfied ? "as wished" : "not as wished");

/** Which draft is the best up to a step: the latest at which the best so far became another text. */
export function bestOf(drafts, until) {
  let found = until;
  while (found > 0 && drafts[found].block === drafts[found - 1].block && drafts[found].best.text === drafts[found - 1].best.text) found -= 1;
  return found;
}

/** The text so far: the best of every earlier block, and of the present one. */
function whole(drafts) {
  if (!drafts.length) return null;
  return drafts.filter((draft, number) => draft.block !== drafts[number + 1]?.block).map((draft) => draft.best.text).join("");
}

function say(shown, spoken = "") {
  $("status").replaceChildren(shown, h("span", { class: "spoken" }, spoken));
}

function prose(article, prompt, text, apart, writing) {
  article.querySelector(".prose").replaceChildren(
    ...(apart && prompt ? [h("span", { class: "said" }, prompt)] : [h("span", { class: "prompt" }, prompt)]),
    text === null ? h("span", { class: "awaited" }, apart ? "" : " ", writing ? "…" : "(not written)") : text,
  );
}

function facts(article, listed) {
  article.querySelector(".facts").textContent = listed.join(" · ");
}

function bar(part) {
  const share = part.probability ?? (part.satisfied ? 1 : Math.min(0.95, Math.max(0, part.score / FULL)));
  const fill = h("span", { class: "fill" });
  fill.style.setProperty("--share", `${100 * share}%`);
  return h("li", { class: part.satisfied ? "yes" : "no" },
    h("span", { class: "name" }, part.name),
    h("span", { class: "track", "aria-hidden": "true" }, fill),
    h("span", { class: "value" }, part.probability === null || part.probability === undefined ? `score ${short(part.score)}` : `p ${part.probability.toFixed(3)}`),
    h("span", { class: "verdict" }, part.satisfied ? "✓ yes" : "✗ no"));
}

/** Tokens as words that break only where the text does, each with its bias token under it. */
function tokens(listed) {
  const made = [];
  for (const { text, changed, bias } of listed) {
    const [, space, rest] = text.match(/^([^\S\n]*)([^]*)$/);
    const begins = /^\s/.test(text) || !made.length || made.at(-1).dataset.ends;
    if (begins) made.push(h("span", { class: "word" }));
    const under = bias === null || bias === undefined ? null : h("span", { class: "bias", "aria-hidden": "true", title: JSON.stringify(bias) }, bias.trim() || "␣");
    if (under && bias === text) under.classList.add("same");
    const shown = rest.replaceAll("\n", "↵") || space.replaceAll(" ", "␣");
    made.at(-1).append(rest && space, h("span", { class: "token" }, h(changed ? "mark" : "span", {}, shown), under ?? ""));
    if (/\s$/.test(text)) made.at(-1).dataset.ends = "yes";
    if (text.includes("\n")) made.push(h("br"), h("span", { class: "word" }));
  }
  return made;
}
