// The front end's convolutions (asr/model/frontend.py), of one utterance.
//
// A plane has rows of F + 2 columns of C channels; the first and the last column are zero. Since a
// row of neighbors is one run of numbers, a 3×3 convolution is three products of matrices whose rows
// overlap. VGG computes a few rows at a time, so that they stay in the processor's cache.

const TILE = 16; // rows after pooling

/** Keeps the positive numbers of a plane and sets the outer columns, and rows outside, to zero. */
function rectify(f, plane, rows, F, C, isInside = () => true) {
  const width = (F + 2) * C;
  for (let row = 0, at = plane; row < rows; row++, at += width) {
    if (!isInside(row)) {
      f.fill(0, at, at + width);
      continue;
    }
    f.fill(0, at, at + C);
    for (let i = at + C; i < at + width - C; i++) if (f[i] < 0) f[i] = 0;
    f.fill(0, at + width - C, at + width);
  }
}

/** Weights of a convolution (out, in, frames, bins) as a matrix for each of its frames. */
function perFrame(memory, { data, shape: [N, C, frames, bins] }) {
  return Array.from({ length: frames }, (_, t) => {
    const matrix = Float32Array.from({ length: N * bins * C }, (_, i) => {
      const [n, bin, c] = [Math.floor(i / C / bins), Math.floor(i / C) % bins, i % C];
      return data[((n * C + c) * frames + t) * bins + bin];
    });
    return memory.pack(N, bins * C, matrix, 0, bins * C, 1);
  });
}

/** A 3×3 convolution, or a low-rank pair of one over frames and one over bins. */
class Conv {
  constructor(memory, weights, name) {
    this.memory = memory;
    const parts = weights.has(`${name}.weight`) ? [name] : [`${name}.0`, `${name}.1`];
    this.maps = parts.map((part) => perFrame(memory, weights.get(`${part}.weight`)));
    this.bias = weights.get(`${parts.at(-1)}.bias`).data;
    this.inputs = weights.get(`${parts[0]}.weight`).shape[1];
    this.channels = this.bias.length;
  }

  /** Writes `rows` rows of a plane; the first is of the input rows from `plane` on. */
  run(plane, rows, F, out) {
    const { memory, maps, bias, inputs, channels } = this;
    const { top, floats: f } = memory;
    const [columns, n] = [F + 2, rows * (F + 2)];
    for (let i = 0, at = out; i < n; i++, at += channels) f.set(bias, at);
    let from = plane, width = inputs;
    if (maps.length === 2) {
      width = maps[0][0].N;
      from = memory.take(n * width);
      maps[0].forEach((map, t) => memory.multiply(plane + t * columns * inputs, inputs, n, map, from, width));
    }
    // The position before a column's neighbors is its number less one, so the result goes one on;
    // the last two of all have no complete neighbors, and are not needed.
    maps.at(-1).forEach((map, t) => {
      memory.multiply(from + t * columns * width, width, n - 2, map, out + channels, channels);
    });
    memory.top = top;
  }
}

/** Two convolutions with ReLU, then pooling of two rows and two columns. */
class VggBlock {
  constructor(memory, weights, name, pads) {
    this.memory = memory;
    this.pads = pads;
    this.conv1 = new Conv(memory, weights, `${name}.conv1`);
    this.conv2 = new Conv(memory, weights, `${name}.conv2`);
    this.channels = this.conv2.channels;
  }

  sizes(T, F) {
    return [this.pads ? T >> 1 : (T - 4) >> 1, F >> 1];
  }

  /** Writes the rows of `out`; before and after the input plane there are two rows of zeros. */
  run(plane, T, F, out) {
    const { memory, conv1, conv2, channels: C, pads } = this;
    const [rowsOut, bins] = this.sizes(T, F);
    const width = (F + 2) * conv1.inputs;
    for (let row = 0; row < rowsOut; row += TILE) {
      const n = Math.min(TILE, rowsOut - row), { top } = memory;
      const first = memory.take((2 * n + 2) * (F + 2) * conv1.channels);
      const second = memory.take(2 * n * (F + 2) * C);
      conv1.run(plane + (2 * row - (pads ? 2 : 0)) * width, 2 * n + 2, F, first);
      const isInside = (i) => !pads || (2 * row - 1 + i >= 0 && 2 * row - 1 + i < T);
      rectify(memory.floats, first, 2 * n + 2, F, conv1.channels, isInside);
      conv2.run(first, 2 * n, F, second);
      this.pool(second, n, F, out + row * (bins + 2) * C, bins);
      memory.top = top;
    }
    rectify(memory.floats, out, rowsOut, bins, C);
  }

