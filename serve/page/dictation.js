// Speaking into the microphone with text while one speaks. What was said is never lost: where live
// text fails, recording goes on, and the whole of it is sent as a file afterwards.

import { Microphone } from "./microphone.js";
import { Live } from "./service.js";

export class Dictation {
  /**
   * `on` has level(peak, seconds), partial(text), final(segment, nbest), failed(reason),
   * stopped(file) and done(heard): when all text is there, or with null where the file has to be
   * sent.
   */
  constructor(on) {
    this.on = on;
    this.failed = false;
  }

  /** Resolves once the microphone is open. */
  async start(model) {
    const microphone = await Microphone.open((samples, peak) => {
      this.live?.send(samples);
      this.on?.level(peak, microphone.seconds);
    });
    if (!this.on) return microphone.close(); // given up meanwhile
    this.microphone = microphone;
    this.live = new Live(microphone.sampleRate, model, {
      partial: (text) => this.on?.partial(text),
      final: (segment, nbest) => this.on?.final(segment, nbest),
      end: (heard) => this.on?.done(heard),
      failed: (reason) => this.fail(reason),
    });
  }

  /** Recording ends; the texts that are still missing follow. */
  async stop() {
    const { microphone } = this;
    if (!microphone) return;
    this.microphone = null;
    this.on?.stopped(microphone.file());
    if (this.failed) this.on?.done(null);
    else this.live.end();
    await microphone.close();
  }

  /** Recording ends, and nothing follows. */
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
