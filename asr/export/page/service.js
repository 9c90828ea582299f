// What serve/page/service.js is to the page of a service: here a worker of the page recognizes.

import { readWav } from "./audio.js";
import { t } from "./i18n.js";

const LOWEST_RATE = 8000; // that browsers decode to

const read = (id) => document.getElementById(id).textContent;
const config = JSON.parse(read("config"));
const worker = new Worker(URL.createObjectURL(new Blob([read("recognizer")], { type: "text/javascript" })));
worker.postMessage({ config, weights: read("weights").trim() });
const broken = new Promise((_, reject) => {
  worker.addEventListener("error", ({ message }) => reject(new Error(t("This browser cannot recognize: {0}", message))));
});
broken.catch(() => {}); // it is told where a recording waits

/** The script of the audio thread; to a page of a file, one at a blob's address would be foreign. */
export const captureUrl = () => `data:text/javascript,${encodeURIComponent(read("capture"))}`;

/** No key is needed. */
export const key = { get: () => "", set: () => {} };

/** The name of the one model. */
export const models = async () => [config.name];

let jobs = 0;

/** The transcript of a recording; `onDelta` gets more text and the fraction that is done. */
export async function transcribe(file, model, signal, onDelta) {
  const { wave, rate } = await decoded(file);
  signal.throwIfAborted();
  const id = ++jobs;
  const recognized = new Promise((resolve, reject) => {
    const receive = ({ data }) => {
      if (data.id !== id) return;
      if (data.progress) return onDelta(data.delta, data.progress);
      worker.removeEventListener("message", receive);
      if (data.result) resolve(data.result);
      else reject(new Error(data.error));
    };
    worker.addEventListener("message", receive);
    signal.addEventListener("abort", () => {
      worker.removeEventListener("message", receive);
      worker.postMessage({ cancel: id });
      reject(signal.reason);
    });
    worker.postMessage({ id, wave, rate }, [wave.buffer]);
  });
  return Promise.race([recognized, broken]);
}

/** Mono samples and their rate: of a WAV file as they are, of others as the browser decodes them. */
async function decoded(file) {
  const content = await file.arrayBuffer();
  const found = readWav(new Uint8Array(content)) ?? (await decodedByBrowser(file.name, content));
  if (!found.wave.length) throw new Error(t("{0} holds no audio at all: record it again", file.name));
  if (!found.wave.every(Number.isFinite)) {
    throw new Error(t("{0} holds samples that are NaN or infinite: record or export it again", file.name));
  }
  return found;
}

async function decodedByBrowser(name, content) {
  const rate = Math.max(LOWEST_RATE, config.features.sample_rate);
  try {
    const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(content);
    const channels = Array.from({ length: sound.numberOfChannels }, (_, c) => sound.getChannelData(c));
    const mean = (_, i) => channels.reduce((sum, samples) => sum + samples[i], 0) / channels.length;
    return { wave: Float32Array.from({ length: sound.length }, mean), rate };
  } catch {
    throw new Error(t("{0} is not a recording that this browser reads: give wav, flac, ogg or mp3", name));
  }
}

/**
 * Live text of the microphone, where the model streams; elsewhere a recording is transcribed when it
 * ends. `on` is that of serve/page/service.js.
 */
export class Live {
  constructor(sampleRate, model, on) {
    this.on = on;
    if (!config.model.encoder.streaming) return;
    this.id = ++jobs;
    this.receive = ({ data }) => {
      if (data.id !== this.id) return;
      if (data.partial) on.partial(data.partial);
      if (data.final) on.final(data.final);
      if (data.end || data.error) this.close();
      if (data.end) on.end(data.end);
      if (data.error) on.failed(data.error);
    };
    worker.addEventListener("message", this.receive);
    worker.postMessage({ live: this.id, rate: sampleRate });
    broken.catch(({ message }) => this.id && on.failed(message));
  }

  send(samples) {
    if (this.id) worker.postMessage({ id: this.id, samples });
  }

  end() {
    if (this.id) worker.postMessage({ id: this.id, isEnd: true });
    else this.on.failed();
  }

  close() {
    if (!this.id) return;
    worker.removeEventListener("message", this.receive);
    worker.postMessage({ cancel: this.id });
    this.id = null;
  }
}
