/** Verifies the signatures of webhooks (Standard Webhooks 1.0.0). */

import { fromBase64 } from "./bytes.js";

/** The request was not sent by Lisa with this secret, or is too old. */
export class InvalidSignature extends Error {
  override name = "InvalidSignature";
}

/**
 * Verifies the signature over the raw body, and returns the id of the message. While secrets are rotated, pass all of them.
 * The signature covers the id, the time of the attempt and the body, but no other header. `tolerance` is in seconds.
 *
 * Throws `InvalidSignature` if no signature matches or the request is too old, and `TypeError` for a secret that is none.
 */
export async function verifyWebhook(
  headers: Headers | Record<string, string | string[] | undefined>,
  body: Uint8Array | string,
  secret: string | string[],
  { tolerance = 300 }: { tolerance?: number } = {},
): Promise<string> {
  const [id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) => header(headers, name));
  if (!id || !timestamp || !signatures) throw new InvalidSignature("a webhook header is missing");
  // A dot in it could hide the time of an old request, whose body begins with the current time.
  if (!/^[A-Za-z0-9_:-]{1,64}$/.test(id)) throw new InvalidSignature("webhook-id is not a message id");
  const age = Math.abs(Date.now() / 1000 - Number(timestamp));
  if (!/^\d+$/.test(timestamp) || age > tolerance) throw new InvalidSignature("webhook-timestamp is too old or too new");
  const start = new TextEncoder().encode(`${id}.${timestamp}.`);
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const signed = new Uint8Array(start.length + bytes.length);
  signed.set(start);
  signed.set(bytes, start.length);
  const given = signatures.split(" ").filter((signature) => signature.startsWith("v1,"));
  for (const one of typeof secret === "string" ? [secret] : secret) {
    const key = await crypto.subtle.importKey("raw", keyOf(one), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of given) {
      let expected;
      try {
        expected = fromBase64(signature.slice(3));
      } catch {
        continue;
      }
      // Compares in constant time.
      if (await crypto.subtle.verify("HMAC", key, expected, signed)) return id;
    }
  }
  throw new InvalidSignature("no signature matches");
}

function header(headers: Headers | Record<string, string | string[] | undefined>, name: string): string | undefined {
  if (headers instanceof Headers) return headers.get(name) ?? undefined;
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  return Array.isArray(found) ? found[0] : found;
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const text = secret.trim();
  try {
    const key = fromBase64(text.slice("whsec_".length));
    if (text.startsWith("whsec_") && key.length > 0) return key;
  } catch {
    // Not base64.
  }
  throw new TypeError("secret: must be whsec_ followed by base64");
}
