// Text of a waveform while it arrives (asr/transcription/stream.py): encoder chunks, the most likely
// path along with them, and the prefix beam search where a segment ends.

import { joined, Resampler } from "./audio.js";
import { FRAMES_PER_STEP } from "./recognizer.js";

const BLANK = 0, FIRST = 4; // of the tokens that are said

/** The most likely path of steps that come in blocks, collapsed: its tokens and the last one's end. */
class GreedyPath {
  constructor() {
    [this.tokens, this.steps, this.end, this.last] = [[], 0, 0, BLANK];
  }

  extend({ logp, S, V }) {
    for (let s = 0; s < S; s++) {
      let best = BLANK;
      for (let v = FIRST; v < V; v++) if (logp[s * V + v] > logp[s * V + best]) best = v;
      this.steps++;
      if (best !== BLANK && best !== this.last) this.tokens.push(best);
      if (best !== BLANK) this.end = this.steps;
      this.last = best;
    }
  }

  get trailingBlanks() {
    return this.steps - this.end;
  }
}

export class Session {
  /** `rate` is that of the samples that come. */
  constructor(recognizer, rate) {
    const { features, model, endpoint } = recognizer.config;
    this.recognizer = recognizer;
    this.endpoint = endpoint;
    this.chunk = model.encoder.streaming.chunk;
    this.resampler = new Resampler(rate, features.sample_rate);
    this.stepSamples = FRAMES_PER_STEP * features.hop;
    [this.offset, this.isEnded] = [0, false];
    this.begin(new Float32Array());
  }

  /** Begins a segment, of which so much is known. */
  begin(wave) {
    const { network, features } = this.recognizer;
    [this.wave, this.arrived, this.samples] = [wave, [], wave.length];
    this.tail = new Float32Array(network.frontend.edges.before * features.F);
    [this.frames, this.shown, this.logps] = [0, 0, []];
    [this.path, this.past, this.power] = [new GreedyPath(), new Map(), []];
  }

  /** Takes samples from -1 to 1, or `isEnd` the last ones; yields what is new: {text} or {segment}. */
  *feed(wave, isEnd = false) {
    const own = this.resampler.push(wave, isEnd);
    this.arrived.push(own);
    this.samples += own.length;
    this.isEnded = isEnd;
    while (this.nextSteps()) yield* this.advance();
    if (isEnd && this.path.steps) yield* this.final(this.path.steps);
  }

  /** The number of steps that the next chunk has by now. */
  nextSteps() {
    const { features, network: { frontend } } = this.recognizer, done = this.path.steps;
    const frames = FRAMES_PER_STEP * (done + this.chunk) + frontend.edges.after;
    if (this.samples >= features.sampleCount(frames)) return this.chunk;
    if (!this.isEnded) return 0;
    return Math.min(frontend.steps(features.frameCount(this.samples)) - done, this.chunk);
  }

  /** Computes the next chunk; beyond the end of the stream its frames are zero. */
  *advance() {
    const { features, network } = this.recognizer, { F } = features, { edges } = network.frontend;
    const steps = this.nextSteps();
    [this.wave, this.arrived] = [joined([this.wave, ...this.arrived]), []];
    let until = FRAMES_PER_STEP * (this.path.steps + steps) + edges.after;
    if (this.isEnded) until = Math.min(until, features.frameCount(this.samples));
    const T = edges.before + FRAMES_PER_STEP * steps + edges.after, feats = new Float32Array(T * F);
    feats.set(this.tail);
    if (until > this.frames) feats.set(features.frames(this.wave, this.frames, until), this.tail.length);
    [this.frames, this.tail] = [until, feats.slice(FRAMES_PER_STEP * steps * F)];
    yield* this.take(this.recognizer.logProbs(feats, T, F, this.past));
  }

  *take(encoded) {
    const { path, endpoint, recognizer: { stepSeconds } } = this;
    this.logps.push(encoded.logp);
    this.V = encoded.V;
    const first = path.steps;
    path.extend(encoded);
    for (let step = first; step < path.steps; step++) this.power.push(this.powerOf(step));
    const blanks = path.trailingBlanks * stepSeconds, quiet = quietSteps(this.power) * stepSeconds;
    const hasText = path.tokens.length > 0 && !this.isSilent(path.steps);
    if (!isReached(endpoint, path.steps * stepSeconds, blanks, hasText, quiet)) {
      if (!hasText || path.tokens.length === this.shown) return;
      this.shown = path.tokens.length;
      yield { text: this.recognizer.text(path.tokens) };
      return;
    }
    // The next segment begins in the silence: a word that has begun unnoticed is not cut.
    const most = Math.round(endpoint.silence_seconds / stepSeconds);
    yield* this.final(path.steps - Math.floor(Math.min(path.trailingBlanks, most) / 2));
  }

  /** Whether so many steps of the segment are digital silence, which has no text. */
  isSilent(steps) {
    const wave = this.wave.subarray(0, steps * this.stepSamples);
    return wave.every((sample) => sample === wave[0]);
  }

  /** The variance of the samples of a step; beyond the end they are 0. */
  powerOf(step) {
    const size = this.stepSamples;
    let sum = 0, squares = 0;
    for (const x of this.wave.subarray(step * size, (step + 1) * size)) {
      sum += x;
      squares += x * x;
    }
    return Math.max(0, squares / size - (sum / size) ** 2);
  }

  /** Ends a segment after so many steps, and begins the next one there. */
  *final(S) {
    const { recognizer, V, offset, stepSamples } = this;
    const logp = joined(this.logps).subarray(0, S * V), rate = recognizer.config.features.sample_rate;
    const cut = Math.min(S * stepSamples, this.samples), wasShown = this.shown > 0;
    const nbest = recognizer.decode(this.isSilent(S) ? null : { logp, S, V });
    const segment = recognizer.timed(nbest, offset / rate, (offset + cut) / rate);
    this.offset += cut;
    this.begin(joined([this.wave, ...this.arrived]).slice(cut));
    if (wasShown || segment.text) yield { segment };
  }
}

// A step is quiet whose power is 15 dB or more below the loudest; blanks that are not quiet count less.
const QUIET = 10 ** -1.5, IN_NOISE = 0.4;

/** The steps at the end of a segment that are quiet beside its loudest one (asr/decoding/endpoint.py). */
function quietSteps(power) {
  const limit = QUIET * power.reduce((a, b) => Math.max(a, b), 0);
  let n = 0;
  while (n < power.length && power[power.length - 1 - n] < limit) n++;
  return n;
}

/** Whether a segment of so many seconds ends after so many of blanks and of quiet audio at its end. */
function isReached({ silence_seconds, idle_seconds, longest_seconds }, seconds, blanks, hasText, quiet) {
  if (!hasText) return seconds >= idle_seconds;
  const left = 1 - seconds / longest_seconds, silence = Math.max(Math.min(blanks, quiet), IN_NOISE * blanks);
  return silence >= silence_seconds * Math.min(1, Math.max(0, 2 * left));
}
