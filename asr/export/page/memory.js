// One memory for all numbers, and the product of matrices in it.
//
// An address counts floats. What is taken is given back in reverse order, as on a stack: `top` is
// remembered before and restored after. A weight matrix (N outputs, K inputs) is packed in panels
// of 8 outputs: [panel][k][8], with zeros in place of missing outputs.

const PANEL = 8;
const PAGE = 1 << 14; // floats in a page of WebAssembly's memory

export class Memory {
  /** `module` is the compiled kernel (gemm.wat); null where only JavaScript is to compute. */
  constructor(module = null) {
    this.store = new WebAssembly.Memory({ initial: 16 });
    this.floats = new Float32Array(this.store.buffer);
    this.top = 0;
    const instance = module && new WebAssembly.Instance(module, { page: { memory: this.store } });
    this.gemm = instance?.exports.gemm ?? null;
  }

  /** The address of n numbers, all `value`; others may write up to 8 zeros behind them. */
  take(n, value = 0) {
    const start = this.top;
    this.top = start + 4 * Math.ceil((n + PANEL) / 4);
    if (this.top > this.floats.length) {
      const needed = Math.ceil((this.top - this.floats.length) / PAGE);
      this.store.grow(Math.max(needed, 64));
      this.floats = new Float32Array(this.store.buffer);
    }
    this.floats.fill(value, start, this.top);
    return start;
  }

  /** The address of a copy of numbers. */
  put(numbers) {
    const start = this.take(numbers.length);
    this.floats.set(numbers, start);
    return start;
  }

  /** Packs a weight matrix; input k of output n is `numbers[start + n * perOutput + k * perInput]`. */
  pack(N, K, numbers, start, perOutput, perInput, factor = 1) {
    const address = this.take(Math.ceil(N / PANEL) * K * PANEL);
    const f = this.floats;
    if (numbers === null) numbers = f; // from the memory itself, which may have grown
    for (let n = 0; n < N; n++) {
      let at = address + (n - (n % PANEL)) * K + (n % PANEL), from = start + n * perOutput;
      for (let k = 0; k < K; k++, at += PANEL, from += perInput) f[at] = numbers[from] * factor;
    }
    return { N, K, address };
  }

  /**
   * Adds A Wᵀ to C: M rows of A, `lda` apart, by a packed W of N outputs, to rows `ldc` apart.
   * Rows of A may overlap, and behind the last number of a row of C up to 7 are rewritten as they
   * are, so rows of C may be shorter than a panel too.
   */
  multiply(a, lda, M, { N, K, address }, c, ldc) {
    if (this.gemm) this.gemm(4 * a, 4 * lda, M, 4 * address, K, 4 * c, 4 * ldc, Math.ceil(N / PANEL));
    else multiplyPlainly(this.floats, a, lda, M, address, N, K, c, ldc);
  }
}

/** The same in JavaScript: two rows and four outputs at a time, so that 8 sums stay in registers. */
function multiplyPlainly(f, a, lda, M, w, N, K, c, ldc) {
  const single = Math.fround;
  for (let n = 0; n < N; n += 4) {
    const panel = w + (n - (n % PANEL)) * K + (n % PANEL);
    for (let m = 0; m < M; m += 2) {
      let x = a + m * lda;
      let y = m + 1 < M ? x + lda : x; // the last of an odd number of rows is computed twice
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
      for (let at = panel, end = panel + K * PANEL; at < end; at += PANEL, x++, y++) {
        const p = f[x], q = f[y], w0 = f[at], w1 = f[at + 1], w2 = f[at + 2], w3 = f[at + 3];
        s0 = single(s0 + single(p * w0));
        s1 = single(s1 + single(p * w1));
        s2 = single(s2 + single(p * w2));
        s3 = single(s3 + single(p * w3));
        t0 = single(t0 + single(q * w0));
        t1 = single(t1 + single(q * w1));
        t2 = single(t2 + single(q * w2));
        t3 = single(t3 + single(q * w3));
      }
      add(f, c + m * ldc + n, N - n, s0, s1, s2, s3);
      if (m + 1 < M) add(f, c + (m + 1) * ldc + n, N - n, t0, t1, t2, t3);
    }
  }
}

function add(f, at, n, s0, s1, s2, s3) {
  f[at] += s0;
  if (n > 1) f[at + 1] += s1;
  if (n > 2) f[at + 2] += s2;
  if (n > 3) f[at + 3] += s3;
}
