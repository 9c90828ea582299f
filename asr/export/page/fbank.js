// Kaldi's log-mel filterbank (asr/audio/kaldi.py), of a whole utterance or of a stream
// (asr/audio/feature_stream.py): frame t is the window around sample (t + ½) · hop, and windows that
// reach beyond an edge see the waveform reflected there.

import { Fourier, normalize, powers } from "./features.js";

const SCALE = 2 ** 15; // Kaldi computes with 16-bit samples
const PREEMPHASIS = 0.97;
const POVEY = 0.85;
const LOWEST_HZ = 20;

const mels = (hz) => 1127 * Math.log1p(hz / 700);

export class Fbank {
  /** `config` is the recipe's, with n_fft, hop, high_hz and floor; `weights` have the statistics. */
  constructor(config, weights) {
    this.config = config;
    const { n_fft: size, n_mels } = config;
    this.F = n_mels;
    this.fourier = new Fourier(2 ** Math.ceil(Math.log2(size)));
    this.window = Float64Array.from({ length: size }, (_, i) => (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / (size - 1))) ** POVEY);
    this.filters = triangles(config, this.fourier.n);
    this.edge = (size >> 1) - (config.hop >> 1);
    if (config.normalize === "corpus") {
      [this.mean, this.std] = ["mean_F", "std_F"].map((name) => weights.get(`features.${name}`).data);
    }
  }

  /** Features (T, F) of a waveform, as {T, F, feats}. */
  run(wave) {
    const peak = wave.reduce((most, x) => Math.max(most, Math.abs(x)), 1);
    const T = this.frameCount(wave.length), feats = this.frames(wave, 0, T, peak);
    if (!this.mean) normalize(feats);
    return { T, F: this.F, feats };
  }

  /** The number of samples after which so many frames are known, whatever follows. */
  sampleCount(frames) {
    return (frames - 1) * this.config.hop - this.edge + this.config.n_fft;
  }

  /** The number of frames of a waveform that has ended. */
  frameCount(samples) {
    const { n_fft, hop } = this.config;
    return samples ? Math.floor((Math.max(samples, n_fft) + (hop >> 1)) / hop) : 0;
  }

  /** Frames (until - first, F) of a waveform at a peak of one, or as it is and cut off there. */
  frames(wave, first, until, peak = 1) {
    const { F, fourier, filters, mean, std, config: { floor } } = this;
    const feats = new Float32Array((until - first) * F);
    const [re, im] = [new Float64Array(fourier.n), new Float64Array(fourier.n)];
    for (let t = first; t < until; t += 2) {
      this.fill(re, wave, t, peak);
      this.fill(im, wave, t + 1, peak);
      powers(fourier, re, im).slice(0, until - t).forEach((power, which) => {
        const row = (t + which - first) * F;
        filters.forEach(({ from, heights }, m) => {
          const energy = Math.log(Math.max(floor, heights.reduce((sum, h, i) => sum + h * power[from + i], 0)));
          feats[row + m] = mean ? (energy - mean[m]) / std[m] : energy;
        });
      });
    }
    return feats;
  }

  /** Writes the window of a frame, without its mean, with pre-emphasis, and zeros after it. */
  fill(into, wave, frame, peak) {
    const { window, edge, config: { n_fft, hop } } = this;
    const length = Math.max(wave.length, n_fft), start = frame * hop - edge;
    into.fill(0);
    let sum = 0;
    for (let i = 0; i < n_fft; i++) {
      let at = start + i;
      if (at < 0) at = -1 - at;
      else if (at >= length) at = 2 * length - 1 - at;
      sum += into[i] = (SCALE * Math.max(-1, Math.min(1, (wave[at] ?? 0) / peak)));
    }
    const mean = sum / n_fft;
    for (let i = n_fft - 1; i >= 0; i--) {
      into[i] = (into[i] - mean - PREEMPHASIS * (into[Math.max(0, i - 1)] - mean)) * window[i];
    }
  }
}

/** Triangles in HTK's mels, of a height of one, without the last bin: {from, heights} of each. */
function triangles({ sample_rate, n_mels, high_hz }, n) {
  const [least, most] = [mels(LOWEST_HZ), mels(high_hz)];
  const edge = (m) => least + ((most - least) * m) / (n_mels + 1);
  return Array.from({ length: n_mels }, (_, m) => {
    const [low, center, high] = [edge(m), edge(m + 1), edge(m + 2)], heights = [];
    let from = 0;
    for (let i = 0; i < n / 2; i++) {
      const at = mels((i * sample_rate) / n);
      if (at >= high) break;
      if (at <= low) from = i + 1;
      else heights.push(Math.min((at - low) / (center - low), (high - at) / (high - center)));
    }
    return { from, heights };
  });
}
