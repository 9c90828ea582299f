// The units of an encoder layer (asr/model/layers.py, unit.py, convolution.py, conditioning.py), of
// one utterance or a chunk of a stream: S steps, rows of D numbers. Weights are found by their names
// in the bundle. A stream's past is a map from units to the rows that its next chunk needs.

/** A linear map with its bias: dense, or the two products of a low rank (LED). */
export class Affine {
  constructor(memory, weights, name) {
    this.memory = memory;
    const isLowRank = weights.has(`${name}.E.weight`);
    const last = isLowRank ? `${name}.D` : name;
    const parts = isLowRank ? [`${name}.E`, last] : [last];
    this.maps = parts.map((part) => {
      const { data, shape: [N, K] } = weights.get(`${part}.weight`);
      return memory.pack(N, K, data, 0, K, 1);
    });
    this.bias = weights.get(`${last}.bias`).data;
    this.size = this.bias.length;
  }

  /** Adds the map of S rows of x to those of y; rows are `ldx` and `ldy` apart. */
  add(x, ldx, S, y, ldy) {
    const { memory, maps, bias, size } = this;
    const { top } = memory;
    let [from, stride] = [x, ldx];
    if (maps.length === 2) {
      from = memory.take(S * maps[0].N);
      stride = maps[0].N;
      memory.multiply(x, ldx, S, maps[0], from, stride);
    }
    memory.multiply(from, stride, S, maps.at(-1), y, ldy);
    const f = memory.floats;
    for (let s = 0; s < S; s++) {
      for (let i = 0; i < size; i++) f[y + s * ldy + i] += bias[i];
    }
    memory.top = top;
  }

  /** The address of the map of S rows. */
  apply(x, ldx, S) {
    const y = this.memory.take(S * this.size);
    this.add(x, ldx, S, y, this.size);
    return y;
  }
}

/** Layer normalization of rows. */
export class Norm {
  constructor(memory, weights, name) {
    this.memory = memory;
    this.scale = weights.get(`${name}.weight`).data;
    this.shift = weights.get(`${name}.bias`).data;
  }

  /** Normalizes S rows from x to y, which may be x. */
  into(x, S, y) {
    const { memory: { floats: f }, scale, shift } = this;
    const D = scale.length;
    for (let s = 0; s < S; s++, x += D, y += D) {
      let sum = 0, squares = 0;
      for (let i = 0; i < D; i++) sum += f[x + i];
      const mean = sum / D;
      for (let i = 0; i < D; i++) squares += (f[x + i] - mean) ** 2;
      const factor = 1 / Math.sqrt(squares / D + 1e-5);
      for (let i = 0; i < D; i++) f[y + i] = (f[x + i] - mean) * factor * scale[i] + shift[i];
    }
  }

  apply(x, S) {
    const y = this.memory.take(S * this.scale.length);
    this.into(x, S, y);
    return y;
  }
}

/** Softmax of n numbers in place. */
export function softmax(f, at, n) {
  let most = -Infinity, sum = 0;
  for (let i = at; i < at + n; i++) most = Math.max(most, f[i]);
  for (let i = at; i < at + n; i++) sum += f[i] = Math.exp(f[i] - most);
  for (let i = at; i < at + n; i++) f[i] /= sum;
}

/** A unit with its residual connection: x + f(norm(x)), or norm(x + f(x)) (post). */
class Unit {
  constructor(memory, weights, name, { isPre }) {
    this.memory = memory;
    this.isPre = isPre;
    this.norm = new Norm(memory, weights, `${name}.residual.norm`);
    this.map = (part) => new Affine(memory, weights, `${name}.${part}`);
  }

  /** Changes S rows of x in place; `past` is a stream's, or null. */
  run(x, S, past) {
    const { top } = this.memory;
    const input = this.isPre ? this.norm.apply(x, S) : x;
    this.output.add(this.branch(input, S, past), this.output.maps[0].K, S, x, this.output.size);
    if (!this.isPre) this.norm.into(x, S, x);
    this.memory.top = top;
  }
}

/** Turns pairs of each head's numbers in S rows from a position on (asr/model/streaming.py, rotate). */
function rotate(f, x, S, D, size, start) {
  const half = size >> 1;
  for (let s = 0; s < S; s++) {
    for (let i = 0; i < half; i++) {
      const angle = (start + s) * Math.exp((-2 * i * Math.log(100)) / size);
      const cos = Math.cos(angle), sin = Math.sin(angle);
      for (let at = x + s * D + i; at < x + (s + 1) * D; at += size) {
        const one = f[at], two = f[at + half];
        [f[at], f[at + half]] = [one * cos - two * sin, one * sin + two * cos];
      }
    }
  }
}

