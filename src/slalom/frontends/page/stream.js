// A request's body to the events of its run; refusals become one plain sentence each.

/** What went wrong, in words for the visitor; `param` names the field, if the server did. */
export class Refusal extends Error {
  constructor(message, status = 0, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

/** What this server has: model, samplers, limits. */
export async function fetchProps(key) {
  const answer = await reach("/props", { headers: headers(key) });
  return answer.json();
}

/** The events of a run, each `{event, data}`, as they come; an abort ends it with an AbortError. */
export async function* steer(body, key, signal) {
  const answer = await reach("/v1/steer/stream", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream", ...headers(key) },
    body: JSON.stringify(body),
    signal,
  });
  let done = false;
  for await (const { event, data } of events(answer.body)) {
    if (event === "error") throw new Refusal(sentence(data.error?.message), 0, data.error?.param);
    done ||= event === "done";
    yield { event, data };
  }
  if (!done) throw new Refusal("The connection ended before the text was finished. Try again.");
}

async function reach(address, options) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached. Is it still running?");
  }
  if (!answer.ok) throw await refusal(answer, Boolean(options.headers.Authorization));
  return answer;
}

async function refusal(answer, withKey) {
  const said = await answer.json().then((json) => json.error ?? {}, () => ({}));
  const { status } = answer;
  return new Refusal(inWords(status, said, answer.headers.get("Retry-After"), withKey), status, said.param);
}

function inWords(status, said, wait, withKey) {
  if (status === 401 || status === 403) {
    return withKey
      ? "The server did not accept this API key. Check it and write again."
      : "This server asks for an API key. Type it below and write again.";
  }
  if (status === 429) {
    const seconds = Math.max(1, Math.ceil(Number(wait)));
    const when = Number.isFinite(seconds) ? `in ${seconds} ${seconds === 1 ? "second" : "seconds"}` : "in a moment";
    return `The server is busy with other texts. Try again ${when}.`;
  }
  if (status === 413) return "This is more text than the server takes in one request. Make it shorter.";
  if (status === 503) return "The server is starting or shutting down. Try again in a moment.";
  if (status === 504 && said.message) return sentence(said.message);
  if (status >= 500) return "Something went wrong in the server. Its log says what.";
  const message = sentence(said.message ?? `The server answered ${status}`);
  return said.param && !message.includes(said.param) ? `${said.param}: ${message}` : message;
}

function sentence(message) {
  const text = String(message ?? "The server could not write this text").trim();
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** Server-sent events of a body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const found = event(block);
        if (found) yield found;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The connection to the server was lost. Try again.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

function event(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event: name, data: JSON.parse(data.join("\n")) } : null;
}
