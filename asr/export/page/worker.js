// The recognizer in a thread of its own. It gets {config, weights} first, then {id, wave, rate} or
// {cancel: id}; it answers with {id, delta, progress}, and {id, result} or {id, error} at the end.

import { Recognizer, transcript } from "./recognizer.js";
import { fromBase64, readWeights } from "./weights.js";

const cancelled = new Set();
let recognizer = null;
let last = Promise.resolve();

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

addEventListener("message", ({ data }) => {
  if (data.config) recognizer = new Recognizer(data.config, readWeights(data.weights, data.config.weights), compiled(data.config.kernel));
  else if (data.cancel) cancelled.add(data.cancel);
  else last = last.then(() => recognize(data));
});
