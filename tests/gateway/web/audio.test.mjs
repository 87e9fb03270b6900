import assert from "node:assert/strict";
import { test } from "node:test";

import { decodeBase64, encodeBase64, floatToPcm16, pcm16Bytes, pcm16ToFloat } from "../../../gateway/web/pcm.js";
import { Resampler } from "../../../gateway/web/resampler.js";

const processors = {};

async function load(name, rate) {
  globalThis.sampleRate = rate;
  globalThis.AudioWorkletProcessor = class {
    constructor() {
      this.port = { posted: [], postMessage: (message) => this.port.posted.push(message) };
    }
  };
  globalThis.registerProcessor = (key, processor) => (processors[key] = processor);
  await import(`../../../gateway/web/${name}-worklet.js?rate=${rate}`);
  return new processors[name]();
}

const sine = (hz, rate, seconds) => Float32Array.from({ length: rate * seconds }, (_, i) => 0.5 * Math.sin((2 * Math.PI * hz * i) / rate));
const level = (samples) => Math.sqrt(samples.reduce((sum, value) => sum + value * value, 0) / samples.length);

function blocks(samples, size) {
  const made = [];
  for (let i = 0; i < samples.length; i += size) made.push(samples.subarray(i, i + size));
  return made;
}

test("base64 and PCM16 survive the way there and back", () => {
  const pcm = floatToPcm16(Float32Array.from([0, 0.5, -0.5, 1, -1, 2, -2]));
  assert.deepEqual([...pcm], [0, 16384, -16383, 32767, -32767, 32767, -32767]);
  const bytes = decodeBase64(encodeBase64(pcm16Bytes(pcm)));
  assert.deepEqual([...bytes.subarray(0, 4)], [0, 0, 0, 0x40]);
  pcm16ToFloat(bytes).forEach((value, i) => assert.ok(Math.abs(value - pcm[i] / 32768) < 1e-6));
  const large = new Uint8Array(100_001).map((_, i) => i);
  assert.deepEqual(decodeBase64(encodeBase64(large)), large);
});

for (const rate of [48_000, 44_100, 16_000]) {
  test(`resampling ${rate} Hz keeps speech and removes what would alias`, () => {
    const convert = (hz) => {
      const resampler = new Resampler(rate, 24_000);
      return Float32Array.from(blocks(sine(hz, rate, 1), 128).flatMap((block) => [...resampler.push(block)]));
    };
    const low = convert(1000);
    assert.ok(Math.abs(low.length - 24_000) < 60, `${low.length} samples`);
    const steady = low.subarray(1000, 23_000);
    assert.ok(Math.abs(level(steady) - 0.5 / Math.SQRT2) < 0.005);
    const turns = steady.filter((value, i) => i > 0 && steady[i - 1] < 0 && value >= 0).length;
    assert.ok(Math.abs(turns - (22_000 / 24_000) * 1000) <= 2, `${turns} periods`);
    if (rate > 30_000) assert.ok(level(convert(16_000).subarray(1000, 23_000)) < 0.01);
  });
}

test("resampling does not depend on how the sound is cut", () => {
  const input = sine(700, 48_000, 0.2);
  const whole = new Resampler(48_000, 24_000).push(input);
  const cut = new Resampler(48_000, 24_000);
  const pieces = blocks(input, 97).flatMap((block) => [...cut.push(block)]);
  assert.deepEqual(pieces, [...whole]);
});

test("the capture worklet makes frames of 40 ms with their level", async () => {
  const capture = await load("capture", 24_000);
  for (const block of blocks(sine(440, 24_000, 0.1), 128)) capture.process([[block, block]]);
  assert.equal(capture.process([[]]), true);
  assert.deepEqual(capture.port.posted.map(({ pcm }) => pcm.length), [960, 960]);
  assert.ok(Math.abs(capture.port.posted[0].level - 0.5) < 0.01);
});

test("the capture worklet resamples where the browser cannot", async () => {
  const capture = await load("capture", 48_000);
  for (const block of blocks(sine(440, 48_000, 1), 128)) capture.process([[block]]);
  assert.equal(capture.port.posted.length, 24);
});

function render(playback, samples) {
  const output = new Float32Array(samples);
  for (const block of blocks(output, 128)) playback.process([], [[block]]);
  return output;
}

function push(playback, itemId, samples) {
  playback.port.onmessage({ data: { type: "push", itemId, samples } });
}

test("the playback worklet plays in order, to the sample, and reports it", async () => {
  const playback = await load("playback", 24_000);
  push(playback, "a", Float32Array.from({ length: 300 }, () => 0.25));
  push(playback, "a", new Float32Array(0));
  push(playback, "b", Float32Array.from({ length: 100 }, () => 0.5));
  const heard = render(playback, 512);
  assert.ok(heard.subarray(0, 300).every((value) => value === 0.25));
  assert.ok(heard.subarray(300, 400).every((value) => value === 0.5));
  assert.ok(heard.subarray(400).every((value) => value === 0));
  assert.deepEqual(playback.port.posted.map(({ type, itemId, played }) => [type, itemId, played]), [
    ["started", "a", 0],
    ["started", "b", 0],
    ["drained", "b", 100],
  ]);
});

test("the playback worklet goes on after a gap and counts on", async () => {
  const playback = await load("playback", 24_000);
  push(playback, "a", new Float32Array(128).fill(0.1));
  render(playback, 256);
  push(playback, "a", new Float32Array(128).fill(0.1));
  render(playback, 256);
  assert.deepEqual(playback.port.posted.map(({ type, played }) => [type, played]), [
    ["started", 0],
    ["drained", 128],
    ["progress", 128],
    ["drained", 256],
  ]);
});

test("a flush is silent within 5 ms and says what was heard", async () => {
  const playback = await load("playback", 24_000);
  push(playback, "a", new Float32Array(24_000).fill(0.5));
  render(playback, 6400);
  playback.port.onmessage({ data: { type: "flush" } });
  const { type, itemId, played } = playback.port.posted.at(-1);
  assert.deepEqual([type, itemId, played], ["flushed", "a", 6400]);
  const after = render(playback, 256);
  assert.ok(after[0] > 0.4 && after[60] > after[100], "it fades");
  assert.ok(after.subarray(120).every((value) => value === 0), "then nothing");
  playback.port.onmessage({ data: { type: "flush" } });
  assert.equal(playback.port.posted.at(-1).itemId, null);
  push(playback, "b", new Float32Array(128).fill(0.25));
  assert.ok(render(playback, 128).every((value) => value === 0.25));
});
