// The prefix beam search of asr/decoding/prefix_beam.py, with an n-gram or without: the same numbers
// in the same order, so that both find the same texts.

const THRESHOLD = 1e-3;
const SLACK = 2;
const SPECIAL = 4; // PAD, which is the blank, SOS, EOS, UNK
const SMALL = 1e-100, LEAST_BLANK = 1e-30, MOST_EXPONENT = 600;
const ITSELF = -1;

const exp = (x) => Math.exp(Math.min(x, MOST_EXPONENT));
const byFirst = (a, b) => b[0] - a[0];

/** A node of the trie of prefixes; the empty one is its own parent. */
class Prefix {
  constructor(parent, token) {
    this.parent = parent ?? this;
    this.token = token;
    this.length = parent ? parent.length + 1 : 0;
    this.children = new Map();
    this.isLive = false;
    this.step = -1;
    this.total = this.ofBlank = this.ofToken = 0;
    this.scale = this.mass = this.left = this.peak = 0;
    this.added = this.words = this.lm = 0;
    this.lmState = null;
    this.factor = this.growth = 1;
  }

  logProb(value) {
    return value ? Math.log(value) + this.scale - this.added : -Infinity;
  }

  /** The prefixes from the one of one token to this one. */
  path() {
    const found = [];
    for (let node = this; node.token >= 0; node = node.parent) found.push(node);
    return found.reverse();
  }
}

export class PrefixBeam {
  /** `words` are the number of words of each token; `lm` has start(), score() and end(), or is null. */
  constructor({ beam_size, alpha, gamma, lm_weight, lm_bonus }, words, lm = null) {
    Object.assign(this, { size: beam_size, alpha, gamma, words: gamma ? words : [], lm, lmWeight: lm_weight });
    this.tokenBonus = lm ? lm_weight * lm_bonus : 0;
    this.mostWords = this.words.reduce((a, b) => Math.max(a, b), 0);
    const root = new Prefix(null, -1);
    root.total = root.ofBlank = root.mass = 1;
    root.isLive = true;
    root.growth = this.growth(0);
    root.lmState = lm && lm.start();
    this.prefixes = [root];
    this.beam = [root];
    this.logScale = 0;
    this.steps = 0;
  }

  /** Takes the log-probabilities of S steps, rows of V numbers. */
  extend(logp, S, V) {
    for (let s = 0; s < S; s++) {
      const row = logp.subarray(s * V, (s + 1) * V), tokens = this.choose(row);
      if (tokens.length) this.take(Math.max(Math.exp(row[0]), LEAST_BLANK), tokens);
      else {
        this.logScale += Math.max(row[0], Math.log(LEAST_BLANK));
        for (const node of this.beam) [node.ofBlank, node.ofToken] = [node.total, 0];
      }
      this.steps++;
    }
  }

  /** The likeliest tokens of a frame with their probabilities, falling. */
  choose(row) {
    const least = Math.fround(Math.log(THRESHOLD)), found = [];
    for (let v = SPECIAL; v < row.length; v++) if (row[v] >= least) found.push([Math.exp(row[v]), v]);
    return found.sort(byFirst).slice(0, SLACK * this.size);
  }

  /** The texts of the beam, best first: {tokens, score, logProb, confidences}. */
  nBest() {
    const ends = new Map(), found = [];
    for (const node of this.beam) {
      const logProb = Math.log(node.total) + this.logScale - node.added;
      const both = this.weighted(logProb, node.lm + (this.lm ? this.lm.end(node.lmState) : 0));
      ends.set(node, [logProb, both]);
      found.push({ node, logProb, score: both + this.length(node) });
    }
    found.sort((a, b) => b.score - a.score);
    const share = this.shares(ends);
    return found.map(({ node, logProb, score }) => {
      const path = node.path();
      return { tokens: path.map((n) => n.token), score, logProb, confidences: path.map((n) => share.get(n)) };
    });
  }

  weighted(ctc, lm) {
    return this.alpha * ctc + (this.lm ? this.lmWeight * lm : 0);
  }

  /** The confidences of the tokens of whole texts, by prefixes. */
  shares(ends) {
    const parts = new Map(), shares = new Map();
    for (const end of ends.keys()) for (const node of end.path()) parts.set(node.parent, []);
    for (const node of this.prefixes.slice(1)) {
      const ctc = node.logProb(node.mass);
      parts.get(node.parent)?.push([node, ctc, this.weighted(ctc, node.lm)]);
    }
    const total = (logs, one) => logs.reduce((sum, log) => sum + Math.exp(log - one), 0);
    for (const [parent, children] of parts) {
      const [end, endOfBoth] = ends.get(parent) ?? [-Infinity, -Infinity];
      const both = [endOfBoth, ...children.map(([, , log]) => log)];
      const top = both.reduce((a, b) => Math.max(a, b));
      const whole = total(both, top), one = parent.logProb(1);
      const known = total([end, ...children.map(([, ctc]) => ctc)], one);
      const allLeft = Math.max(known, parent.left + Math.exp(end - one));
      const part = allLeft ? known / allLeft : 1;
      for (const [node, , log] of children) shares.set(node, (part * Math.exp(log - top)) / whole);
    }
    return shares;
  }

