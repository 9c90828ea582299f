// The page's parts together: recordings come from files or the microphone, text from the service.

import { Dictation } from "./dictation.js";
import { FORMATS, clock } from "./files.js";
import { t, translate } from "./i18n.js";
import { Player } from "./player.js";
import { key, models, transcribe } from "./service.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);

const items = []; // {file, state, text, progress, result, error, row, spoken, live, kept}: the queue, in order
let shown = null; // the item whose text is on the page
let request = null; // the AbortController of the running one
let dictation = null; // from the microphone's opening to the last text
let sentence = []; // the status, as arguments of `t`

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

function say(...words) {
  sentence = words;
  $("status").textContent = words.length ? t(...words) : "";
}

function complain(error) {
  say();
  $("error").textContent = error.message;
  $("error").hidden = false;
  $("unlock").hidden = error.status !== 401;
  if (error.status === 401) $("key").focus();
}

// --- The queue. ---

function add(files, state = "waiting") {
  const added = [...files].map((file) => ({ file, state, text: "", progress: 0 }));
  for (const item of added) {
    const [row, button, name, label] = ["li", "button", "span", "span"].map((tag) => document.createElement(tag));
    [button.type, name.className, label.className] = ["button", "file-name", "state"];
    name.textContent = button.title = item.file.name;
    button.append(name, label);
    button.addEventListener("click", () => show(item));
    row.append(button);
    $("queue").append(row);
    items.push(Object.assign(item, { row: { button, label } }));
    set(item, {});
  }
  $("queue").hidden = items.length < 2;
  return added;
}

/** Transcribes what waits, one recording after the other. */
async function run() {
  if (request) return;
  for (let item; (item = items.find(({ state }) => state === "waiting")); ) {
    request = new AbortController();
    set(item, { state: "running", text: "", progress: 0, error: null });
    try {
      const result = await transcribe(item.file, $("model").value, request.signal, (delta, progress) =>
        set(item, { text: item.text + delta, progress }),
      );
      set(item, { state: "done", result });
    } catch (error) {
      if (error.name === "AbortError") continue; // it is marked as cancelled
      set(item, { state: "failed", error, result: kept(item) });
      if (error.status === 401) break;
    }
  }
  request = null;
  if (shown) draw();
}

const SPACE_BESIDE_HAN = /(?<=\p{Script=Han}) | (?=\p{Script=Han})/gu;

/** What live text had found before it failed, where nothing else can be found. */
function kept({ kept: segments }) {
  if (!segments?.length) return undefined;
  const text = segments.map((segment) => segment.text).join(" ").replace(SPACE_BESIDE_HAN, "");
  return { segments, text, duration: segments.at(-1).end };
}

/** Ends a dictation, whose text may still be coming. */
function endDictation() {
  if (dictation) showRecording(false);
  dictation?.cancel();
  dictation = null;
  for (const item of items) if (item.live) set(item, { state: "cancelled", live: false });
}

function cancel() {
  request?.abort();
  if (items.some(({ live }) => live)) endDictation(); // one that records goes on
  for (const item of items) {
    if (["waiting", "running"].includes(item.state)) set(item, { state: "cancelled" });
  }
}

function set(item, changes) {
  Object.assign(item, changes);
  const { state, progress, result, row } = item;
  const labels = { running: `${Math.round(100 * progress)} %`, done: result && clock(result.duration) };
  row.label.textContent = labels[state] ?? t(state);
  if (item === shown) draw("state" in changes);
}

// --- The shown item. ---

function show(item) {
  if (item !== shown) player.load(item.file);
  shown = item;
  for (const { row } of items) row.button.setAttribute("aria-current", row === item.row);
  draw();
}

/** Draws the shown item: all of it, or only how far it is. */
function draw(whole = true) {
  const { file, state, text, progress, result, error, spoken } = shown;
  const running = state === "running";
  if (whole) {
    transcript.clear();
    result?.segments.forEach((segment) => transcript.add(segment));
    if (result && !result.text) transcript.addNothing();
    transcript.addHypotheses(result?.segments.length === 1 ? result.segments[0].nbest : []);
    $("take").hidden = $("how").hidden = !result;
    for (const format of ["srt", "vtt"]) $(`as-${format}`).hidden = !result?.[format];
    $("keep").hidden = !spoken;
    $("warnings").textContent = (result?.warnings ?? []).join(" ");
    $("warnings").hidden = !result?.warnings?.length;
    $("error").hidden = $("unlock").hidden = true;
  }
  if (running) transcript.guess(text);
  $("result").hidden = !result && !(running && text);
  $("progress").hidden = !running;
  if (progress) $("progress").value = progress;
  else $("progress").removeAttribute("value");
  $("cancel").hidden = !request && !running;
  if (state === "failed") complain(error);
  else if (running) say(...(shown.live ? ["Finishing…"] : ["Transcribing {0}…", file.name]));
  else if (state === "done") say("{0} of audio transcribed.", clock(result.duration));
  else say(state === "cancelled" ? "Cancelled." : state);
}

