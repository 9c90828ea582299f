// The microphone as blocks of 16-bit PCM, and the recording as a WAV file.

import { t } from "./i18n.js";

const REASONS = {
  NotAllowedError: "The microphone is not allowed: permit it for this page and try again.",
  NotFoundError: "There is no microphone: plug one in, or choose a file.",
  NotReadableError: "The microphone is in use by another program.",
};

export class Microphone {
  /** Opens the microphone; `onBlock` gets an Int16Array and its peak, 0 to 1. */
  static async open(onBlock) {
    if (!navigator.mediaDevices) {
      throw new Error(t("Browsers offer the microphone to https and localhost only: choose a file."));
    }
    // Processing for telephony (echo, noise, level) harms recognition.
    const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: plain });
    } catch (error) {
      throw new Error(t(REASONS[error.name] ?? "The microphone cannot be opened: {0}", error.message));
    }
    const context = new AudioContext();
    const microphone = new Microphone(stream, context);
    try {
      await context.audioWorklet.addModule(new URL("capture.js", import.meta.url));
    } catch (error) {
      await microphone.close();
      throw new Error(t("This browser cannot record: {0}", error.message));
    }
    microphone.listen(onBlock);
    return microphone;
  }

  constructor(stream, context) {
    this.stream = stream;
    this.context = context;
    this.blocks = [];
    this.seconds = 0;
  }

  get sampleRate() {
    return this.context.sampleRate;
  }

  listen(onBlock) {
    this.node = new AudioWorkletNode(this.context, "capture", { numberOfOutputs: 0 });
    this.node.port.onmessage = ({ data: { samples, peak, isLast } }) => {
      this.blocks.push(samples);
      this.seconds += samples.length / this.sampleRate;
      if (samples.length) onBlock(samples, peak);
      if (isLast) this.onLast();
    };
    this.context.createMediaStreamSource(this.stream).connect(this.node);
  }

  /** Resolves once all that was recorded by now has come, also a block that is not full. */
  flush() {
    return new Promise((resolve) => {
      this.onLast = resolve;
      this.node.port.postMessage("flush");
      setTimeout(resolve, 500); // where the browser has suspended audio
    });
  }

  async close() {
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.node) this.node.port.onmessage = null;
    await this.context.close();
  }

  /** The recording so far. */
  file() {
    const size = 2 * this.blocks.reduce((total, block) => total + block.length, 0);
    const parts = [header(size, this.sampleRate), ...this.blocks];
    const time = new Date().toTimeString().slice(0, 8).replaceAll(":", ".");
    return new File(parts, `recording ${time}.wav`, { type: "audio/wav" });
  }
}

function header(size, rate) {
  const view = new DataView(new ArrayBuffer(44));
  const text = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // mono
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, size, true);
  return view;
}
