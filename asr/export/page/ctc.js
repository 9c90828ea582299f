// The CTC head's log-probability of a text over all paths, and when its tokens are said
// (asr/decoding/ctc_alignment.py). Rows of `logp` are V numbers; token 0 is the blank.

const NEVER = -1e10;

/** log P of a text over all paths of S steps (Graves et al. 2006, sec. 4.1). */
export function textLogProb(logp, S, V, tokens) {
  const L = 2 * tokens.length + 1;
  const label = (l) => (l % 2 ? tokens[(l - 1) / 2] : 0);
  let score = new Float64Array(L).fill(-Infinity);
  score[0] = logp[0];
  if (L > 1) score[1] = logp[label(1)];
  for (let s = 1; s < S; s++) {
    score = score.map((stay, l) => {
      const skip = l > 1 && label(l) && label(l) !== label(l - 2) ? score[l - 2] : -Infinity;
      return logSum(stay, l ? score[l - 1] : -Infinity, skip) + logp[s * V + label(l)];
    });
  }
  return logSum(score[L - 1], L > 1 ? score[L - 2] : -Infinity, -Infinity);
}

function logSum(a, b, c) {
  const most = Math.max(a, b, c);
  if (most === -Infinity) return most;
  return most + Math.log(Math.exp(a - most) + Math.exp(b - most) + Math.exp(c - most));
}

/** The first step of each token and the one after its last; null where the steps are too few. */
export function align(logp, S, V, tokens) {
  const repeats = tokens.filter((token, i) => token === tokens[i - 1]).length;
  if (tokens.length + repeats > S) return null;
  const L = 2 * tokens.length + 1;
  const label = (l) => (l % 2 ? tokens[(l - 1) / 2] : 0);
  const moves = [];
  let score = new Float64Array(L).fill(NEVER);
  for (let l = 0; l < Math.min(2, L); l++) score[l] = logp[label(l)];
  for (let s = 1; s < S; s++) {
    const move = new Uint8Array(L);
    score = score.map((stay, l) => {
      const step = l ? score[l - 1] : NEVER;
      const skip = l > 1 && label(l) && label(l) !== label(l - 2) ? score[l - 2] : NEVER;
      const best = Math.max(stay, step, skip);
      move[l] = best === stay ? 0 : best === step ? 1 : 2;
      return Math.fround(best + logp[s * V + label(l)]);
    });
    moves.push(move);
  }
  let state = L > 1 && score[L - 2] >= score[L - 1] ? L - 2 : L - 1;
  const spans = tokens.map(() => [0, 0]);
  for (let s = S - 1; s >= 0; s--) {
    if (state % 2) {
      const span = spans[(state - 1) / 2];
      span[0] = s;
      span[1] ||= s + 1;
    }
    if (s) state -= moves[s - 1][state];
  }
  return spans;
}

/** Tokens {text, start, end} in seconds (asr/transcription/timestamps.py). */
export function timedTokens(texts, spans, stepSeconds, start, end) {
  const firsts = spans.map(([first]) => first);
  const between = firsts.slice(1).map((first, i) => first - firsts[i]).sort((a, b) => a - b);
  const middle = between.length >> 1;
  const usual = !between.length ? 0 : between.length % 2 ? between[middle] : (between[middle - 1] + between[middle]) / 2;
  return texts.map((text, i) => {
    const last = Math.min(Math.max(spans[i][1], firsts[i] + usual), firsts[i + 1] ?? Infinity);
    return {
      text,
      start: Math.min(start + firsts[i] * stepSeconds, end),
      end: Math.min(start + last * stepSeconds, end),
    };
  });
}
