// Requests to the service; its errors come with a sentence.

import { t } from "./i18n.js";

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

/** The key in UTF-8, a character per byte, for headers and btoa. */
const keyBytes = () => String.fromCharCode(...new TextEncoder().encode(key.get()));

async function ask(path, options = {}) {
  const headers = key.get() ? { authorization: `Bearer ${keyBytes()}` } : {};
  const reply = await reached(fetch(at(path), { ...options, headers }));
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  const reason = body?.error?.message ?? t("the service answered {0} without a reason", reply.status);
  throw new ServiceError(reason, reply.status);
}

/** The outcome of a network operation, with a sentence of ours where the connection fails. */
async function reached(operation) {
  try {
    return await operation;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(t("The service cannot be reached: is it still running?"));
  }
}

/** The names of the models that are served. */
export const models = async () => {
  const reply = await ask("v1/models");
  return (await reply.json()).data.map((model) => model.id);
};

/**
 * The transcript of a recording: text, segments with their words and n best, subtitles, duration,
 * warnings. `onDelta` gets more text and the fraction of the recording that is done.
 */
export async function transcribe(file, model, signal, onDelta) {
  const body = new FormData();
  body.set("model", model);
  body.set("file", file, file.name);
  body.set("stream", "true");
  const reply = await ask("v1/transcribe", { method: "POST", body, signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let received = "";
  for (;;) {
    const { done, value } = await reached(reader.read());
    if (done) throw new ServiceError(t("The service cannot be reached: is it still running?"));
    const events = (received + value).split("\n\n");
    received = events.pop();
    for (const event of events.map((text) => JSON.parse(text.slice("data: ".length)))) {
      if (event.error) throw new ServiceError(event.error.message);
      if (event.type === "transcript.done") return event;
      onDelta(event.delta, event.progress);
    }
  }
}

/** A WebSocket has no headers; the key goes as the name of a subprotocol. */
function protocols() {
  if (!key.get()) return ["lrt-asr"];
  return ["lrt-asr", `bearer.${btoa(keyBytes()).replace(/[+/=]/g, (c) => ({ "+": "-", "/": "_" })[c] ?? "")}`];
}

/** A live session; `on` has partial(text), final(segment), end({text, srt, vtt, duration}), failed(reason). */
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
    this.socket.onclose = () => this.close(t("the live connection was lost"));
  }

  receive(message) {
    if (message.error) this.close(message.error.message);
    if (message.type === "partial") this.on?.partial(message.text);
    if (message.type === "final") this.on?.final(message.segment);
    if (message.type === "end") {
      this.on?.end(message);
      this.close();
    }
  }

  /** Ends the session, with the reason of a failure if there is one. */
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
