// Results as files (txt, json, and the service's subtitles as srt and vtt), and times as text.

/** Seconds as people read them: 1:02, 1:00:02. */
export function clock(seconds) {
  const [h, m, s] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  const two = (number) => String(number).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

export const FORMATS = {
  txt: { type: "text/plain", write: ({ text }) => `${text}\n` },
  json: { type: "application/json", write: (result) => `${JSON.stringify(result)}\n` },
  srt: { type: "application/x-subrip", write: ({ srt }) => srt },
  vtt: { type: "text/vtt", write: ({ vtt }) => vtt },
};