// --- The microphone. ---

function showRecording(running) {
  $("recording").hidden = !running;
  $("drop").hidden = running;
}

async function dictate() {
  endDictation(); // recordings that wait go on beside it
  const before = shown ?? items.find(({ state }) => state === "running");
  shown = null;
  for (const id of ["error", "unlock", "player", "result", "take", "how", "progress", "cancel"]) $(id).hidden = true;
  $("spoken").textContent = "";
  transcript.clear();
  player.stop();
  say();
  const segments = [];
  let item;
  dictation = new Dictation({
    level: (peak, seconds) => {
      $("level").value = peak;
      $("elapsed").textContent = clock(seconds);
    },
    partial: (text) => {
      if (shown && shown !== item) return; // another is looked at meanwhile
      $("result").hidden = false;
      transcript.guess(text);
    },
    final: (segment) => {
      segments.push(segment);
      if (shown && shown !== item) return;
      $("result").hidden = false;
      transcript.guess("");
      transcript.add(segment);
      $("spoken").append(`${segment.text} `);
    },
    failed: (reason) => say("{0}. The whole recording is transcribed when you stop.", reason),
    stopped: (file) => {
      showRecording(false);
      $("record").focus();
      [item] = add([file], "running");
      Object.assign(item, { spoken: true, live: true });
      show(item);
      segments.forEach((segment) => transcript.add(segment));
      $("result").hidden = !segments.length;
    },
    done: (end) => {
      dictation = null;
      const changes = end ? { state: "done", result: { ...end, segments } } : { state: "waiting", kept: segments };
      set(item, { ...changes, live: false });
      if (!end) run();
    },
  });
  try {
    await dictation.start($("model").value);
    showRecording(true);
    $("stop").focus();
  } catch (error) {
    dictation = null;
    if (before) show(before);
    complain(error);
  }
}

// --- Events. ---

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
  const link = document.createElement("a");
  const { type, write } = FORMATS[format] ?? {};
  const content = write ? new Blob([write(shown.result)], { type: `${type};charset=utf-8` }) : shown.file;
  link.href = URL.createObjectURL(content);
  link.download = `${shown.file.name.replace(/\.[^.]*$/, "")}.${format}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function take(files) {
  const [first] = add(files);
  if (!items.some(({ state }) => state === "running")) show(first);
  run();
}

function speak() {
  translate();
  const other = document.documentElement.lang === "en" ? ["zh", "中文"] : ["en", "English"];
  const link = $("language");
  [link.lang, link.textContent] = other;
  link.hreflang = link.lang;
  link.href = `#${link.lang}`;
  for (const item of items) set(item, {});
  player.show();
  say(...sentence);
  if (shown) draw();
}

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", ({ target }) => {
  const files = [...target.files];
  target.value = ""; // so that the same file can be chosen again
  if (files.length) take(files);
});
$("record").addEventListener("click", dictate);
$("stop").addEventListener("click", () => dictation?.stop());
$("cancel").addEventListener("click", cancel);
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(shown.result.text);
    say("Copied.");
  } catch {
    complain(new Error(t("The browser does not let this page copy: save the txt file instead.")));
  }
});
for (const button of document.querySelectorAll(".download")) {
  button.addEventListener("click", () => download(button.dataset.format));
}
$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.set($("key").value);
  $("unlock").hidden = $("error").hidden = true;
  await listModels();
  for (const item of items) if (item.error?.status === 401) set(item, { state: "waiting", error: null });
  run();
});
addEventListener("hashchange", speak);

// A file that misses the target would otherwise replace the page.
for (const event of ["dragover", "drop"]) {
  addEventListener(event, (dragged) => dragged.preventDefault());
}
addEventListener("dragover", () => $("drop").classList.add("over"));
addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) $("drop").classList.remove("over");
});
addEventListener("drop", ({ dataTransfer }) => {
  $("drop").classList.remove("over");
  if (dataTransfer.files.length && !$("drop").hidden) take(dataTransfer.files);
});

speak();
listModels();
