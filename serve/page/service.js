// Talks to the service over HTTP. The rest of the page sees its answers and its own sentences.

const at = (path) => new URL(path, document.baseURI);

export const key = {
  get: () => sessionStorage.getItem("key") ?? "",
  set: (value) => sessionStorage.setItem("key", value),
};

export class ServiceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The key in UTF-8, a character a byte, as headers and btoa take it. */
const keyBytes = () => String.fromCharCode(...new TextEncoder().encode(key.get()));

async function ask(path, options = {}) {
  const headers = key.get() ? { authorization: `Bearer ${keyBytes()}` } : {};
  let reply;
  try {
    reply = await fetch(at(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service cannot be reached: is it still running?");
  }
  const body = await reply.json().catch(() => null);
  if (reply.ok && body) return body;
  const reason = body?.error?.message ?? `the service answered ${reply.status} without a reason`;
  throw new ServiceError(reason, reply.status);
}

/** The names of the models that are served. */
export const models = async () => (await ask("v1/models")).data.map((model) => model.id);

/** What a recording says: text, segments with their tokens, n best, duration, warnings. */
export function transcribe(file, model, signal) {
  const body = new FormData();
  body.set("model", model);
  body.set("file", file, file.name);
  return ask("v1/transcribe", { method: "POST", body, signal });
}

/** A WebSocket has no headers; the key goes as the name of a subprotocol. */
function protocols() {
  if (!key.get()) return ["lrt-asr"];
  return ["lrt-asr", `bearer.${btoa(keyBytes()).replace(/[+/=]/g, (c) => ({ "+": "-", "/": "_" })[c] ?? "")}`];
}

/** A live session; `on` has partial(text), final(segment, nbest), end({duration}), failed(reason). */
export class Live {
  constructor(sampleRate, model, on) {
    this.on = on;
    const url = at("v1/live");
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url, protocols());
    this.waiting = [JSON.stringify({ sample_rate: sampleRate, model })];
    this.socket.onopen = () => {
      for (const message of this.waiting.splice(0)) this.socket.send(message);
    };
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = () => this.close("the live connection was lost");
  }

  receive(message) {
    if (message.error) this.close(message.error.message);
    if (message.type === "partial") this.on?.partial(message.text);
    if (message.type === "final") this.on?.final(message.segment, message.nbest);
    if (message.type === "end") {
      this.on?.end(message);
      this.close();
    }
  }

  /** Nothing more is sent or told, but the reason if there is one. */
  close(reason) {
    const on = this.on;
    this.on = null;
    this.socket.close();
    if (reason) on?.failed(reason);
  }

  send(message) {
    if (!this.on) return;
    if (this.socket.readyState === WebSocket.CONNECTING) this.waiting.push(message);
    else this.socket.send(message);
  }

  end() {
    this.send(JSON.stringify({ type: "end" }));
  }
}
