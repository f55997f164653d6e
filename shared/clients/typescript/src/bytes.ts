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

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

/** Makes a UUID of version 7, whose first part is the time. */
export function uuidV7(): string {
  if (used === random.length) {
    crypto.getRandomValues(random);
    used = 0;
  }
  const bytes = random.subarray(used, (used += 16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x70;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = (from: number, to: number) => {
    let text = "";
    for (let n = from; n < to; n++) text += HEX[bytes[n]!];
    return text;
  };
  const time = Date.now().toString(16).padStart(12, "0");
  return `${time.slice(0, 8)}-${time.slice(8)}-${hex(6, 8)}-${hex(8, 10)}-${hex(10, 16)}`;
}
