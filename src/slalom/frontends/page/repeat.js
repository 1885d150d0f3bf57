// Settings of a run to text that repeats it elsewhere: a command line, a Python program, a curl call.
import { toBody } from "./settings.js";

// In the order in which the specification sums constraints up.
const CONSTRAINTS = [
  ["sentiment", (run) => `slalom.Sentiment(${python(run.sentiment)})`],
  ["detoxify", () => `slalom.Toxicity("low")`],
  ["keywords", (run) => `slalom.Keywords(${python(run.keywords)}, ${python(run.mode ?? "any")})`],
  ["topic", (run) => `slalom.Topic(${python(run.topic)})`],
  ["avoid", (run) => `slalom.Avoid(${python(run.avoid)})`],
  ["classifier", (run) => `classifier(${python(run.classifier)}, ${python(run.label)})`],
  ["similar", (run) => `slalom.Similar(${python(run.similar)})`],
  ["regex", (run) => `slalom.Regex(${python(run.regex)})`],
  ["whole_sentences", () => "slalom.EndsWithSentence()"],
];
const OPTIONS = ["length", "samples", "seed", "stop", "sampler", "preset", "strength", "steps", "until", "select", "temperature", "top_p", "tell", "knobs"];
const OF_THE_SERVER = "is this server's name for it: put the classifier's folder or hub name here";

/** One word of a POSIX shell. */
export function quoted(text) {
  if (/^[\w@%+:,./-][\w@%+:,./=-]*$/.test(text)) return text;
  return `'${String(text).replaceAll("'", `'\\''`)}'`;
}

/** `slalom generate …`; a chat of several messages goes in as a TOML file. */
export function commandLine(run, server) {
  const words = ["slalom generate"];
  const last = [];
  if (run.messages) {
    const [first] = run.messages;
    if (run.messages.length === 1 && first.role === "user") words.push("--chat", ...prompt(first.content, last));
    else words.push(`--spec <(printf %s ${quoted(`prompts = [[${run.messages.map(toml).join(", ")}]]`)})`);
  } else {
    words.push(...prompt(run.prompt ?? "", last));
  }
  for (const [name, value] of Object.entries(run)) words.push(...flag(name, value));
  words.push("--compare", ...option("model", server.model), ...option("engine", server.engine), ...last);
  const note = run.classifier ? ` # ${quoted(run.classifier)} ${OF_THE_SERVER}` : "";
  return words.join(" ") + note;
}

function prompt(text, last) {
  if (!text.startsWith("-")) return [quoted(text)];
  last.push("--", quoted(text));
  return [];
}

function flag(name, value) {
  if (name === "prompt" || name === "messages") return [];
  if (name === "mode") return [value === "all" ? "--all" : "--any"];
  if (name === "tell") return typeof value === "string" ? option("tell-as", value) : [value ? "--tell" : "--no-tell"];
  if (name === "stop") return value.flatMap((one) => option("stop", one));
  if (name === "weights") return Object.entries(value).flatMap(([wish, one]) => option("weight", `${wish}=${one}`));
  if (name === "knobs") return Object.entries(value).flatMap(([knob, one]) => option("knob", `${knob}=${one}`));
  if (Array.isArray(value)) return option(name, value.join(","));
  return value === true ? [`--${name.replaceAll("_", "-")}`] : option(name, value);
}

function option(name, value) {
  if (value === undefined || value === null) return [];
  const text = String(value);
  const long = `--${name.replaceAll("_", "-")}`;
  return text.startsWith("-") ? [`${long}=${quoted(text)}`] : [long, quoted(text)];
}

const toml = ({ role, content }) => `{role = ${tomlString(role)}, content = ${tomlString(content)}}`;
const tomlString = (text) => JSON.stringify(text).replaceAll("\x7f", "\\u007f");

/** A program that loads the model and steers it. */
export function pythonProgram(run, server) {
  const parts = CONSTRAINTS.filter(([name]) => run[name]).map(([name, made]) => weighed(run.weights?.[name], made(run)));
  const options = OPTIONS.filter((name) => run[name] !== undefined).map((name) => `    ${name}=${python(run[name])},`);
  const loaded = [server.model && python(server.model), server.engine && `engine=${python(server.engine)}`];
  return [
    "import slalom",
    ...(run.classifier ? ["from slalom.constraints import classifier"] : []),
    "",
    `lm = slalom.load(${loaded.filter(Boolean).join(", ")})`,
    ...(run.classifier ? [`# ${python(run.classifier)} ${OF_THE_SERVER}`] : []),
    `wish = ${parts.join(" + ") || "None"}`,
    "out = lm.steer(",
    `    ${python(run.messages ?? run.prompt ?? "")},`,
    "    wish,",
    "    compare=True,",
    ...options,
    ")",
    "for row in out.rows:",
    "    print(row.prompt + row.text, row.satisfied, row.perplexity)",
  ].join("\n");
}

const weighed = (weight, made) => (weight === undefined ? made : `${python(weight)} * ${made}`);

/** A value as a Python literal: JSON's, but for the three words and what a line may not hold. */
function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null || value === undefined) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${python(name)}: ${python(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** A call of the OpenAI-compatible endpoint; the key comes from the environment, never from the page. */
export function curlCall(run, server, origin, withKey) {
  const path = run.messages ? "/v1/chat/completions" : "/v1/completions";
  const body = { ...(server.model ? { model: server.model } : {}), ...toBody(run) };
  return [
    `curl ${quoted(origin + path)}`,
    "  -H 'Content-Type: application/json'",
    ...(withKey ? ['  -H "Authorization: Bearer $SLALOM_API_KEY"'] : []),
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n");
}
