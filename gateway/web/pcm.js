// PCM16 little-endian, float samples, base64: no DOM, no audio API.

const littleEndian = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

/** Float samples in [-1, 1] as an Int16Array; what is louder is clipped. */
export function floatToPcm16(samples) {
  const pcm = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i++) {
    const value = Math.max(-1, Math.min(1, samples[i]));
    pcm[i] = Math.round(value * 32767);
  }
  return pcm;
}

export function pcm16ToFloat(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const samples = new Float32Array(bytes.byteLength >> 1);
  for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
  return samples;
}

/** An Int16Array as bytes in little-endian order. */
export function pcm16Bytes(pcm) {
  if (littleEndian) return new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  const bytes = new Uint8Array(pcm.byteLength);
  const view = new DataView(bytes.buffer);
  pcm.forEach((value, i) => view.setInt16(2 * i, value, true));
  return bytes;
}

export function encodeBase64(bytes) {
  let text = "";
  // String.fromCharCode takes its characters as arguments, and those are bounded.
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

export function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
