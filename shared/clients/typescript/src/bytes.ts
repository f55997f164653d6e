/** Bytes and ids. */

/** Encodes bytes in base64 with padding. */
export function toBase64(bytes: Uint8Array): string {
  let text = "";
  // In parts, because a call takes a limited number of arguments.
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** Decodes base64. Throws if it is none. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

/** Random bytes for many ids: a call for each would take longer than all the rest. */
const random = new Uint8Array(4096);
let used = random.length;

/** Makes a UUID of version 7, whose first part is the time. */
export function uuidV7(): string {
  if (used === random.length) {
    crypto.getRandomValues(random);
    used = 0;
  }
  const bytes = random.slice(used, (used += 16));
  const now = Date.now();
  for (let n = 0; n < 6; n++) bytes[n] = Math.floor(now / 2 ** (8 * (5 - n))) & 0xff;
  bytes[6] = (bytes[6]! & 0x0f) | 0x70;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
