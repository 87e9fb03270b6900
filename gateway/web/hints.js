// What to tell people when something is missing or ends.

const CLOSED = {
  1000: "The conversation has ended.",
  1001: "The server went away.",
  1008: "The server ended the conversation.",
  1009: "A message was too large for the server.",
  1011: "Something failed on the server.",
  1012: "The server is restarting.",
  1013: "The server is full right now.",
};

/** What to tell someone whose connection closed. A browser hides why an upgrade was refused. */
export function closeHint(code, wasOpen) {
  if (!wasOpen) return "No connection: the server may be stopped, full, or ask for a key. Press start to try again.";
  return `${CLOSED[code] ?? "The connection was lost."} Press start to connect again.`;
}

/** What to tell someone whose microphone did not open; name is the DOMException's. */
export function microphoneHint(name) {
  if (name === "NotAllowedError") return "The microphone is blocked. Allow it in the browser's site settings and start again; until then you can type.";
  if (name === "NotFoundError") return "There is no microphone. You can still type.";
  return "The microphone could not be opened. You can still type.";
}

/** What keeps this page from sound at all; empty when nothing does. */
export function contextHint(secure, hasDevices) {
  if (secure && hasDevices) return "";
  return "Browsers give the microphone and sound worklets to secure pages only. Open this page over https, or on this machine as http://localhost.";
}

/** Why a start failed; name is the DOMException's. A key with foreign characters makes no subprotocol. */
export function startHint(name) {
  return name === "SyntaxError" ? "That key cannot be sent from a browser." : "This browser could not open its sound output.";
}
