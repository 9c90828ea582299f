// The network from features to the log-probabilities of its CTC head (asr/model/encoder.py).

import { Frontend } from "./frontend.js";
import { Affine, Conditioning, Convolution, FeedForward, Norm, SelfAttention } from "./layers.js";

export class Network {
  /** `weights` are {data, shape} by the names of the bundle, `model` is the recipe's. */
  constructor(memory, weights, model) {
    this.memory = memory;
    const { streaming } = model.encoder;
    const left = streaming ? streaming.chunk * streaming.left_chunks : 0; // steps
    const options = { isPre: model.norm === "pre", heads: model.n_heads, left, isRotary: streaming?.rotary };
    this.hasPositions = !streaming;
    this.frontend = new Frontend(memory, weights, model.frontend.kind, !streaming);
    this.project = new Affine(memory, weights, "frontend.project");
    this.norm = new Norm(memory, weights, "frontend.norm");
    this.units = [];
    for (let i = 0; i < model.encoder.n_layers; i++) {
      const unit = (Kind, name) => new Kind(memory, weights, `encoder.layers.${i}.${name}`, options);
      this.units.push(unit(SelfAttention, "self_attention"));
      if (model.encoder.convolution !== null) this.units.push(unit(Convolution, "convolution"));
      this.units.push(unit(FeedForward, "feed_forward"));
      if (i + 1 === model.encoder.sounds?.layer) this.sounds = this.units.length; // units up to the layer
      if (i + 1 === model.encoder.conditioning?.layer) {
        this.units.push(new Conditioning(memory, weights, "encoder.conditioning"));
      }
    }
    this.last = options.isPre ? new Norm(memory, weights, "encoder.norm") : null;
    this.head = new Affine(memory, weights, "ctc_head");
    if (this.sounds) {
      this.soundsNorm = new Norm(memory, weights, "sounds_head.norm");
      this.soundsHead = new Affine(memory, weights, "sounds_head.output");
    }
  }

  /**
   * The log-probabilities of features (T, F) as {S, V, logp}, rows of V numbers; of the next chunk of
   * a stream where its `past` is given, at first an empty map.
   */
  run(feats, T, F, past = null) {
    const { memory, head, project } = this;
    const { top } = memory;
    const { address, stride, S } = this.frontend.run(feats, T, F, past !== null);
    const x = project.apply(address, stride, S);
    this.norm.into(x, S, x);
    if (this.hasPositions) addPositions(memory.floats, x, S, project.size);
    let sounds = null; // what the head of sounds sees of its layer
    this.units.forEach((unit, i) => {
      if (i === this.sounds) sounds = this.soundsNorm.apply(x, S);
      unit.run(x, S, past);
    });
    this.last?.into(x, S, x);
    const logits = head.apply(x, project.size, S), V = head.size;
    if (sounds !== null) this.soundsHead.add(sounds, project.size, S, logits, V);
    for (let s = 0; s < S; s++) logSoftmax(memory.floats, logits + s * V, V);
    const logp = memory.floats.slice(logits, logits + S * V);
    memory.top = top;
    return { S, V, logp };
  }
}

/** Adds positions, even sines and odd cosines (Vaswani et al. 2017, sec. 3.5). */
function addPositions(f, x, S, D) {
  for (let i = 0; i < D; i += 2) {
    const rate = Math.exp((-i * Math.log(10000)) / D);
    for (let s = 0; s < S; s++) {
      f[x + s * D + i] += Math.sin(s * rate);
      f[x + s * D + i + 1] += Math.cos(s * rate);
    }
  }
}

function logSoftmax(f, at, n) {
  let most = -Infinity, sum = 0;
  for (let i = at; i < at + n; i++) most = Math.max(most, f[i]);
  for (let i = at; i < at + n; i++) sum += Math.exp(f[i] - most);
  const log = most + Math.log(sum);
  for (let i = at; i < at + n; i++) f[i] -= log;
}
