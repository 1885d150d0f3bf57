// Settings of a run, a flat object named as the specification's fields, to a link and back, and to a request's body.
// What is not set is left out, and the server's preset decides.

const LISTS = ["keywords", "avoid"]; // comma-separated, as on the command line
const FLAGS = ["detoxify", "whole_sentences"];
const NUMBERS = ["strength", "steps", "length", "temperature", "top_p", "until", "samples", "seed"];
const WORDS = ["sentiment", "mode", "topic", "similar", "regex", "classifier", "label", "sampler", "preset", "select"];
const OBJECTS = ["weights", "knobs"]; // by name, as JSON
const OPENAI = { length: "max_tokens", samples: "n", seed: "seed", stop: "stop", temperature: "temperature", top_p: "top_p" };

export const weightId = (wish) => `weight-${wish}`; // of the box on the form
export const splitWords = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);

/** The settings as what stands after # in an address. */
export function toLink(run) {
  const link = new URLSearchParams();
  const put = (name, value) => value !== undefined && link.set(name, value);
  if (run.messages) put("messages", JSON.stringify(run.messages));
  else put("prompt", run.prompt);
  for (const name of [...WORDS, ...NUMBERS]) put(name, run[name]);
  for (const name of LISTS) put(name, run[name]?.join(","));
  for (const name of FLAGS) put(name, run[name] ? "yes" : undefined);
  if (typeof run.tell === "boolean") put("tell", run.tell ? "yes" : "no");
  else put("tell_as", run.tell);
  if (run.stop) put("stop", JSON.stringify(run.stop));
  for (const name of OBJECTS) if (run[name]) put(name, JSON.stringify(run[name]));
  return link.toString();
}

/** The settings of a link; what cannot be read is left out. */
export function fromLink(text) {
  const link = new URLSearchParams(text.replace(/^#/, ""));
  const run = {};
  for (const name of ["prompt", ...WORDS]) if (link.has(name)) run[name] = link.get(name);
  for (const name of NUMBERS) {
    const value = link.get(name);
    if (value !== null && value.trim() !== "" && Number.isFinite(Number(value))) run[name] = Number(value);
  }
  for (const name of LISTS) if (link.has(name)) run[name] = splitWords(link.get(name));
  for (const name of FLAGS) if (link.get(name) === "yes") run[name] = true;
  if (link.has("tell_as")) run.tell = link.get("tell_as");
  else if (link.has("tell")) run.tell = link.get("tell") === "yes";
  const messages = parsed(link.get("messages"));
  if (Array.isArray(messages)) {
    run.messages = messages
      .filter((one) => one && typeof one === "object")
      .map(({ role, content }) => ({ role: String(role ?? "user"), content: String(content ?? "") }));
  }
  const stop = parsed(link.get("stop"));
  if (Array.isArray(stop)) run.stop = stop.map(String);
  for (const name of OBJECTS) {
    const value = parsed(link.get(name));
    if (value && typeof value === "object" && !Array.isArray(value)) run[name] = value;
  }
  return run;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** The settings as a request's body: OpenAI's fields, and ours in `slalom`. */
export function toBody(run) {
  const body = {};
  const ours = {};
  for (const [name, value] of Object.entries(run)) {
    if (name === "prompt" || name === "messages") body[name] = value;
    else if (name in OPENAI) body[OPENAI[name]] = value;
    else ours[name] = value;
  }
  return { ...body, slalom: ours };
}

/** The setting that a server's error speaks of: `slalom.top_p`, `slalom.weights.topic` or `max_tokens`, say. */
export function settingOf(param) {
  const [word, part] = String(param).replace(/^(body\.)?(slalom\.)?/, "").split(/[.[]/);
  if (word === "weights" && part) return weightId(part);
  if (word === "knobs" && part) return `knob-${part}`;
  return Object.keys(OPENAI).find((name) => OPENAI[name] === word) ?? word;
}

/** Whether there is anything to steer towards. */
export const hasWish = (run) =>
  ["sentiment", "keywords", "topic", "avoid", "classifier", "similar", "regex", ...FLAGS].some((name) => run[name]);
