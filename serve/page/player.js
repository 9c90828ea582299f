// Playback, with the waveform as a slider.

import { clock } from "./files.js";
import { t } from "./i18n.js";

const BAR = 3; // CSS pixels from bar to bar
const DRAWN_RATE = 8000; // Hz: an hour is then held in 115 MB while it is measured

export class Player {
  constructor(parts, onTime) {
    Object.assign(this, parts); // section, audio, button, canvas, name, length
    this.onTime = onTime;
    const { audio, button, canvas } = this;
    this.levels = null;
    button.addEventListener("click", () => this.toggle());
    for (const event of ["play", "pause", "ended"]) audio.addEventListener(event, () => this.show());
    for (const event of ["timeupdate", "seeked", "durationchange"]) {
      audio.addEventListener(event, () => this.draw());
    }
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.onPointer(event);
    });
    canvas.addEventListener("pointermove", (event) => event.buttons && this.onPointer(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get seconds() {
    return Number.isFinite(this.audio.duration) ? this.audio.duration : 0;
  }

  async load(file) {
    URL.revokeObjectURL(this.audio.src);
    this.audio.src = URL.createObjectURL(file);
    this.name.textContent = this.name.title = file.name;
    this.levels = null;
    this.section.hidden = false;
    this.draw();
    const current = this.audio.src;
    const levels = await measure(file).catch(() => new Float32Array()); // it plays without a waveform
    if (this.audio.src !== current) return;
    this.levels = levels;
    this.draw();
  }

  stop() {
    this.audio.pause();
  }

  playFrom(seconds) {
    this.audio.currentTime = seconds;
    this.audio.play();
  }

  toggle() {
    if (this.audio.paused) this.audio.play();
    else this.audio.pause();
  }

  show() {
    this.button.setAttribute("aria-pressed", String(!this.audio.paused));
    this.button.setAttribute("aria-label", t(this.audio.paused ? "Play" : "Pause"));
    this.draw();
    if (!this.audio.paused) requestAnimationFrame(() => this.show());
  }

  onPointer({ clientX }) {
    const { left, width } = this.canvas.getBoundingClientRect();
    this.audio.currentTime = this.seconds * Math.max(0, Math.min(1, (clientX - left) / width));
  }

  onKey(event) {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
    const { currentTime } = this.audio;
    if (event.key === " " || event.key === "Enter") this.toggle();
    else if (event.key === "Home") this.audio.currentTime = 0;
    else if (event.key === "End") this.audio.currentTime = this.seconds;
    else if (event.key in steps) {
      this.audio.currentTime = Math.max(0, Math.min(this.seconds, currentTime + steps[event.key]));
    } else return;
    event.preventDefault();
  }

  draw() {
    const { currentTime } = this.audio;
    this.length.textContent = `${clock(currentTime)} / ${clock(this.seconds)}`;
    this.canvas.setAttribute("aria-valuemax", this.seconds.toFixed(1));
    this.canvas.setAttribute("aria-valuenow", currentTime.toFixed(1));
    this.canvas.setAttribute("aria-valuetext", t("{0} of {1}", clock(currentTime), clock(this.seconds)));
    this.paint(this.seconds ? currentTime / this.seconds : 0);
    this.onTime(currentTime);
  }

  paint(played) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = devicePixelRatio;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.canvas);
    const [ahead, behind] = ["--wave", "--accent"].map((name) => style.getPropertyValue(name));
    const count = Math.floor(width / BAR);
    for (let bar = 0; bar < count; bar++) {
      pen.fillStyle = bar / count < played ? behind : ahead;
      const tall = Math.max(2, this.level(bar, count) * height);
      pen.fillRect(bar * BAR, (height - tall) / 2, BAR - 1, tall);
    }
    pen.fillStyle = behind;
    pen.fillRect(Math.min(width - 2, played * width), 0, 2, height);
  }

  level(bar, count) {
    if (!this.levels?.length) return 0;
    const [from, to] = [bar, bar + 1].map((at) => Math.floor((at / count) * this.levels.length));
    return this.levels.subarray(from, Math.max(to, from + 1)).reduce((a, b) => Math.max(a, b));
  }
}

/** The peaks of a recording, a few thousand at most, scaled to 1. */
async function measure(file) {
  const context = new OfflineAudioContext(1, 1, DRAWN_RATE);
  const wave = (await context.decodeAudioData(await file.arrayBuffer())).getChannelData(0);
  const share = Math.max(1, Math.ceil(wave.length / 4000));
  const levels = new Float32Array(Math.ceil(wave.length / share));
  wave.forEach((sample, i) => {
    const at = Math.floor(i / share);
    levels[at] = Math.max(levels[at], Math.abs(sample));
  });
  const loudest = levels.reduce((a, b) => Math.max(a, b), 1e-6);
  return levels.map((level) => level / loudest);
}
