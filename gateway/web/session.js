// One conversation as the page sees it. No DOM, no socket, no audio API: everything comes in through calls and leaves through `ports`.
import { decodeBase64, encodeBase64, pcm16Bytes, pcm16ToFloat } from "./pcm.js";

export const RATE = 24_000;
// Errors of events with this prefix only say that the server was quicker than the page.
const OPTIONAL = "optional_";

/**
 * ports: send(object), play(itemId, Float32Array), flush(), changed(), now() in ms, outputLatencyMs().
 * settings: turnDetection ("server_vad" or "semantic_vad").
 */
export class TalkSession {
  constructor(ports, settings = {}) {
    this.ports = ports;
    this.settings = settings;
    this.open = false;
    this.hearing = false;
    this.playing = false;
    this.response = null;
    this.entries = [];
    this.notice = "";
    this.latencyMs = null;
    this.counters = { bytesSent: 0, bytesReceived: 0, bytesPlayed: 0, bytesStale: 0, flushes: 0, truncates: 0, responses: 0, errors: 0 };
    // Spoken items not yet heard to their end: id -> samples received, samples played, whether all of it is here.
    this.unheard = new Map();
    this.flushing = [];
    this.dropped = new Set();
    this.speechEndedAt = null;
    this.sentSamples = 0;
    this.sentAt = 0;
    this.counted = 0;
    this.optionalEvents = 0;
  }

  get state() {
    if (!this.open) return "connecting";
    if (this.hearing) return "hearing";
    if (this.playing) return "speaking";
    return this.response !== null || this.speechEndedAt !== null ? "thinking" : "listening";
  }

  /** What one side ("user" or "assistant") said, in order. */
  texts(role) {
    return this.entries.filter((entry) => entry.role === role).map((entry) => entry.text);
  }

  /** Int16Array of 24 kHz microphone sound. */
  sendAudio(pcm) {
    if (!this.open) return;
    this.sentSamples += pcm.length;
    this.sentAt = this.ports.now();
    this.counters.bytesSent += pcm.byteLength;
    this.ports.send({ type: "input_audio_buffer.append", audio: encodeBase64(pcm16Bytes(pcm)) });
  }

  /** A typed turn; it interrupts the answer that is being spoken. False when there is nothing to send. */
  sendText(text) {
    const said = text.trim();
    if (!this.open || said === "") return false;
    this.interrupt();
    const content = [{ type: "input_text", text: said }];
    this.ports.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
    this.ports.send({ type: "response.create" });
    this.speechEndedAt = this.ports.now();
    this.ports.changed();
    return true;
  }

  /** Stops the answer at once: what is queued here, and what the server still makes. */
  interrupt() {
    if (this.response !== null) this.#sendOptional({ type: "response.cancel", response_id: this.response });
    this.silence();
  }

  /** Flushes the playback of everything that was not heard to its end. */
  silence() {
    if (this.unheard.size === 0) return;
    this.flushing.push(...this.unheard.keys());
    for (const id of this.unheard.keys()) this.dropped.add(id);
    this.unheard.clear();
    this.counters.flushes += 1;
    this.ports.flush();
  }

  /** A report of the playback worklet: started, progress, drained or flushed, with the item and the samples of it that were played. */
  player({ type, itemId, played }) {
    this.#count(type, itemId, played);
    this.playing = type === "started" || type === "progress";
    if (type === "started" && this.speechEndedAt !== null) {
      this.latencyMs = Math.round(this.ports.now() + this.ports.outputLatencyMs() - this.speechEndedAt);
      this.speechEndedAt = null;
    }
    if (type === "flushed") {
      for (const id of this.flushing) this.#truncate(id, id === itemId ? played : 0);
      this.flushing = [];
    }
    this.ports.changed();
  }

  /** The text of one server event. */
  receive(text) {
    const event = JSON.parse(text);
    const handler = HANDLERS[event.type];
    if (!handler) return;
    handler(this, event);
    this.ports.changed();
  }

  configure() {
    this.open = true;
    const format = { type: "audio/pcm", rate: RATE };
    const turnDetection = { type: this.settings.turnDetection ?? "server_vad" };
    const input = { format, turn_detection: turnDetection, transcription: { model: "default" } };
    this.ports.send({ type: "session.update", session: { type: "realtime", audio: { input, output: { format } } } });
  }

  entry(id, role) {
    let entry = this.entries.find((one) => one.id === id);
    if (!entry) {
      entry = { id, role, text: "", status: "partial" };
      this.entries.push(entry);
    }
    return entry;
  }

  /** The final words of the user; nothing said leaves nothing behind. */
  heard(id, text) {
    const entry = this.entry(id, "user");
    entry.text = text;
    entry.status = "final";
    if (text !== "") return;
    this.entries.splice(this.entries.indexOf(entry), 1);
    if (this.response === null) this.speechEndedAt = null;
  }

