// Words, and subtitles of them (asr/transcription/writers.py).

const COLUMNS = 40, LINES = 2;
const LONGEST = 7, SHORTEST = 0.7, PAUSE = 0.8; // seconds
const WIDE = /^[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const HAN = "\\u3007\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const SPACE_BESIDE_HAN = new RegExp(`(?<=[${HAN}]) | (?=[${HAN}])`, "gu");

/** Text in NFKC, with the letter AM of Thai and Lao as one (asr/tokenizer.py). */
export function normalized(text) {
  return text.normalize("NFKC").replaceAll("\u0e4d\u0e32", "\u0e33").replaceAll("\u0ecd\u0eb2", "\u0eb3");
}

/** Text without spaces beside Chinese characters, and without more than one elsewhere. */
export function tidy(text) {
  return normalized(text).split(/\s+/).filter(Boolean).join(" ").replace(SPACE_BESIDE_HAN, "");
}

const UNSPACED = "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\uff66-\uff9f]";
const BEGINS = new RegExp(`^${UNSPACED}`), ENDS = new RegExp(`${UNSPACED}[!?,.]*$`);

/** Texts one after the other, with a space where their script has some (asr/joining.py). */
export function joinTexts(texts) {
  return texts.filter(Boolean).reduce(
    (all, text) => all + (!all || (ENDS.test(all) && BEGINS.test(text)) ? "" : " ") + text, "");
}

const MARK = /['\-\u00b7\u05be\u05f3\u05f4]/, JOINER = /[\u200d\ufe0e\ufe0f]/;
const LETTER = /[\p{L}\p{M}\p{N}]/u, IS_HAN = new RegExp(`[${HAN}]`, "u");
const isLetter = (one) => LETTER.test(one ?? "") && !IS_HAN.test(one) && !JOINER.test(one);

/** Text without apostrophes and the like but those within words (asr/tokenizer.py). */
export function withoutMarks(text) {
  const isWithin = (one, i, all) => !MARK.test(one) || (isLetter(all[i - 1]) && isLetter(all[i + 1]));
  return [...text].map((...at) => (isWithin(...at) ? at[0] : " ")).join("");
}

const isWide = (character) => WIDE.test(character ?? "");

/** The words of tokens {text, start, end} and their confidences; a Chinese character is a word. */
export function wordsOf(tokens, confidences) {
  const found = [];
  tokens.forEach(({ text, start, end }, i) => {
    const [first] = text, last = found.at(-1), confidence = confidences[i];
    if (!last || /^\s/.test(text) || isWide(first) || isWide([...last.text].at(-1))) {
      found.push({ text, start, end, confidence });
    } else if (!last.text.trim()) { // a space that is a token, long before the word maybe
      Object.assign(last, { text: last.text + text, start, end, confidence });
    } else {
      Object.assign(last, { text: last.text + text, end, confidence: Math.min(last.confidence, confidence) });
    }
  });
  return found.filter(({ text }) => text.trim());
}

/** Tokens of a text whose times are unknown: its characters share the time evenly. */
export function evenly(text, start, end) {
  const share = (end - start) / Math.max(1, [...text].length);
  return [...text].map((one, i) => ({ text: one, start: start + i * share, end: start + (i + 1) * share }));
}

const columns = (text) => [...text].reduce((sum, one) => sum + (isWide(one) ? 2 : 1), 0);

/** The lines of a subtitle with one more word. */
function wrapped(lines, word) {
  const last = lines.at(-1);
  if (lines.length && columns(tidy(last + word.text)) <= COLUMNS) {
    return [...lines.slice(0, -1), last + word.text];
  }
  return [...lines, word.text];
}

/** Subtitles {start, end, text}; they end at pauses and with their segment, or when they are full. */
export function cuesOf(segments) {
  const found = [];
  for (const { words } of segments) {
    let cue = [], lines = [];
    const finish = () => {
      if (!cue.length) return;
      const end = Math.min(cue.at(-1).end, cue[0].start + LONGEST); // of a long word with pauses
      found.push({ start: cue[0].start, end, text: lines.map(tidy).join("\n") });
    };
    for (const word of words) {
      let longer = wrapped(lines, word);
      const isOver = cue.length && (word.start - cue.at(-1).end > PAUSE || word.end - cue[0].start > LONGEST);
      if (cue.length && (longer.length > LINES || isOver)) {
        finish();
        [cue, longer] = [[], [word.text]];
      }
      cue.push(word);
      lines = longer;
    }
    finish();
  }
  return found.map((cue, i) => {
    const latest = found[i + 1]?.start ?? segments.at(-1).end;
    return { ...cue, end: Math.max(cue.end, Math.min(cue.start + SHORTEST, latest)) };
  });
}

/** The nearest whole number, of two the even one, as Python rounds. */
function rounded(x) {
  const below = Math.floor(x), rest = x - below;
  return rest === 0.5 ? below + (below % 2) : Math.round(x);
}

/** Seconds with one digit after the point, as Python writes them: quarters are ties. */
export const tenths = (x) => ((4 * x) % 2 === 1 ? rounded(10 * x) / 10 : x).toFixed(1);

function stamp(seconds, point) {
  const total = rounded(seconds * 1000), two = (n) => String(Math.floor(n)).padStart(2, "0");
  const part = String(total % 1000).padStart(3, "0");
  return `${two(total / 3.6e6)}:${two((total / 60000) % 60)}:${two((total / 1000) % 60)}${point}${part}`;
}

const span = ({ start, end }, point) => `${stamp(start, point)} --> ${stamp(end, point)}`;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

export const asSrt = (cues) => cues.map((cue, i) => `${i + 1}\n${span(cue, ",")}\n${cue.text}\n\n`).join("");

export const asVtt = (cues) =>
  `WEBVTT\n\n${cues.map((cue) => `${span(cue, ".")}\n${cue.text.replace(/[&<>]/g, (c) => ESCAPES[c])}\n\n`).join("")}`;
