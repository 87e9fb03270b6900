// The page: wires the session to the socket, the sound and the document.
import { Microphone, Speaker } from "./audio.js";
import { closeHint, contextHint, microphoneHint, startHint } from "./hints.js";
import { TalkSession } from "./session.js";

const MAX_BUFFERED_BYTES = 1 << 20;
const STATES = {
  idle: "Press to talk",
  connecting: "Connecting…",
  listening: "Listening",
  hearing: "I hear you",
  thinking: "Thinking…",
  speaking: "Speaking",
};

const $ = (id) => document.getElementById(id);
const parameters = new URLSearchParams(location.search);
const page = { session: null, socket: null, speaker: null, microphone: null, starting: false, level: 0, closeCode: null };

function socketUrl(model) {
  const url = new URL("./v1/realtime", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  if (model) url.searchParams.set("model", model);
  return url;
}

function subprotocols() {
  const key = $("key").value.trim();
  return key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
}

function connect() {
  const socket = new WebSocket(socketUrl(parameters.get("model")), subprotocols());
  const ports = {
    send: (event) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(event)),
    play: (itemId, samples) => page.speaker.play(itemId, samples),
    flush: () => page.speaker.flush(),
    changed: show,
    now: () => performance.now(),
    outputLatencyMs: () => page.speaker.latencyMs,
  };
  const session = new TalkSession(ports, { turnDetection: $("turns").value });
  socket.onmessage = ({ data }) => session.receive(data);
  socket.onclose = ({ code }) => {
    if (page.socket !== socket) return;
    page.closeCode = code;
    stop(closeHint(code, session.open));
  };
  page.socket = socket;
  page.session = session;
}

async function openMicrophone() {
  const hear = ({ pcm, level }) => {
    page.level = Math.max(level, page.level * 0.8);
    // A connection that cannot keep up loses sound here rather than falling ever further behind.
    if (page.socket && page.socket.bufferedAmount < MAX_BUFFERED_BYTES) page.session.sendAudio(pcm);
    drawLevel();
  };
  try {
    return await Microphone.open(hear, { raw: parameters.get("raw") === "1" });
  } catch (error) {
    hint(microphoneHint(error.name));
    return null;
  }
}

async function start() {
  if (page.starting || page.socket) return;
  page.starting = true;
  hint("");
  show();
  try {
    page.speaker = await Speaker.open((report) => {
      page.level = Math.max(page.level, report.level);
      page.session?.player(report);
      drawLevel();
    });
    page.microphone = await openMicrophone();
    connect();
  } catch (error) {
    await stop(startHint(error.name));
  } finally {
    page.starting = false;
    show();
  }
}

async function stop(message = "") {
  const { socket, speaker, microphone } = page;
  page.socket = page.speaker = page.microphone = null;
  page.level = 0;
  drawLevel();
  if (socket) socket.onmessage = null;
  socket?.close(1000);
  if (message) hint(message);
  show();
  await Promise.all([speaker?.close(), microphone?.close()]);
}

function state() {
  if (page.starting) return "connecting";
  return page.socket ? page.session.state : "idle";
}

function hint(text) {
  $("hint").textContent = text;
  $("hint").hidden = text === "";
}

function drawLevel() {
  document.documentElement.style.setProperty("--level", Math.min(1, page.level * 1.6).toFixed(3));
}

function show() {
  const now = state();
  const live = now !== "idle";
  document.body.dataset.state = now;
  const told = now === "listening" && page.microphone === null ? "Type to talk" : STATES[now];
  if ($("state").textContent !== told) $("state").textContent = told;
  $("toggle").setAttribute("aria-pressed", String(live));
  $("toggle").setAttribute("aria-label", live ? "Stop the conversation" : "Start the conversation");
  $("interrupt").disabled = !["speaking", "thinking"].includes(now);
  $("send").disabled = $("text").disabled = !live || now === "connecting";
  for (const control of [$("turns"), $("key")]) control.disabled = live;
  if (!page.session) return;
  const { latencyMs, notice, entries } = page.session;
  $("latency").textContent = latencyMs === null ? "" : `${latencyMs} ms to first sound`;
  if (notice) hint(notice);
  showEntries(entries);
}

function showEntries(entries) {
  const list = $("transcript");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  const wanted = new Set(entries.map((entry) => entry.id));
  for (const child of [...list.children]) if (!wanted.has(child.dataset.id)) child.remove();
  entries.forEach((entry, index) => showEntry(list, entry, index));
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function showEntry(list, entry, index) {
  let line = [...list.children].find((child) => child.dataset.id === entry.id);
  if (!line) {
    line = document.createElement("li");
    line.dataset.id = entry.id;
    line.append(document.createElement("span"), document.createElement("p"));
    line.firstChild.className = "who";
    line.firstChild.textContent = entry.role === "user" ? "You" : "Parley";
    list.insertBefore(line, list.children[index] ?? null);
  }
  line.className = `${entry.role} ${entry.status}${entry.text ? "" : " wordless"}`;
  const text = entry.text || (entry.status === "interrupted" ? "(interrupted)" : "…");
  if (line.lastChild.textContent !== text) line.lastChild.textContent = text;
}

function checkContext() {
  const missing = contextHint(window.isSecureContext, Boolean(navigator.mediaDevices));
  if (missing) hint(missing);
  $("toggle").disabled = missing !== "";
}

$("toggle").addEventListener("click", () => (page.socket ? stop() : start()));
$("interrupt").addEventListener("click", () => page.session.interrupt());
$("say").addEventListener("submit", (event) => {
  event.preventDefault();
  if (page.session?.sendText($("text").value)) $("text").value = "";
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && page.socket) page.session.interrupt();
});

// For tests that drive this page from outside.
window.__parley = {
  get state() {
    return state();
  },
  get counters() {
    return { ...page.session?.counters };
  },
  get user() {
    return page.session?.texts("user") ?? [];
  },
  get assistant() {
    return page.session?.texts("assistant") ?? [];
  },
  get latencyMs() {
    return page.session?.latencyMs ?? null;
  },
  get closeCode() {
    return page.closeCode;
  },
};

checkContext();
show();
