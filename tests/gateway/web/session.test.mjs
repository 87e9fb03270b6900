import assert from "node:assert/strict";
import { test } from "node:test";

import { closeHint, contextHint, microphoneHint, startHint } from "../../../gateway/web/hints.js";
import { encodeBase64 } from "../../../gateway/web/pcm.js";
import { TalkSession } from "../../../gateway/web/session.js";

function talk(settings) {
  const page = { sent: [], played: [], flushes: 0, time: 0 };
  const ports = {
    send: (event) => page.sent.push(event),
    play: (id, samples) => page.played.push([id, samples.length]),
    flush: () => (page.flushes += 1),
    changed: () => {},
    now: () => page.time,
    outputLatencyMs: () => 20,
  };
  page.session = new TalkSession(ports, settings);
  page.say = (type, fields = {}) => page.session.receive(JSON.stringify({ type, event_id: "e", ...fields }));
  page.types = () => page.sent.map((event) => event.type);
  page.say("session.created", { session: {} });
  return page;
}

const tone = (samples) => encodeBase64(new Uint8Array(2 * samples));

function answer(page, samples, id = "item_a") {
  page.say("response.created", { response: { id: "resp_1" } });
  page.say("response.output_item.added", { item: { id, type: "message", role: "assistant" } });
  page.say("response.output_audio_transcript.delta", { item_id: id, delta: "Hello " });
  page.say("response.output_audio_transcript.delta", { item_id: id, delta: "there." });
  page.say("response.output_audio.delta", { item_id: id, delta: tone(samples) });
}

function finish(page, status = "completed", id = "item_a") {
  page.say("response.output_audio.done", { item_id: id });
  page.say("response.done", { response: { id: "resp_1", status, status_details: null, output: [{ id }] } });
}

test("the session is configured once it was created, and no sound leaves before", () => {
  const early = new TalkSession({ send: () => assert.fail("sent too early") });
  early.sendAudio(new Int16Array(960));
  assert.equal(early.state, "connecting");
  const page = talk({ turnDetection: "semantic_vad" });
  const { session } = page.sent[0];
  assert.equal(page.sent[0].type, "session.update");
  assert.equal(session.type, "realtime");
  assert.deepEqual(session.audio.input.format, { type: "audio/pcm", rate: 24000 });
  assert.equal(session.audio.input.turn_detection.type, "semantic_vad");
  assert.equal(page.session.state, "listening");
});

test("a spoken turn goes through its states and both transcripts appear in order", () => {
  const page = talk();
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
  assert.equal(page.session.state, "hearing");
  page.say("input_audio_buffer.speech_stopped", { item_id: "item_u", audio_end_ms: 0 });
  assert.equal(page.session.state, "thinking");
  page.say("conversation.item.input_audio_transcription.delta", { item_id: "item_u", delta: "What" });
  assert.deepEqual(page.session.texts("user"), ["What"]);
  answer(page, 2400);
  page.say("conversation.item.input_audio_transcription.completed", { item_id: "item_u", transcript: "What is it?" });
  page.session.player({ type: "started", itemId: "item_a", played: 0 });
  assert.equal(page.session.state, "speaking");
  finish(page);
  page.session.player({ type: "drained", itemId: "item_a", played: 2400 });
  assert.equal(page.session.state, "listening");
  assert.deepEqual(page.session.entries.map(({ role, text, status }) => [role, text, status]), [
    ["user", "What is it?", "final"],
    ["assistant", "Hello there.", "final"],
  ]);
  assert.deepEqual(page.played, [["item_a", 2400]]);
  assert.equal(page.session.counters.bytesPlayed, 4800);
});

test("latency runs from the end of speech on the input timeline to the first sound", () => {
  const page = talk();
  page.time = 2000;
  page.session.sendAudio(new Int16Array(48_000));
  page.time = 2100;
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 100 });
  page.say("input_audio_buffer.speech_stopped", { item_id: "item_u", audio_end_ms: 1500 });
  answer(page, 2400);
  page.time = 2300;
  page.session.player({ type: "started", itemId: "item_a", played: 0 });
  assert.equal(page.session.latencyMs, 2300 + 20 - 1500);
});

test("speech during the answer flushes at once and truncates at what was heard", () => {
  const page = talk();
  answer(page, 24_000);
  page.session.player({ type: "started", itemId: "item_a", played: 0 });
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
  assert.equal(page.flushes, 1);
  assert.ok(!page.types().includes("response.cancel"), "the server cancels by itself");
  page.session.player({ type: "flushed", itemId: "item_a", played: 12_000 });
  const truncate = page.sent.at(-1);
  assert.deepEqual({ ...truncate, event_id: "" }, { event_id: "", type: "conversation.item.truncate", item_id: "item_a", content_index: 0, audio_end_ms: 480 });
  page.say("response.output_audio.delta", { item_id: "item_a", delta: tone(2400) });
  assert.equal(page.played.length, 1, "late sound of an interrupted item is not played");
  assert.equal(page.session.counters.bytesStale, 4800);
  finish(page, "cancelled");
  assert.equal(page.session.entries[0].status, "interrupted");
  page.say("conversation.item.truncated", { item_id: "item_a", content_index: 0, audio_end_ms: 480 });
  assert.equal(page.sent.at(-1).type, "conversation.item.retrieve");
  page.say("conversation.item.retrieved", { item: { id: "item_a", type: "message", role: "assistant", content: [{ type: "output_audio", transcript: "Hello" }] } });
  assert.deepEqual(page.session.texts("assistant"), ["Hello"]);
});

