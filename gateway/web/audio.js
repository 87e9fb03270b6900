// The browser's sound, both ways, behind two small classes. Both run at 24 kHz.
import { RATE } from "./session.js";

const module = (name) => new URL(name, import.meta.url);

/** Speech out. on(report) hears the playback worklet. */
export class Speaker {
  static async open(on) {
    const context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    await context.audioWorklet.addModule(module("./playback-worklet.js"));
    const node = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    node.port.onmessage = ({ data }) => on(data);
    node.connect(context.destination);
    await context.resume();
    return new Speaker(context, node);
  }

  constructor(context, node) {
    this.context = context;
    this.node = node;
  }

  get latencyMs() {
    return 1000 * (this.context.outputLatency || this.context.baseLatency || 0);
  }

  play(itemId, samples) {
    this.node.port.postMessage({ type: "push", itemId, samples }, [samples.buffer]);
  }

  flush() {
    this.node.port.postMessage({ type: "flush" });
  }

  async close() {
    this.node.port.onmessage = null;
    await this.context.close();
  }
}

/** Microphone in. on({pcm, level}) gets 40 ms at a time. raw switches the browser's own processing off. */
export class Microphone {
  static async open(on, { raw }) {
    const processing = !raw;
    const audio = { echoCancellation: processing, noiseSuppression: processing, autoGainControl: processing };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    try {
      const { context, source } = Microphone.tap(stream);
      await context.audioWorklet.addModule(module("./capture-worklet.js"));
      const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
      node.port.onmessage = ({ data }) => on(data);
      source.connect(node);
      await context.resume();
      return new Microphone(stream, context, node);
    } catch (error) {
      stream.getTracks().forEach((track) => track.stop());
      throw error;
    }
  }

  static tap(stream) {
    const context = new AudioContext({ sampleRate: RATE });
    try {
      return { context, source: context.createMediaStreamSource(stream) };
    } catch {
      // Firefox takes a microphone only at its own rate: the worklet resamples then.
      context.close();
      const own = new AudioContext();
      return { context: own, source: own.createMediaStreamSource(stream) };
    }
  }

  constructor(stream, context, node) {
    this.stream = stream;
    this.context = context;
    this.node = node;
  }

  async close() {
    this.node.port.onmessage = null;
    this.stream.getTracks().forEach((track) => track.stop());
    await this.context.close();
  }
}
