// Results as files (txt, json, and the service's subtitles as srt and vtt), and times as text.

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

const subtitles = ({ segments }, point, write) =>
  segments
    .flatMap(({ cues }) => cues)
    .map((cue, i) => write(`${stamp(cue.start, point)} --> ${stamp(cue.end, point)}`, cue.text, i + 1))
    .join("");
const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const FORMATS = {
  txt: { type: "text/plain", write: ({ text }) => `${text}\n` },
  json: { type: "application/json", write: (result) => `${JSON.stringify(result)}\n` },
  srt: {
    type: "application/x-subrip",
    write: (result) => subtitles(result, ",", (span, text, i) => `${i}\n${span}\n${text}\n\n`),
  },
  vtt: {
    type: "text/vtt",
    write: (result) =>
      `WEBVTT\n\n${subtitles(result, ".", (span, text) => `${span}\n${escaped(text)}\n\n`)}`,
  },
};
