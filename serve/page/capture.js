// Runs in the audio thread: the microphone as 16-bit mono, in blocks of a tenth of a second.

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.port.onmessage = () => this.send({ isLast: true }); // asked at the end of a recording
    this.size = Math.round(sampleRate / 10);
    this.begin();
  }

  begin() {
    this.samples = new Int16Array(this.size);
    this.held = 0;
    this.peak = 0;
  }

  process([channels]) {
    for (let i = 0; i < (channels[0]?.length ?? 0); i++) {
      const sum = channels.reduce((total, channel) => total + channel[i], 0);
      const sample = Math.max(-1, Math.min(1, sum / channels.length));
      this.peak = Math.max(this.peak, Math.abs(sample));
      this.samples[this.held++] = Math.round(sample * 32767);
      if (this.held === this.size) this.send({ isLast: false });
    }
    return true;
  }

  send({ isLast }) {
    const samples = this.samples.slice(0, this.held);
    this.port.postMessage({ samples, peak: this.peak, isLast }, [samples.buffer]);
    this.begin();
  }
}

registerProcessor("capture", Capture);
