// The recognizer in a thread of its own. It gets {config, weights} first, then {id, wave, rate} or
// {cancel: id}; it answers with {id, delta, progress}, and {id, result} or {id, error} at the end.
// Of a stream it gets {live: id, rate}, then {id, samples} of 16 bits, and {id, isEnd} with the last;
// it answers with {id, partial}, {id, final}, and {id, end} or {id, error}.

import { Recognizer, transcript } from "./recognizer.js";
import { Session } from "./stream.js";
import { fromBase64, readWeights } from "./weights.js";

const cancelled = new Set();
let recognizer = null;
let last = Promise.resolve();
let live = null; // {id, session, rate, segments, length}

/** Lets messages arrive. */
const pause = () => new Promise((resolve) => setTimeout(resolve));

function compiled(base64) {
  try {
    return new WebAssembly.Module(fromBase64(base64));
  } catch {
    return null; // without SIMD, JavaScript computes the same more slowly
  }
}

async function recognize({ id, wave, rate }) {
  const segments = [];
  try {
    const parts = recognizer.segments(wave, rate);
    for (;;) {
      await pause();
      if (cancelled.delete(id)) return;
      const { value, done } = parts.next(); // computes
      if (done) break;
      const { segment, progress } = value;
      segments.push(segment);
      postMessage({ id, delta: segments.length > 1 ? ` ${segment.text}` : segment.text, progress });
    }
    postMessage({ id, result: transcript(segments, wave.length / rate) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
}

function begin(id, rate) {
  live = { id, rate, session: new Session(recognizer, rate), segments: [], length: 0 };
}

/** Takes the next samples of a stream, and computes. */
function extend({ id, samples = [], isEnd = false }) {
  if (live?.id !== id) return; // cancelled
  try {
    live.length += samples.length;
    for (const { text, segment } of live.session.feed(Float32Array.from(samples, (x) => x / 2 ** 15), isEnd)) {
      if (segment) live.segments.push(segment);
      postMessage(segment ? { id, final: segment } : { id, partial: text });
    }
    if (isEnd) postMessage({ id, end: transcript(live.segments, live.length / live.rate) });
  } catch (error) {
    live = null;
    postMessage({ id, error: error.message });
  }
}

addEventListener("message", ({ data }) => {
  if (data.config) recognizer = new Recognizer(data.config, readWeights(data.weights, data.config.weights), compiled(data.config.kernel));
  else if (data.live) begin(data.live, data.rate);
  else if (data.samples || data.isEnd) extend(data);
  else if (data.cancel && data.cancel === live?.id) live = null;
  else if (data.cancel) cancelled.add(data.cancel);
  else last = last.then(() => recognize(data));
});