test("an answer that was made but is still playing can be interrupted", () => {
  const page = talk();
  answer(page, 24_000);
  finish(page);
  page.session.player({ type: "progress", itemId: "item_a", played: 2400 });
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
  assert.equal(page.flushes, 1);
});

test("an answer that was heard to its end is never truncated", () => {
  for (const doneFirst of [true, false]) {
    const page = talk();
    answer(page, 2400);
    if (doneFirst) finish(page);
    page.session.player({ type: "started", itemId: "item_a", played: 0 });
    page.session.player({ type: "drained", itemId: "item_a", played: 2400 });
    if (!doneFirst) finish(page);
    page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
    assert.equal(page.flushes, 0);
    assert.ok(!page.types().includes("conversation.item.truncate"));
  }
});

test("a gap in delivery is not the end of an answer", () => {
  const page = talk();
  answer(page, 2400);
  page.session.player({ type: "drained", itemId: "item_a", played: 2400 });
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
  assert.equal(page.flushes, 1);
});

test("an answer flushed before its first sound is truncated at zero", () => {
  const page = talk();
  answer(page, 2400);
  page.say("input_audio_buffer.speech_started", { item_id: "item_u", audio_start_ms: 0 });
  page.session.player({ type: "flushed", itemId: null, played: 0 });
  assert.equal(page.sent.at(-1).audio_end_ms, 0);
});

test("a typed turn cancels the running answer, then asks", () => {
  const page = talk();
  answer(page, 24_000);
  assert.equal(page.session.sendText("  "), false);
  assert.equal(page.session.sendText(" And now? "), true);
  assert.deepEqual(page.types().slice(1), ["response.cancel", "conversation.item.create", "response.create"]);
  assert.equal(page.sent.at(-2).item.content[0].text, "And now?");
  assert.equal(page.flushes, 1);
  page.say("conversation.item.added", { item: { id: "item_t", type: "message", role: "user", content: [{ type: "input_text", text: "And now?" }] } });
  assert.deepEqual(page.session.texts("user"), ["And now?"]);
});

test("errors are shown, but not those that only lost a race", () => {
  const page = talk();
  answer(page, 2400);
  page.session.interrupt();
  const cancel = page.sent.find(({ type }) => type === "response.cancel");
  page.say("error", { error: { type: "invalid_request_error", code: "response_cancel_not_active", message: "m", event_id: cancel.event_id } });
  assert.equal(page.session.notice, "");
  page.say("error", { error: { type: "server_error", code: "internal_error", message: "Something failed.", event_id: null } });
  assert.equal(page.session.notice, "Something failed.");
  assert.equal(page.session.counters.errors, 1);
});

test("a failed answer and a noise leave the page listening", () => {
  const page = talk();
  page.say("input_audio_buffer.speech_started", { item_id: "item_n", audio_start_ms: 0 });
  page.say("input_audio_buffer.speech_stopped", { item_id: "item_n", audio_end_ms: 0 });
  page.say("conversation.item.input_audio_transcription.completed", { item_id: "item_n", transcript: "" });
  assert.equal(page.session.state, "listening");
  assert.deepEqual(page.session.entries, []);
  page.say("response.created", { response: { id: "resp_1" } });
  const error = { type: "server_error", code: "stage_failed", message: "The llm service failed." };
  page.say("response.done", { response: { id: "resp_1", status: "failed", status_details: { error }, output: [] } });
  assert.equal(page.session.state, "listening");
  assert.equal(page.session.notice, "The llm service failed.");
});

test("unknown events are ignored", () => {
  const page = talk();
  page.say("session.resumed", { anything: 1 });
  assert.equal(page.session.state, "listening");
});

test("hints say what to do", () => {
  assert.match(closeHint(1012, true), /restarting.*start/);
  assert.match(closeHint(4999, true), /lost.*start/);
  assert.match(closeHint(1006, false), /full/);
  assert.match(microphoneHint("NotAllowedError"), /blocked/);
  assert.match(microphoneHint("NotFoundError"), /no microphone/);
  assert.match(microphoneHint("AbortError"), /could not be opened/);
  assert.match(contextHint(false, true), /https/);
  assert.equal(contextHint(true, true), "");
  assert.match(startHint("SyntaxError"), /key/);
  assert.match(startHint("NotSupportedError"), /sound/);
});
