// What happens when: a recording comes from a file or the microphone, its text from the service.

import { Dictation } from "./dictation.js";
import { FORMATS, clock, tidy } from "./formats.js";
import { Player } from "./player.js";
import { key, models, transcribe } from "./service.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);

let recording = null; // its file, whose name downloads take
let result = null; // what is shown, and downloaded
let request = null; // the AbortController of the one that is under way
let dictation = null; // from the microphone's opening to the last text
let retry = () => {}; // what a key is wanted for

const transcript = new Transcript(
  { list: $("segments"), partial: $("partial"), nbest: $("nbest") },
  (seconds) => player.playFrom(seconds),
);
const player = new Player(
  {
    section: $("player"), audio: $("audio"), button: $("play"), canvas: $("wave"),
    name: $("name"), length: $("duration"),
  },
  (seconds) => transcript.mark(seconds),
);

function say(status, cancellable = false) {
  $("status").textContent = status;
  $("cancel").hidden = !cancellable;
}

function complain(error, again = () => {}) {
  say("");
  $("error").textContent = error.message;
  $("error").hidden = false;
  $("unlock").hidden = error.status !== 401;
  retry = again;
  if (error.status === 401) $("key").focus();
}

/** What was under way is given up, what was shown goes. */
function clear() {
  request?.abort();
  dictation?.cancel();
  request = dictation = recording = result = null;
  $("error").hidden = $("unlock").hidden = $("player").hidden = $("result").hidden = true;
  $("take").hidden = $("how").hidden = true;
  $("heard").textContent = "";
  transcript.clear();
  player.stop();
  say("");
  showRecording(false);
}

function show(found) {
  result = found;
  $("result").hidden = false;
  $("warnings").textContent = (found.warnings ?? []).join(" ");
  $("warnings").hidden = !found.warnings?.length;
}

/** No more text will come. */
function conclude() {
  if (!result.text) transcript.addNothing();
  transcript.addReadings(result.nbest);
  $("take").hidden = $("how").hidden = false;
  say(`${clock(result.duration)} of audio transcribed.`);
}

function keep(file) {
  recording = file;
  player.load(file);
}

async function hear(file) {
  clear();
  keep(file);
  request = new AbortController();
  const { signal } = request;
  say("Transcribing…", true);
  try {
    const found = await transcribe(file, $("model").value, signal);
    found.segments.forEach((segment) => transcript.add(segment));
    show(found);
    conclude();
  } catch (error) {
    if (error.name !== "AbortError") complain(error, () => hear(file));
  }
}

function showRecording(running) {
  $("recording").hidden = !running;
  $("drop").hidden = running;
}

async function dictate() {
  clear();
  dictation = new Dictation({
    level: (peak, seconds) => {
      $("level").value = peak;
      $("elapsed").textContent = clock(seconds);
    },
    partial: (text) => {
      $("result").hidden = false;
      transcript.guess(text);
    },
    final: add,
    failed: (reason) => say(`${reason}. All is transcribed when you stop.`),
    stopped: (file) => {
      showRecording(false);
      $("record").focus();
      keep(file);
      say("Finishing…", true);
    },
    done: (heard) => {
      if (!heard) return hear(recording);
      show({ text: "", segments: [], nbest: [], ...result, duration: heard.duration });
      conclude();
    },
  });
  try {
    await dictation.start($("model").value);
    showRecording(true);
    $("stop").focus();
  } catch (error) {
    complain(error);
  }
}

/** A segment of live text. */
function add(segment, nbest) {
  const before = result ?? { text: "", segments: [] };
  transcript.guess("");
  transcript.add(segment);
  $("heard").append(`${segment.text} `);
  show({
    text: tidy(`${before.text} ${segment.text}`),
    duration: segment.end,
    segments: [...before.segments, segment],
    nbest: before.segments.length ? [] : nbest,
  });
}

async function listModels() {
  try {
    const names = await models();
    $("model").replaceChildren(...names.map((name) => new Option(name)));
    $("model").disabled = false;
  } catch (error) {
    complain(error);
  }
}

function download(format) {
  const { type, write } = FORMATS[format];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([write(result)], { type: `${type};charset=utf-8` }));
  link.download = `${recording?.name.replace(/\.[^.]*$/, "") ?? "recording"}.${format}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = ""; // so that the same file can be chosen again
  if (file) hear(file);
});
$("record").addEventListener("click", dictate);
$("stop").addEventListener("click", () => dictation.stop());
$("cancel").addEventListener("click", () => {
  request?.abort();
  dictation?.cancel();
  say("Cancelled.");
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(result.text);
    say("Copied.");
  } catch {
    complain(new Error("The browser does not let this page copy: take the txt file instead."));
  }
});
for (const button of document.querySelectorAll(".download")) {
  button.addEventListener("click", () => download(button.dataset.format));
}
$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.set($("key").value);
  $("unlock").hidden = $("error").hidden = true;
  const again = retry;
  await listModels();
  again();
});

// A file that misses the marked place would otherwise replace the page.
for (const event of ["dragover", "drop"]) {
  addEventListener(event, (dragged) => dragged.preventDefault());
}
addEventListener("dragover", () => $("drop").classList.add("over"));
addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) $("drop").classList.remove("over");
});
addEventListener("drop", ({ dataTransfer }) => {
  $("drop").classList.remove("over");
  if (dataTransfer.files.length && !$("drop").hidden) hear(dataTransfer.files[0]);
});

listModels();
