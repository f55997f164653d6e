/** Reading of answers: each function throws if an answer is not of the expected shape. */

import { fromBase64 } from "./bytes.js";
import { LisaError, Problem, type ProblemBody } from "./errors.js";
import type { Body } from "./outcome.js";

const encoder = new TextEncoder();

/** Returns an object with these texts, or throws. */
export function object(body: unknown, ...names: string[]): Body {
  return withFields("string", body, names);
}

/** Returns an object with these numbers, or throws. */
export function counts(body: unknown, ...names: string[]): Body {
  return withFields("number", body, names);
}

/** Returns an object with these booleans, or throws. */
export function flags(body: unknown, ...names: string[]): Body {
  return withFields("boolean", body, names);
}

/** Reads an answer without a body. */
export function nothing(body: unknown): void {
  if (body !== undefined) throw new TypeError("it has a body");
}

/** Returns an object with this list, or throws. */
export function withItems(name: string, body: Body): Body {
  if (!Array.isArray(body[name])) throw new TypeError(`${name} is missing`);
  return body;
}

function withFields(type: "string" | "number" | "boolean", body: unknown, names: string[]): Body {
  if (typeof body !== "object" || body === null || Array.isArray(body)) throw new TypeError("not an object");
  const missing = names.find((name) => typeof (body as Body)[name] !== type);
  if (missing !== undefined) throw new TypeError(`${missing} is missing`);
  return body as Body;
}

/** Reads the answer of a change of all messages of an ordering key. */
export function readKey<T>(body: unknown, changed: string): T {
  return withList("in_garbage", counts(body, changed, "garbage", "in_flight")) as T;
}

/** Returns an object with a list, which is left out if it is empty. */
export function withList(name: string, body: Body): Body {
  const { [name]: list = [] } = body;
  if (!Array.isArray(list)) throw new TypeError(`${name} is not a list`);
  return { ...body, [name]: list };
}

/** Reads the results of a batch. */
export function readResults<T>(answer: unknown, count: number): (T | LisaError)[] {
  const read = Array.from(answer as Body[], (one) => {
    if (!("error" in object(one))) return object(one, "outcome") as T;
    const error = object(one.error) as ProblemBody;
    return new Problem(error.status ?? 500, error);
  });
  if (read.length !== count) throw new TypeError(`${read.length} results for a batch of ${count}`);
  return read;
}

/** Returns a body with its payload as bytes, if it has one. */
export function withPayload(body: Body): Body {
  const { payload: _, payload_base64: __, ...rest } = body;
  const payload = payloadOf(body);
  return payload === undefined ? rest : { ...rest, payload };
}

/** Returns the payload of a body. */
export function payloadOf({ payload, payload_base64: base64 }: Body): Uint8Array | undefined {
  if (typeof base64 === "string") return fromBase64(base64);
  return typeof payload === "string" ? encoder.encode(payload) : undefined;
}