  pool(plane, rows, F, out, bins) {
    const { memory: { floats: f }, channels: C } = this;
    const width = (F + 2) * C;
    for (let row = 0; row < rows; row++) {
      for (let bin = 0; bin < bins; bin++) {
        let x = plane + 2 * row * width + (2 * bin + 1) * C;
        let y = out + (row * (bins + 2) + bin + 1) * C;
        for (let c = 0; c < C; c++, x++, y++) {
          f[y] = Math.max(f[x], f[x + C], f[x + width], f[x + width + C]);
        }
      }
    }
  }
}

/** A convolution of stride 2 with ReLU, plain or separable. */
class StridedBlock {
  constructor(memory, weights, name, pads) {
    this.memory = memory;
    this.pads = pads;
    this.isSeparable = !weights.has(`${name}.conv.weight`);
    const last = this.isSeparable ? `${name}.conv.1` : `${name}.conv`;
    this.depthwise = this.isSeparable && weights.get(`${name}.conv.0.weight`);
    this.maps = perFrame(memory, weights.get(`${last}.weight`));
    this.bias = weights.get(`${last}.bias`).data;
    this.inputs = weights.get(`${last}.weight`).shape[1];
    this.channels = this.bias.length;
  }

  sizes(T, F) {
    return [(this.pads ? T + 1 : T - 1) >> 1, (F + 1) >> 1];
  }

  run(plane, T, F, out) {
    const { memory, maps, bias, inputs, channels, pads } = this;
    const [rows, bins] = this.sizes(T, F);
    const width = (F + 2) * inputs, { top } = memory;
    const one = memory.take(bins * inputs);
    for (let row = 0; row < rows; row++) {
      const from = plane + (2 * row - (pads ? 1 : 0)) * width, to = out + (row * (bins + 2) + 1) * channels;
      for (let i = 0; i < bins; i++) memory.floats.set(bias, to + i * channels);
      if (this.isSeparable) {
        this.each(from, width, bins, one);
        memory.multiply(one, inputs, bins, maps[0], to, channels);
      } else {
        maps.forEach((map, t) => memory.multiply(from + t * width, 2 * inputs, bins, map, to, channels));
      }
    }
    rectify(memory.floats, out, rows, bins, channels);
    memory.top = top;
  }

  /** Convolves each channel alone: a row of `bins` positions. */
  each(from, width, bins, to) {
    const { memory: { floats: f }, inputs, depthwise: { data } } = this;
    for (let bin = 0; bin < bins; bin++) {
      for (let c = 0; c < inputs; c++) {
        let sum = 0;
        for (let k = 0; k < 9; k++) {
          sum += f[from + Math.floor(k / 3) * width + (2 * bin + (k % 3)) * inputs + c] * data[9 * c + k];
        }
        f[to + bin * inputs + c] = sum;
      }
    }
  }
}

// Frames before an utterance, before and after the four of a step, and behind the last step's.
const VGG_EDGES = { before: 6, after: 6, behind: 6 }, STRIDED_EDGES = { before: 3, after: 0, behind: 3 };
const NO_EDGES = { before: 0, after: 0, behind: 0 };

/**
 * The rows (S steps) of bins and channels that two blocks make of features (T, F). For streams the
 * blocks pad no frames (`pads` is false): an utterance as a whole has rows of zeros at its edges.
 */
export class Frontend {
  constructor(memory, weights, kind, pads) {
    const isStrided = kind === "strided", Block = isStrided ? StridedBlock : VggBlock;
    this.memory = memory;
    this.steps = (T) => (isStrided ? T + 3 : T) >> 2;
    this.edges = pads ? NO_EDGES : isStrided ? STRIDED_EDGES : VGG_EDGES;
    this.blocks = ["block1", "block2"].map((name) => new Block(memory, weights, `frontend.${name}`, pads));
  }

  /**
   * Returns {address, stride, size, S}: where rows of `size` numbers begin, `stride` apart. The
   * features of a chunk have their neighbors before and after them already.
   */
  run(feats, T, F, isChunk = false) {
    const { memory } = this, { before, behind } = isChunk ? NO_EDGES : this.edges;
    let plane = this.plane(before + T + behind, F, 1), C = 1;
    for (let t = 0; t < T; t++) {
      memory.floats.set(feats.subarray(t * F, (t + 1) * F), plane + (before + t) * (F + 2) + 1);
    }
    T += before + behind;
    for (const block of this.blocks) {
      const [rows, bins] = block.sizes(T, F);
      const out = this.plane(rows, bins, block.channels);
      block.run(plane, T, F, out);
      [plane, T, F, C] = [out, rows, bins, block.channels];
    }
    return { address: plane + C, stride: (F + 2) * C, size: F * C, S: T };
  }

  /** A plane of zeros, with two more rows before and after it. */
  plane(rows, F, C) {
    const width = (F + 2) * C;
    return this.memory.take((rows + 4) * width) + 2 * width;
  }
}
