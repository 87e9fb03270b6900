// Microphone -> mono PCM16 at 24 kHz in frames of 40 ms, with their peak level.
import { floatToPcm16 } from "./pcm.js";
import { Resampler } from "./resampler.js";

const RATE = 24_000;
const FRAME = 960;

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = sampleRate === RATE ? null : new Resampler(sampleRate, RATE);
    this.frame = new Float32Array(FRAME);
    this.filled = 0;
  }

  process([channels]) {
    if (channels.length > 0) {
      const mono = this.mix(channels);
      this.collect(this.resampler ? this.resampler.push(mono) : mono);
    }
    return true;
  }

  mix(channels) {
    if (channels.length === 1) return channels[0];
    return channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
  }

  collect(samples) {
    for (const sample of samples) {
      this.frame[this.filled++] = sample;
      if (this.filled === FRAME) this.flush();
    }
  }

  flush() {
    const pcm = floatToPcm16(this.frame);
    const level = this.frame.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0);
    this.filled = 0;
    this.port.postMessage({ pcm, level }, [pcm.buffer]);
  }
}

registerProcessor("capture", Capture);