  take(blank, tokens) {
    const pOf = new Map(tokens.map(([p, token]) => [token, p]));
    const pAny = tokens.reduce((sum, [p]) => sum + p, 0);
    const entries = this.beam.map((node) => {
      const ofBlank = node.total * blank, p = pOf.get(node.token), { parent } = node;
      let ofToken = 0, left = node.total * pAny;
      if (p !== undefined) {
        ofToken = node.ofToken * p;
        left -= ofToken;
        if (parent.isLive) {
          // A token that repeats the last one needs a blank between.
          const ways = parent.token === node.token ? parent.ofBlank : parent.total;
          const inflow = ways * p * node.factor;
          ofToken += inflow;
          this.record(node, inflow);
        }
      }
      node.left += left * exp(this.logScale - node.scale);
      return [ofBlank + ofToken, ofBlank, ofToken, node, ITSELF];
    });
    const least = entries.reduce((a, [total]) => Math.min(a, total), Infinity);
    entries.push(...this.extensions(least, tokens));
    this.enter(entries.sort(byFirst).slice(0, this.size));
  }

  /** Prefixes that are not in the beam and may enter it; `least` is the worst total in it. */
  extensions(least, tokens) {
    const { words, mostWords } = this, found = [];
    const floor = this.beam.length === this.size ? least : 0;
    this.beam.forEach((node, i) => {
      const bound = floor / node.growth;
      const n = Math.floor((SLACK * this.size) / (this.lm ? 1 : i + 1));
      for (const [p, token] of tokens.slice(0, n)) {
        let value = node.total * p;
        if (value <= bound) break;
        if (token === node.token) value = node.ofBlank * p;
        let child = node.children.get(token);
        const hasOwnFactor = this.lm || (words.length && words[token] !== mostWords);
        if (!child && hasOwnFactor) child = this.child(node, token);
        if (child?.isLive) continue;
        value *= child ? child.factor : node.growth;
        if (value > floor) found.push([value, 0, value, child ?? node, child ? ITSELF : token]);
      }
    });
    return found;
  }

  child(parent, token) {
    const node = new Prefix(parent, token);
    if (this.words.length) node.words = parent.words + this.words[token];
    if (this.lm) {
      const [lm, state] = this.lm.score(parent.lmState, token);
      node.lm = parent.lm + lm;
      node.lmState = state;
    }
    node.added = (this.weighted(0, node.lm) + this.length(node)) / this.alpha;
    node.factor = exp(node.added - parent.added);
    node.growth = this.growth(node.words);
    parent.children.set(token, node);
    return node;
  }

  /** What the length of a prefix adds to its score. */
  length(node) {
    return this.gamma * Math.sqrt(node.words) + this.tokenBonus * node.length;
  }

  /** The factor of the length of the longest token after so many words. */
  growth(words) {
    const more = Math.sqrt(words + this.mostWords) - Math.sqrt(words);
    return exp((this.gamma * more + this.tokenBonus) / this.alpha);
  }

  /** Makes these the beam, best first; its total becomes 1 where it is small or large. */
  enter(entries) {
    const beam = [];
    for (const [total, ofBlank, ofToken, origin, token] of entries) {
      if (!total) break;
      const node = token === ITSELF ? origin : this.child(origin, token);
      if (!node.isLive) {
        if (!node.mass) {
          this.prefixes.push(node);
          node.scale = this.logScale;
        }
        this.record(node, ofToken);
      }
      beam.push([total, ofBlank, ofToken, node]);
    }
    for (const node of this.beam) node.isLive = false;
    const best = beam[0][0], scale = SMALL < best && best < 1 / SMALL ? 1 : 1 / best;
    this.logScale -= Math.log(scale);
    for (const [total, ofBlank, ofToken, node] of beam) {
      Object.assign(node, { total: total * scale, ofBlank: ofBlank * scale, ofToken: ofToken * scale, isLive: true });
    }
    this.beam = beam.map(([, , , node]) => node);
  }

  /** Adds to P that a text begins so what comes from the parent at this step. */
  record(node, inflow) {
    inflow *= exp(this.logScale - node.scale);
    node.mass += inflow;
    if (inflow > node.peak) [node.peak, node.step] = [inflow, this.steps];
  }
}
