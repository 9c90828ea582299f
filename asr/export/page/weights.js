// The numbers of the page in base64 (asr/export/page_weights.py): float32, float64, or a scale for
// each output and whole numbers of some bits.

const KINDS = { float32: Float32Array, float64: Float64Array };

export function fromBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/** A map from names to {data, shape}; `table` has type or bits, shape and first byte of each. */
export function readWeights(base64, table) {
  const { buffer } = fromBase64(base64), found = new Map();
  for (const [name, [type, shape, start]] of Object.entries(table)) {
    const size = shape.reduce((a, b) => a * b, 1);
    const data = type in KINDS ? new KINDS[type](buffer, start, size) : scaled(buffer, start, type, shape[0], size);
    found.set(name, { data, shape });
  }
  return found;
}

/** Rows of numbers of some bits, up to 16, times their scales. */
function scaled(buffer, start, bits, rows, size) {
  const scales = new Float32Array(buffer, start, rows), bytes = new Uint8Array(buffer, start + 4 * rows);
  const data = new Float32Array(size), mask = (1 << bits) - 1, zero = mask >> 1;
  for (let n = 0, i = 0, bit = 0; n < rows; n++) {
    for (const end = ((n + 1) * size) / rows; i < end; i++, bit += bits) {
      const at = bit >> 3, three = bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16);
      data[i] = (((three >> (bit & 7)) & mask) - zero) * scales[n];
    }
  }
  return data;
}
