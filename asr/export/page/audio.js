// Waveforms: WAV files, another sample rate, and cuts at silences.

const LOWEST = 1000, HIGHEST = 384000; // Hz of a recording

/** Mono samples and their rate, as {wave, rate}, of a WAV file of PCM; null for other files. */
export function readWav(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const word = (at) => String.fromCharCode(...bytes.subarray(at, at + 4));
  if (bytes.length < 12 || word(0) !== "RIFF" || word(8) !== "WAVE") return null;
  let format = null;
  for (let at = 12; at + 8 <= bytes.length; ) {
    const size = view.getUint32(at + 4, true), start = at + 8;
    if (word(at) === "fmt " && size >= 16 && start + size <= bytes.length) {
      const tag = view.getUint16(start, true);
      format = {
        // An extensible format says its kind later.
        kind: tag === 0xfffe && size >= 26 ? view.getUint16(start + 24, true) : tag,
        channels: view.getUint16(start + 2, true),
        rate: view.getUint32(start + 4, true),
        bits: view.getUint16(start + 14, true),
      };
    }
    if (word(at) === "data") return format && samples(view, start, Math.min(size, bytes.length - start), format);
    at = start + size + (size % 2);
  }
  return null;
}

function samples(view, start, size, { kind, channels, rate, bits }) {
  const read = {
    "1 8": (at) => (view.getUint8(at) - 128) / 128,
    "1 16": (at) => view.getInt16(at, true) / 2 ** 15,
    "1 24": (at) => ((view.getUint8(at) << 8) | (view.getUint16(at + 1, true) << 16)) / 2 ** 31,
    "1 32": (at) => view.getInt32(at, true) / 2 ** 31,
    "3 32": (at) => view.getFloat32(at, true),
    "3 64": (at) => view.getFloat64(at, true),
  }[`${kind} ${bits}`];
  if (!read || !channels || rate < LOWEST || rate > HIGHEST) return null;
  const bytes = bits / 8;
  const wave = new Float32Array(Math.floor(size / bytes / channels));
  for (let i = 0, at = start; i < wave.length; i++) {
    let sum = 0;
    for (let c = 0; c < channels; c++, at += bytes) sum += read(at);
    wave[i] = sum / channels;
  }
  return { wave, rate };
}

const PASSED = 0.913; // the share of the lower rate's band that stays, as in soxr's HQ
const REJECTION = 126; // dB
const MOST_PHASES = 4096;

/** A filter for another rate: a sinc with Kaiser's window (Kaiser 1974). */
class Interpolation {
  constructor(from, to) {
    [this.over, this.under] = [to / gcd(from, to), from / gcd(from, to)];
    this.phases = Math.min(this.over, MOST_PHASES);
    this.lower = Math.min(from, to) / from;
    this.reach = kaiserReach(this.lower);
    this.filters = new Map();
  }

  /** Samples at the other rate of a waveform that begins with sample `offset`. */
  samples(wave, offset, begin, end) {
    const { over, under, phases, lower, reach, filters } = this;
    return Float32Array.from({ length: end - begin }, (_, i) => {
      const position = ((begin + i) * under) / over;
      let whole = Math.floor(position), phase = Math.round((position - whole) * phases);
      if (phase === phases) [whole, phase] = [whole + 1, 0];
      if (!filters.has(phase)) filters.set(phase, kaiserSinc(lower, phase / phases));
      const taps = filters.get(phase), first = whole - reach + 1 - offset;
      let sum = 0;
      const last = Math.min(taps.length, wave.length - first);
      for (let k = Math.max(0, -first); k < last; k++) sum += taps[k] * wave[first + k];
      return sum;
    });
  }

  /** The number of samples of so many. */
  count(samples) {
    return Math.max(1, Math.round((samples * this.over) / this.under));
  }
}

/** A waveform at another rate: its length, and `read`, which computes samples from one to another. */
export function resampled(wave, from, to) {
  if (from === to) return { length: wave.length, read: (begin, end) => wave.subarray(begin, end) };
  const filter = new Interpolation(from, to);
  return { length: filter.count(wave.length), read: (begin, end) => filter.samples(wave, 0, begin, end) };
}

/** A waveform at another rate while it arrives: the same samples as of the whole. */
export class Resampler {
  constructor(from, to) {
    this.filter = from === to ? null : new Interpolation(from, to);
    [this.held, this.offset, this.made] = [new Float32Array(), 0, 0];
  }

  /** The samples that are known with the next ones, or `isEnd` with the last. */
  push(wave, isEnd = false) {
    if (!this.filter) return wave;
    const { reach, over, under } = this.filter;
    this.held = joined([this.held, wave]);
    const arrived = this.offset + this.held.length;
    const known = isEnd ? arrived && this.filter.count(arrived) : Math.floor(((arrived - reach - 1) * over) / under);
    const found = this.filter.samples(this.held, this.offset, this.made, Math.max(this.made, known));
    this.made += found.length;
    const unneeded = Math.floor((this.made * under) / over) - reach - this.offset;
    if (unneeded > 0) {
      this.held = this.held.slice(unneeded);
      this.offset += unneeded;
    }
    return found;
  }
}

/** Arrays of numbers as one. */
export function joined(parts) {
  const whole = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const kaiserReach = (lower) => Math.ceil((REJECTION - 8) / (2.285 * Math.PI * (1 - PASSED) * lower) / 2);

/** The weights of the samples around a time that is `after` the one in their middle. */
function kaiserSinc(lower, after) {
  const cutoff = (lower * (1 + PASSED)) / 2;
  const reach = kaiserReach(lower);
  const beta = 0.1102 * (REJECTION - 8.7);
  return Float64Array.from({ length: 2 * reach }, (_, i) => {
    const x = i - reach + 1 - after;
    const inside = 1 - (x / reach) ** 2;
    return inside <= 0 ? 0 : (cutoff * sinc(cutoff * x) * bessel(beta * Math.sqrt(inside))) / bessel(beta);
  });
}

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const sinc = (x) => (x ? Math.sin(Math.PI * x) / (Math.PI * x) : 1);

/** The modified Bessel function of order 0. */
function bessel(x) {
  let sum = 1, term = 1;
  for (let k = 1; term > 1e-17 * sum; k++) sum += term *= (x / 2 / k) ** 2;
  return sum;
}

/** The parts of what `resampled` returns, cut in quiet places (asr/audio/segmentation.py). */
export function* cutAtSilence({ length, read }, rate, maxSeconds) {
  const hop = Math.floor(rate / 100), longest = Math.floor(maxSeconds * rate);
  let held = new Float32Array();
  for (let start = 0, cut; start < length; start += cut) {
    const part = new Float32Array(Math.min(longest, length - start));
    part.set(held);
    part.set(read(start + held.length, start + part.length), held.length);
    cut = length - start > longest ? quietest(part, hop) : part.length;
    yield part.subarray(0, cut);
    held = part.subarray(cut);
  }
}

/** The middle of the quietest ten hops in the second half of a waveform. */
function quietest(wave, hop) {
  const first = Math.ceil(Math.floor(wave.length / 2) / hop);
  const power = [];
  for (let i = first; i < Math.floor(wave.length / hop); i++) {
    power.push(wave.subarray(i * hop, (i + 1) * hop).reduce((sum, x) => sum + x * x, 0));
  }
  let best = 0, least = Infinity;
  for (let i = 0; i + 10 <= power.length; i++) {
    const sum = power.slice(i, i + 10).reduce((a, b) => a + b);
    if (sum <= least) [least, best] = [sum, i]; // of equally quiet ones the last
  }
  return (first + best + 5) * hop;
}
