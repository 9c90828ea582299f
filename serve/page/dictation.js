// Dictation into the microphone with live text. If live text fails, recording continues, and the
// whole recording is sent as a file afterwards; the page can save it.

import { Microphone } from "./microphone.js";
import { Live } from "./service.js";

export class Dictation {
  /**
   * `on` has level(peak, seconds), partial(text), final(segment), failed(reason), stopped(file) and
   * done(end): with the session's last message, or with null if the file has to be sent.
   */
  constructor(on) {
    this.on = on;
    [this.failed, this.isStopping] = [false, false];
  }

  /** Resolves once the microphone is open. */
  async start(model) {
    const microphone = await Microphone.open((samples, peak) => {
      this.live?.send(samples);
      this.on?.level(peak, microphone.seconds);
    });
    if (!this.on) return microphone.close(); // cancelled meanwhile
    this.microphone = microphone;
    this.live = new Live(microphone.sampleRate, model, {
      partial: (text) => this.on?.partial(text),
      final: (segment) => this.on?.final(segment),
      end: (end) => this.on?.done(end),
      failed: (reason) => this.fail(reason),
    });
  }

  /** Ends recording; the rest of the text follows. */
  async stop() {
    const { microphone } = this;
    if (!microphone || this.isStopping) return;
    this.isStopping = true;
    await microphone.flush();
    if (!this.on) return; // cancelled meanwhile
    this.microphone = null;
    this.on.stopped(microphone.file());
    if (this.failed) this.on?.done(null);
    else this.live.end();
    await microphone.close();
  }

  /** Ends recording; no text follows. */
  cancel() {
    this.on = null;
    this.live?.close();
    this.microphone?.close();
    this.microphone = null;
  }

  fail(reason) {
    this.failed = true;
    if (this.microphone) this.on?.failed(reason);
    else this.on?.done(null);
  }
}
