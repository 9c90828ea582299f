// The numbers of the page in base64: of 8 bits with a scale per output, float32 or float64.

const KINDS = { int8: Int8Array, float32: Float32Array, float64: Float64Array };

export function fromBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/** A map from names to {data, shape}; `table` has type, shape and first byte of each. */
export function readWeights(base64, table) {
  const { buffer } = fromBase64(base64), found = new Map();
  for (const [name, [type, shape, start]] of Object.entries(table)) {
    const size = shape.reduce((a, b) => a * b, 1);
    found.set(name, { data: new KINDS[type](buffer, start, size), shape });
  }
  for (const [name, weight] of found) {
    if (weight.data instanceof Int8Array) weight.data = scaled(weight.data, found.get(`${name}.int8_scale`).data);
  }
  return found;
}

/** Rows of 8-bit numbers times their scales. */
function scaled(numbers, scales) {
  const data = new Float32Array(numbers.length), row = data.length / scales.length;
  for (let n = 0, i = 0; n < scales.length; n++) {
    for (const end = i + row; i < end; i++) data[i] = numbers[i] * scales[n];
  }
  return data;
}
