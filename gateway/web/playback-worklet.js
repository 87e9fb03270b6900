// Speech out: a queue of pieces, each of one conversation item. It knows to the sample what of an item was played.

const FADE = 120; // 5 ms at 24 kHz: an interruption must not click
const REPORT_EVERY = 2400;

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.queue = [];
    this.offset = 0;
    this.item = null;
    this.played = 0;
    this.unreported = 0;
    this.idle = true;
    this.fading = 0;
    this.last = 0;
    this.level = 0;
    this.port.onmessage = ({ data }) => (data.type === "push" ? this.push(data) : this.flush());
  }

  push({ itemId, samples }) {
    if (samples.length > 0) this.queue.push({ itemId, samples });
  }

  /** Fades to silence within 5 ms and says what was heard of the item that played. */
  flush() {
    this.fading = this.idle ? 0 : FADE;
    this.idle = true;
    this.queue = [];
    this.offset = 0;
    this.report("flushed");
    this.item = null;
  }

  process(_inputs, [[output]]) {
    for (let i = 0; i < output.length; i++) {
      output[i] = this.queue.length > 0 ? this.next() : this.decay();
      this.level = Math.max(this.level, Math.abs(output[i]));
    }
    if (this.unreported >= REPORT_EVERY) this.report("progress");
    return true;
  }

  next() {
    const piece = this.queue[0];
    if (piece.itemId !== this.item) {
      this.item = piece.itemId;
      this.played = 0;
      this.report("started");
    } else if (this.idle) {
      this.report("progress");
    }
    this.idle = false;
    this.fading = 0;
    this.last = piece.samples[this.offset++];
    this.played += 1;
    this.unreported += 1;
    if (this.offset === piece.samples.length) this.turnOver();
    return this.last;
  }

  turnOver() {
    this.queue.shift();
    this.offset = 0;
    if (this.queue.length > 0) return;
    this.idle = true;
    this.report("drained");
  }

  decay() {
    if (this.fading === 0) return 0;
    this.fading -= 1;
    return (this.last * this.fading) / FADE;
  }

  report(type) {
    this.port.postMessage({ type, itemId: this.item, played: this.played, level: this.level });
    this.unreported = 0;
    this.level = 0;
  }
}

registerProcessor("playback", Playback);
