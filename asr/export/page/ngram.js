// A backoff n-gram as sorted tables, looked up a token at a time (asr/lm/ngram_tokens.py).

const EOS = 2;

export class NGram {
  /** `weights` have the tables of asr/lm/ngram.py; `order` and `first` are the model's. */
  constructor(weights, { order, first, vocab_size }) {
    Object.assign(this, { order, first, V: vocab_size });
    for (const name of ["words", "keys", "logp", "next_state", "backoff", "shorter"]) {
      this[name] = weights.get(`lm.${name}`).data;
    }
  }

  start() {
    return this.first;
  }

  /** log P of a token after a state, with backoff, and the state after it. */
  score(state, token) {
    let total = 0;
    for (let n = 0; n < this.order; n++) {
      const key = state * this.V + this.words[token], index = this.find(key);
      if (this.keys[index] === key) return [total + this.logp[index], this.next_state[index]];
      total += this.backoff[state];
      state = this.shorter[state];
    }
    return [total, 0];
  }

  end(state) {
    return this.score(state, EOS)[0];
  }

  /** The index of the first key that is not smaller. */
  find(key) {
    let low = 0, high = this.keys.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.keys[middle] < key) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
