// Streaming band-limited resampling of the microphone, for browsers that cannot capture at 24 kHz.

const HALF_WIDTH = 16;

export class Resampler {
  /** Rates in Hz. */
  constructor(from, to) {
    this.step = from / to;
    this.cutoff = Math.min(1, to / from);
    this.half = Math.ceil(HALF_WIDTH / this.cutoff);
    // Silence before the first sample, so that the first output has a whole window.
    this.kept = new Float32Array(this.half);
    this.at = this.half;
  }

  /** Float samples in, those float samples out whose window is complete. */
  push(samples) {
    const input = new Float32Array(this.kept.length + samples.length);
    input.set(this.kept);
    input.set(samples, this.kept.length);
    const output = [];
    while (this.at + this.half < input.length) {
      output.push(this.#sampleAt(input, this.at));
      this.at += this.step;
    }
    const spent = Math.max(0, Math.floor(this.at) - this.half);
    this.kept = input.slice(spent);
    this.at -= spent;
    return Float32Array.from(output);
  }

  #sampleAt(input, at) {
    let sum = 0;
    const first = Math.ceil(at - this.half);
    const last = Math.floor(at + this.half);
    for (let i = Math.max(0, first); i <= last; i++) {
      const x = i - at;
      const window = 0.5 + 0.5 * Math.cos((Math.PI * x) / this.half);
      const phase = Math.PI * this.cutoff * x;
      sum += input[i] * window * this.cutoff * (phase === 0 ? 1 : Math.sin(phase) / phase);
    }
    return sum;
  }
}
