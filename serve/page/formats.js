// A transcript as txt, srt, vtt, json: the rules of asr/formats.py.

// A subtitle holds two lines of 20 Chinese characters or 40 Latin ones, for 7 seconds at most, and
// ends at a pause.
const [COLUMNS, LINES] = [40, 2];
const [LONGEST, PAUSE] = [7, 0.8]; // seconds

const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const isWide = (character = "") => WIDE.test(character);
const last = (items) => items[items.length - 1];

/** Tokens that no line may tear apart, as {text, start, end, confidence}; times may be guessed. */
export function words({ text, start, end, tokens, confidences }) {
  const groups = [];
  const known = tokens?.map((token, i) => ({ ...token, confidence: confidences?.[i] }));
  for (const token of known ?? evenly(text, start, end)) {
    const before = [...(last(last(groups) ?? [])?.text ?? "")];
    const [first] = token.text;
    const opens = /^\s/.test(token.text) || isWide(first) || isWide(last(before));
    if (opens || !groups.length) groups.push([]);
    last(groups).push(token);
  }
  return groups.map(joined).filter((word) => tidy(word.text));
}

function evenly(text, start, end) {
  const share = (end - start) / Math.max(1, [...text].length);
  return [...text].map((c, i) => ({ text: c, start: start + i * share, end: start + (i + 1) * share }));
}

function joined(tokens) {
  const known = tokens.map((token) => token.confidence).filter((c) => c != null);
  return {
    text: tokens.map((token) => token.text).join(""),
    start: tokens[0].start,
    end: last(tokens).end,
    confidence: known.length ? Math.min(...known) : null,
  };
}

/** A text with the spaces that it has when it is written. */
export function tidy(text) {
  return text.replace(/(?<=\p{sc=Han})\s+|\s+(?=\p{sc=Han})/gu, "").trim().replace(/\s+/g, " ");
}

const textOf = (line) => tidy(line.map((word) => word.text).join(""));
const columns = (text) => [...text].reduce((sum, c) => sum + (isWide(c) ? 2 : 1), 0);

function wrapped(cue) {
  const lines = [[]];
  for (const word of cue) {
    if (last(lines).length && columns(textOf([...last(lines), word])) > COLUMNS) lines.push([]);
    last(lines).push(word);
  }
  return lines.map(textOf);
}

function isFull(cue, word) {
  return (
    word.start - last(cue).end > PAUSE ||
    word.end - cue[0].start > LONGEST ||
    wrapped([...cue, word]).length > LINES
  );
}

function cues(segments) {
  const found = [];
  for (const segment of segments) {
    let cue = [];
    for (const word of words(segment)) {
      if (cue.length && isFull(cue, word)) cue = [];
      if (!cue.length) found.push(cue);
      cue.push(word);
    }
  }
  return found.map((cue) => ({
    start: cue[0].start,
    end: last(cue).end,
    text: wrapped(cue).join("\n"),
  }));
}

/** Seconds as people read them: 1:02, 1:00:02. */
export function clock(seconds) {
  const [h, m, s] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  const two = (number) => String(number).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

function stamp(seconds, point) {
  const milliseconds = Math.round(seconds * 1000);
  const time = new Date(milliseconds % 3_600_000).toISOString().slice(14, 23);
  const hours = String(Math.floor(milliseconds / 3_600_000)).padStart(2, "0");
  return `${hours}:${time.replace(".", point)}`;
}

const span = (cue, point) => `${stamp(cue.start, point)} --> ${stamp(cue.end, point)}`;
const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const FORMATS = {
  txt: { type: "text/plain", write: ({ text }) => `${text}\n` },
  json: { type: "application/json", write: (result) => `${JSON.stringify(result)}\n` },
  srt: {
    type: "application/x-subrip",
    write: ({ segments }) =>
      cues(segments).map((cue, i) => `${i + 1}\n${span(cue, ",")}\n${cue.text}\n\n`).join(""),
  },
  vtt: {
    type: "text/vtt",
    write: ({ segments }) =>
      `WEBVTT\n\n${cues(segments).map((cue) => `${span(cue, ".")}\n${escaped(cue.text)}\n\n`).join("")}`,
  },
};