  /** Speech ended at that point of the input timeline, whose last sample left at sentAt. */
  speechStopped(audioEndMs) {
    this.hearing = false;
    this.speechEndedAt = this.sentAt - ((this.sentSamples * 1000) / RATE - audioEndMs);
  }

  audio(id, delta) {
    const bytes = decodeBase64(delta);
    this.counters.bytesReceived += bytes.length;
    if (this.dropped.has(id)) {
      this.counters.bytesStale += bytes.length;
      return;
    }
    const item = this.unheard.get(id) ?? { received: 0, played: 0, complete: false };
    item.received += bytes.length / 2;
    this.unheard.set(id, item);
    this.ports.play(id, pcm16ToFloat(bytes));
  }

  audioDone(id) {
    const item = this.unheard.get(id);
    if (item) item.complete = true;
    this.#forgetHeard(id);
  }

  responseDone(response) {
    if (this.response === response.id) this.response = null;
    if (response.status === "failed") this.notice = response.status_details?.error?.message ?? "The answer failed.";
    if (response.status !== "cancelled" && this.unheard.size === 0) this.speechEndedAt = null;
    for (const item of response.output) {
      const entry = this.entries.find(({ id }) => id === item.id);
      if (entry) entry.status = response.status === "cancelled" ? "interrupted" : "final";
    }
  }

  error(error) {
    if (error.event_id?.startsWith(OPTIONAL)) return;
    this.counters.errors += 1;
    this.notice = error.message;
  }

  /** The server cut an item: ask what is left of it. */
  truncated(id) {
    this.#sendOptional({ type: "conversation.item.retrieve", item_id: id });
  }

  #count(type, itemId, played) {
    if (itemId === null) return;
    if (type === "started") this.counted = 0;
    this.counters.bytesPlayed += 2 * (played - this.counted);
    this.counted = played;
    const item = this.unheard.get(itemId);
    if (item) item.played = played;
    this.#forgetHeard(itemId);
  }

  #forgetHeard(id) {
    const item = this.unheard.get(id);
    if (item?.complete && item.played >= item.received) this.unheard.delete(id);
  }

  #truncate(id, played) {
    const heardMs = Math.max(0, Math.floor((played * 1000) / RATE - this.ports.outputLatencyMs()));
    this.counters.truncates += 1;
    this.#sendOptional({ type: "conversation.item.truncate", item_id: id, content_index: 0, audio_end_ms: heardMs });
  }

  #sendOptional(event) {
    this.optionalEvents += 1;
    this.ports.send({ event_id: `${OPTIONAL}${this.optionalEvents}`, ...event });
  }
}

const spokenText = (item) => item.content.map((part) => part.transcript ?? part.text ?? "").join("");

const HANDLERS = {
  error: (session, { error }) => session.error(error),
  "session.created": (session) => session.configure(),
  "input_audio_buffer.speech_started": (session, event) => {
    session.hearing = true;
    session.speechEndedAt = null;
    session.entry(event.item_id, "user");
    session.silence();
  },
  "input_audio_buffer.speech_stopped": (session, event) => session.speechStopped(event.audio_end_ms),
  "conversation.item.added": (session, { item }) => {
    const typed = item.role === "user" && item.content.some((part) => part.type === "input_text");
    if (typed) session.heard(item.id, spokenText(item));
  },
  "conversation.item.truncated": (session, event) => session.truncated(event.item_id),
  "conversation.item.retrieved": (session, { item }) => {
    const entry = session.entry(item.id, item.role);
    entry.text = spokenText(item);
    entry.status = "interrupted";
  },
  "conversation.item.input_audio_transcription.delta": (session, event) => {
    session.entry(event.item_id, "user").text += event.delta;
  },
  "conversation.item.input_audio_transcription.completed": (session, event) => session.heard(event.item_id, event.transcript),
  "conversation.item.input_audio_transcription.failed": (session, event) => {
    session.heard(event.item_id, "");
    session.notice = event.error.message;
  },
  "response.created": (session, { response }) => {
    session.response = response.id;
    session.notice = "";
    session.counters.responses += 1;
  },
  "response.output_item.added": (session, { item }) => {
    if (item.type === "message") session.entry(item.id, "assistant");
  },
  "response.output_audio.delta": (session, event) => session.audio(event.item_id, event.delta),
  "response.output_audio.done": (session, event) => session.audioDone(event.item_id),
  "response.output_audio_transcript.delta": (session, event) => {
    session.entry(event.item_id, "assistant").text += event.delta;
  },
  "response.output_text.delta": (session, event) => {
    session.entry(event.item_id, "assistant").text += event.delta;
  },
  "response.done": (session, { response }) => session.responseDone(response),
};
