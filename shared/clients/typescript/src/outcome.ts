/** The outcomes of deliveries, and options as JSON has them. */

import { type Duration, type Instant, milliseconds } from "./time.js";

export type Body = Record<string, unknown>;

/** The outcome of a delivery. */
export type Outcome =
  | { ack: true }
  | { retry: { after?: Duration; error?: string } }
  | { defer: { after: Duration } | { until: Instant } }
  | { reject: { error?: string } };

const VERBS = ["ack", "retry", "defer", "reject"];
const DURATIONS = new Set(["delay", "ttl", "after", "lease", "wait", "catch_up"]);
const MAX_ERROR = 1024;

/** Returns a delivery with its outcome as JSON has it. */
export function settleItem(token: string, outcome: Outcome): Body {
  const [[verb, body] = ["", undefined], ...others] = Object.entries((outcome as Body | null) ?? {}) as [string, unknown][];
  const isBody = verb === "ack" ? body === true : typeof body === "object" && body !== null;
  if (!VERBS.includes(verb) || !isBody || others.length > 0) {
    throw new TypeError(`not an outcome: ${JSON.stringify(outcome)}; use one of ${VERBS.join(", ")}, such as { retry: { after: "30s" } }`);
  }
  return { token, [verb]: body === true ? true : texts(shortened(body as Body)) };
}

/** Lisa keeps 1 KiB of an error, and refuses a much longer one. */
function shortened(body: Body): Body {
  if (typeof body.error !== "string") return body;
  const bytes = new TextEncoder().encode(body.error).subarray(0, MAX_ERROR);
  return { ...body, error: new TextDecoder().decode(bytes, { stream: true }) };
}

/** Returns options as JSON has them: durations and instants as texts. Those that are undefined are left out. */
export function texts(options: object): Body {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(
    given.map(([name, value]) => {
      if (DURATIONS.has(name) && typeof value === "number") return [name, `${Math.round(milliseconds(name, value))}ms`];
      return [name, value instanceof Date ? value.toISOString() : (value as unknown)];
    }),
  );
}
