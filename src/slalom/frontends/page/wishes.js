// What a text can be asked to be like: each constraint's title, and settings to its controls.
import { h } from "./dom.js";

const SENTIMENTS = ["positive", "neutral", "negative"];

// By field of the specification; `make` returns the controls. What is `strict` has no weight, and says why.
export const WISHES = {
  sentiment: { title: "Sentiment", make: (run) => [choice("sentiment", "Sentiment", SENTIMENTS, run.sentiment ?? "negative")] },
  keywords: {
    title: "Keywords",
    make: (run) => [
      words("keywords", "Keywords", run.keywords, "kayak, sunrise"),
      choice("mode", "How many of them", ["any", "all"], run.mode ?? "any"),
    ],
  },
  topic: { title: "Topic", make: (run, server) => [words("topic", "Topic", run.topic, "space, or words of one", server.topics)] },
  avoid: {
    title: "Avoid",
    make: (run) => [words("avoid", "Words to avoid", run.avoid, "moon, stars")],
    strict: "Never written, so there is nothing to weigh.",
  },
  detoxify: { title: "Not toxic", make: () => [] },
  similar: { title: "Similar to", make: (run) => [words("similar", "Similar to", run.similar, "a text to be like in meaning")] },
  regex: { title: "Pattern", make: (run) => [words("regex", "Regular expression", run.regex, "[0-9]+ euros")] },
  whole_sentences: { title: "Whole sentences", make: () => [] },
  classifier: { title: "Classifier", make: classifier },
};

function words(name, label, value, placeholder, suggested) {
  const list = suggested?.length ? h("datalist", { id: `${name}-list` }, ...suggested.map((one) => h("option", { value: one }))) : null;
  const input = h("input", { type: "text", id: name, "aria-label": label, placeholder, list: list && list.id });
  input.value = Array.isArray(value) ? value.join(", ") : (value ?? "");
  return h("span", { class: "grow" }, input, list);
}

/** A drop-down; a value that is not offered is added, for the server to judge. */
export function choice(name, label, options, value) {
  const made = h("select", { id: name, "aria-label": label }, ...options.map((one) => h("option", { value: one }, one)));
  if (value !== undefined && !options.includes(value)) made.append(h("option", { value }, value));
  made.value = value ?? options[0];
  return made;
}

function classifier(run, server) {
  const known = server.classifiers ?? [];
  const labels = (name) => (known.find((one) => one.name === name)?.labels ?? []).map(String);
  const name = run.classifier ?? known[0]?.name ?? "";
  const label = h("span", {}, choice("label", "Label", labels(name), run.label));
  const which = choice("classifier", "Classifier", known.map((one) => one.name), name);
  which.addEventListener("change", () => label.replaceChildren(choice("label", "Label", labels(which.value))));
  return [which, label];
}
