// A waveform to its transcript, as `asr transcribe --method ctc_beam` writes it.

import { cutAtSilence, resampled } from "./audio.js";
import { align, textLogProb, timedTokens } from "./ctc.js";
import { Fbank } from "./fbank.js";
import { Features } from "./features.js";
import { Memory } from "./memory.js";
import { Network } from "./network.js";
import { NGram } from "./ngram.js";
import { PrefixBeam } from "./prefix_beam.js";
import { asSrt, asVtt, cuesOf, evenly, joinTexts, normalized, tenths, tidy, withoutMarks, wordsOf } from "./subtitles.js";

export const FRAMES_PER_STEP = 4;
const SPACE = "▁"; // in tokens

export class Recognizer {
  /** `config` is what asr/export/html.py writes; `kernel` a compiled gemm.wat, or null. */
  constructor(config, weights, kernel = null) {
    this.config = config;
    this.features = new (config.features.kind === "fbank" ? Fbank : Features)(config.features, weights);
    this.memory = new Memory(kernel);
    this.network = new Network(this.memory, weights, config.model);
    this.lm = config.lm && new NGram(weights, config.lm);
  }

  /** Yields {segment, progress} of the parts of a waveform, one after the other. */
  *segments(wave, rate) {
    const { sample_rate: ours } = this.config.features;
    const whole = resampled(wave, rate, ours);
    let start = 0;
    for (const part of cutAtSilence(whole, ours, this.config.chunk_seconds)) {
      const end = start + part.length;
      yield { segment: this.segment(part, start / ours, end / ours), progress: end / whole.length };
      start = end;
    }
  }

  segment(wave, start, end) {
    return this.timed(this.decode(this.encode(wave)), start, end);
  }

  /** The segment of n best texts. */
  timed(nbest, start, end) {
    const [best] = nbest;
    const texts = this.texts(best.tokens);
    const tokens = best.spans && timedTokens(texts, best.spans, this.stepSeconds, start, end);
    const least = best.confidences.reduce((a, b) => Math.min(a, b), Infinity);
    const words = tokens
      ? wordsOf(tokens, best.confidences)
      : wordsOf(evenly(best.text, start, end), [...best.text].map(() => least));
    const { text, score, ended } = best;
    return { start, end, text, score, ended, tokens, words, nbest: nbest.map(summary) };
  }

  get stepSeconds() {
    const { hop, sample_rate } = this.config.features;
    return (FRAMES_PER_STEP * hop) / sample_rate;
  }

  /** log-probabilities of a waveform, as {S, V, logp}; null where there is nothing to decode. */
  encode(wave) {
    if (wave.every((sample) => sample === wave[0])) return null;
    const { feats, T, F } = this.features.run(wave);
    return this.network.frontend.steps(T) ? this.logProbs(feats, T, F) : null;
  }

  /** What the network makes of features, or of a chunk's where a stream's past is given. */
  logProbs(feats, T, F, past = null) {
    const { top } = this.memory;
    try {
      return this.network.run(feats, T, F, past);
    } finally {
      this.memory.top = top; // also where memory ran out
    }
  }

  /** The n best texts of log-probabilities, best first. */
  decode(found) {
    const { decoding, word_counts } = this.config;
    const none = { tokens: [], text: "", score: 0, confidences: [], spans: [], ended: "no_speech" };
    if (!found || !hasSpeech(found, decoding.speech_threshold)) return [none];
    const { logp, S, V } = found;
    const beam = new PrefixBeam(decoding, word_counts, this.lm);
    beam.extend(logp, S, V);
    const nbest = beam.nBest().slice(0, decoding.n_best).map((text) => {
      // log P over all paths, also those that left the beam
      const score = text.score + decoding.alpha * (textLogProb(logp, S, V, text.tokens) - text.logProb);
      return { ...text, score, text: this.text(text.tokens), ended: text.tokens.length === S ? "length" : "eos" };
    });
    nbest.sort((a, b) => b.score - a.score);
    const [best] = nbest;
    if (confidence(best) < (decoding.confidence_threshold ?? 0)) {
      return [{ ...none, ended: "uncertain" }, ...nbest];
    }
    best.spans = align(logp, S, V, best.tokens);
    return nbest;
  }

  texts(tokens) {
    return tokens.map((token) => this.config.tokens[token].replaceAll(SPACE, " "));
  }

  text(tokens) {
    const text = normalized(this.texts(tokens).join(""));
    return tidy(this.config.punctuation === "remove" ? withoutMarks(text) : text);
  }
}

/** The whole transcript, in the shape of the service's. */
export function transcript(segments, duration) {
  const cues = cuesOf(segments);
  const warnings = segments.filter(({ ended }) => ended === "uncertain").map(({ start, end, nbest }) =>
    `${tenths(start)} to ${tenths(end)} s: left out as uncertain, confidence ${nbest[1].confidence.toFixed(2)}: ${nbest[1].text}`);
  for (const segment of segments) if (segments.length > 1 && segment.ended !== "uncertain") segment.nbest = [];
  return {
    text: tidy(joinTexts(segments.map(({ text }) => text))),
    score: segments.reduce((sum, { score }) => sum + score, 0),
    duration, warnings, segments, srt: asSrt(cues), vtt: asVtt(cues),
  };
}

const summary = (text) => ({ text: text.text, score: text.score, confidence: confidence(text) });

/** Whether all tokens together reach the threshold in a step. */
function hasSpeech({ logp, S, V }, threshold) {
  for (let s = 0; s < S; s++) if (1 - Math.exp(logp[s * V]) >= threshold) return true;
  return false;
}

/** The geometric mean of the tokens' confidences, 1 without tokens. */
function confidence({ confidences }) {
  const logs = confidences.map((value) => Math.log(Math.max(value, 1e-30)));
  return Math.exp(logs.reduce((a, b) => a + b, 0) / Math.max(1, logs.length));
}