export class SelfAttention extends Unit {
  constructor(memory, weights, name, options) {
    super(memory, weights, name, options);
    [this.heads, this.left, this.isRotary] = [options.heads, options.left, options.isRotary];
    [this.query, this.key, this.value, this.output] = ["query", "key", "value", "output"].map(this.map);
  }

  branch(x, S, past) {
    const { memory, heads } = this;
    const D = this.output.size, size = D / heads, kept = past?.get(this) ?? [];
    const before = (kept[0]?.length ?? 0) / D, N = before + S; // keys and values
    const q = this.query.apply(x, D, S);
    const [k, v] = [this.key, this.value].map((map, i) => {
      const rows = memory.take(N * D);
      memory.floats.set(kept[i] ?? [], rows);
      map.add(x, D, S, rows + before * D, D);
      return rows;
    });
    const first = Math.max(0, N - this.left) * D;
    past?.set(this, [k, v].map((rows) => memory.floats.slice(rows + first, rows + N * D)));
    if (this.isRotary) {
      rotate(memory.floats, q, S, D, size, before);
      rotate(memory.floats, k, N, D, size, 0);
    }
    const joined = memory.take(S * D), scores = memory.take(S * N);
    const { top } = memory;
    for (let head = 0; head < D; head += size) {
      const keys = memory.pack(N, size, null, k + head, D, 1, size ** -0.5);
      const values = memory.pack(size, N, null, v + head, 1, D);
      memory.floats.fill(0, scores, scores + S * N + 8);
      memory.multiply(q + head, D, S, keys, scores, N);
      for (let s = 0; s < S; s++) softmax(memory.floats, scores + s * N, N);
      memory.multiply(scores, N, S, values, joined + head, D);
      memory.top = top;
    }
    return joined;
  }
}

export class FeedForward extends Unit {
  constructor(memory, weights, name, options) {
    super(memory, weights, name, options);
    [this.inner, this.output] = ["inner", "outer"].map(this.map);
  }

  branch(x, S) {
    const inner = this.inner.apply(x, this.output.size, S);
    const f = this.memory.floats;
    for (let i = inner; i < inner + S * this.inner.size; i++) if (f[i] < 0) f[i] = 0;
    return inner;
  }
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** A gate, a depthwise convolution over the steps, SiLU. */
export class Convolution extends Unit {
  constructor(memory, weights, name, options) {
    super(memory, weights, name, options);
    [this.inner, this.output] = ["inner", "outer"].map(this.map);
    this.kernel = weights.get(`${name}.depthwise.weight`);
    this.bias = weights.get(`${name}.depthwise.bias`).data;
    this.mixedNorm = new Norm(memory, weights, `${name}.norm`);
  }

  branch(x, S, past) {
    const D = this.output.size, { data, shape } = this.kernel, width = shape[2], reach = width >> 1;
    const inner = this.inner.apply(x, D, S);
    const gated = this.memory.take((reach + S) * D), mixed = this.memory.take(S * D);
    const f = this.memory.floats;
    f.set(past?.get(this) ?? [], gated);
    for (let s = 0; s < S; s++) {
      const from = inner + 2 * s * D, to = gated + (reach + s) * D;
      for (let i = 0; i < D; i++) f[to + i] = f[from + i] * sigmoid(f[from + D + i]);
    }
    past?.set(this, f.slice(gated + S * D, gated + (reach + S) * D));
    for (let s = 0; s < S; s++) {
      const y = mixed + s * D;
      f.set(this.bias, y);
      for (let w = 0; w < Math.min(width, reach + S - s); w++) {
        for (let i = 0, at = gated + (s + w) * D; i < D; i++) f[y + i] += f[at + i] * data[i * width + w];
      }
    }
    this.mixedNorm.into(mixed, S, mixed);
    for (let i = mixed; i < mixed + S * D; i++) f[i] *= sigmoid(f[i]);
    return mixed;
  }
}

/** Adds to each step what a CTC head of the layers below makes of it. */
export class Conditioning {
  constructor(memory, weights, name) {
    this.memory = memory;
    this.norm = new Norm(memory, weights, `${name}.norm`);
    [this.head, this.back] = ["head", "back"].map((part) => new Affine(memory, weights, `${name}.${part}`));
  }

  run(x, S) {
    const { memory, head, back } = this;
    const { top } = memory;
    const guesses = head.apply(this.norm.apply(x, S), back.size, S);
    for (let s = 0; s < S; s++) softmax(memory.floats, guesses + s * head.size, head.size);
    back.add(guesses, head.size, S, x, back.size);
    memory.top = top;
  }
}
