// The weights of the page: base64 of 8-bit numbers with a scale per output, and of float32.

/** A map from names to {data, shape}; `table` has type, shape and first byte of each. */
export function readWeights(base64, table) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const found = new Map();
  for (const [name, [type, shape, start]] of Object.entries(table)) {
    const size = shape.reduce((a, b) => a * b, 1);
    const Kind = type === "int8" ? Int8Array : Float32Array;
    found.set(name, { data: new Kind(bytes.buffer, start, size), shape });
  }
  for (const [name, weight] of found) {
    if (!(weight.data instanceof Int8Array)) continue;
    const scales = found.get(`${name}.int8_scale`).data;
    const row = weight.data.length / scales.length;
    weight.data = Float32Array.from(weight.data, (q, i) => q * scales[Math.floor(i / row)]);
  }
  return found;
}
