// Log power features of an utterance (asr/audio/features.py, mel.py): a power spectrogram or
// Slaney's mel bins, relative to the loudest bin, 80 dB deep, normalized.

const DYNAMIC_RANGE = 1e-8;
const TINY_POWER = 1e-20;
const MIN_STD = 1e-3;

export class Features {
  /** `config` is the recipe's, with n_fft and hop; `weights` have a corpus's statistics. */
  constructor(config, weights) {
    this.config = config;
    this.window = Float64Array.from({ length: config.n_fft }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / config.n_fft));
    this.fourier = new Fourier(config.n_fft);
    this.mels = config.kind === "log_mel" ? slaneyFilters(config) : null;
    this.F = config.kind === "log_mel" ? config.n_mels : config.n_fft / 2 + 1;
    if (config.normalize === "corpus") {
      [this.mean, this.std] = ["mean_F", "std_F"].map((name) => weights.get(`features.${name}`).data);
    }
  }

  /** Features (T, F) of a waveform, as {T, F, feats}. */
  run(wave) {
    const { F } = this;
    const T = 1 + Math.floor(wave.length / this.config.hop);
    const power = this.power(wave, T);
    const peak = power.reduce((a, b) => Math.max(a, b), 0);
    const floor = Math.max(DYNAMIC_RANGE * peak, TINY_POWER);
    const log = Math.log(Math.max(peak, TINY_POWER));
    const feats = power.map((value) => Math.log(Math.max(value, floor)) - log);
    if (this.mean) feats.forEach((value, i) => (feats[i] = (value - this.mean[i % F]) / this.std[i % F]));
    else normalize(feats);
    return { T, F, feats: Float32Array.from(feats) };
  }

  /** Power (T, F) of the waveform at a peak of 1; frames are centered on multiples of the hop. */
  power(wave, T) {
    const { F, mels, window, fourier, config: { n_fft, hop } } = this;
    const gain = 1 / (wave.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1);
    const found = new Float64Array(T * F);
    const [re, im] = [new Float64Array(n_fft), new Float64Array(n_fft)];
    const frame = (t, into) => {
      const start = t * hop - n_fft / 2;
      for (let i = 0; i < n_fft; i++) into[i] = (wave[start + i] ?? 0) * gain * window[i];
    };
    // Two frames are the real and the imaginary part of one transform.
    for (let t = 0; t < T; t += 2) {
      frame(t, re);
      frame(t + 1, im);
      powers(fourier, re, im).slice(0, T - t).forEach((one, which) => {
        const row = found.subarray((t + which) * F, (t + which + 1) * F);
        if (mels) mels.forEach(({ first, heights }, m) => (row[m] = heights.reduce((sum, h, i) => sum + h * one[first + i], 0)));
        else row.set(one);
      });
    }
    return found;
  }
}

/** The power spectra of two real signals, which one transform computes; they are overwritten. */
export function powers(fourier, re, im) {
  const n = fourier.n, [X, Y] = fourier.run(re, im);
  return [1, -1].map((sign) => Float64Array.from({ length: n / 2 + 1 }, (_, i) => {
    const j = i ? n - i : 0;
    return ((X[i] + sign * X[j]) ** 2 + (Y[i] - sign * Y[j]) ** 2) / 4;
  }));
}

/** Takes mean and standard deviation out of an utterance's features. */
export function normalize(feats) {
  const mean = feats.reduce((a, b) => a + b, 0) / feats.length;
  const variance = feats.reduce((sum, x) => sum + (x - mean) ** 2, 0) / feats.length;
  const std = Math.max(Math.sqrt(variance), MIN_STD);
  for (let i = 0; i < feats.length; i++) feats[i] = (feats[i] - mean) / std;
}

/** Triangles of an area of one, equally spaced in Slaney's mels: {first, heights} of each. */
function slaneyFilters({ sample_rate, n_fft, n_mels }) {
  const step = Math.log(6.4) / 27;
  const toMels = (hz) => (hz < 1000 ? hz / (200 / 3) : 15 + Math.log(hz / 1000) / step);
  const toHertz = (mels) => (mels < 15 ? (mels * 200) / 3 : 1000 * Math.exp(step * (mels - 15)));
  const top = toMels(sample_rate / 2);
  const edges = Array.from({ length: n_mels + 2 }, (_, i) => toHertz((top * i) / (n_mels + 1)));
  return Array.from({ length: n_mels }, (_, m) => {
    const [low, center, high] = edges.slice(m, m + 3);
    const first = Math.floor((low * n_fft) / sample_rate), heights = [];
    for (let i = first; i <= Math.ceil((high * n_fft) / sample_rate); i++) {
      const hz = (i * sample_rate) / n_fft;
      const height = Math.min((hz - low) / (center - low), (high - hz) / (high - center));
      if (i <= n_fft / 2) heights.push((Math.max(0, height) * 2) / (high - low));
    }
    return { first, heights };
  });
}

/** The discrete Fourier transform of n complex numbers, by the prime factors of n. */
export class Fourier {
  constructor(n) {
    this.n = n;
    this.factors = [];
    for (let left = n, p = 2; left > 1; ) {
      if (left % p) p++;
      else {
        this.factors.push(p);
        left /= p;
      }
    }
    this.cos = Float64Array.from({ length: n }, (_, i) => Math.cos((2 * Math.PI * i) / n));
    this.sin = Float64Array.from({ length: n }, (_, i) => -Math.sin((2 * Math.PI * i) / n));
  }

  /** Real and imaginary parts of the transform; the input is overwritten. */
  run(re, im) {
    const { n, factors, cos, sin } = this;
    let from = [re, im], to = [new Float64Array(n), new Float64Array(n)];
    // Stockham's order: after factors of product `done`, [n / done][done] holds their transforms.
    for (let i = 0, done = 1; i < factors.length; done *= factors[i++]) {
      const p = factors[i], rest = n / done / p;
      for (let r = 0; r < rest; r++) {
        for (let k = 0; k < done * p; k++) {
          let x = 0, y = 0;
          for (let j = 0; j < p; j++) {
            const at = (r + j * rest) * done + (k % done), turn = (j * k * rest) % n;
            x += from[0][at] * cos[turn] - from[1][at] * sin[turn];
            y += from[0][at] * sin[turn] + from[1][at] * cos[turn];
          }
          to[0][r * done * p + k] = x;
          to[1][r * done * p + k] = y;
        }
      }
      [from, to] = [to, from];
    }
    return from;
  }
}
