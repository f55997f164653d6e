/** One request: its token, its time limit, and an answer of limited length. */

import { Problem, TransportError, problemOf } from "./errors.js";
import { within } from "./time.js";

/** The most bytes of an answer. */
const MAX_ANSWER = 8 * 1024 * 1024;
/** The most bytes of an answer with payloads: up to 16 MiB, each byte of which may take six in JSON. */
const MAX_PAYLOADS = 128 * 1024 * 1024;

/** The URLs of the listeners of a relay, without slashes at their ends. */
export interface Urls {
  producer: string;
  gateway: string;
  manager: string;
}

export interface Request {
  method: string;
  path: string;
  /** The body, as JSON. */
  content?: string;
  headers?: Record<string, string>;
  /** The listener that it goes to. Default: the producer. */
  to?: keyof Urls;
  hasPayloads?: boolean;
  wait?: number;
  signal?: AbortSignal | undefined;
}

/** The part of the configuration of a client that concerns single requests. */
export interface HttpOptions {
  /** The bearer token, or a function that returns it for each request. */
  token?: string | (() => string | Promise<string>);
  /** The time limit of one try, up to the last byte of the answer, in milliseconds. Default: 10,000. */
  timeout?: number;
  fetch?: typeof fetch;
}

/** Sends a request once. Returns what `read` makes of the answer. */
export async function exchange<T>(urls: Urls, request: Request, options: HttpOptions, read: (body: unknown) => T): Promise<T> {
  const { method, path, content = null, to = "producer", hasPayloads = false, wait = 0, signal } = request;
  const { token, timeout = 10_000, fetch: send = fetch } = options;
  // Otherwise, a proxy may compress the answer. Browsers ignore this header.
  const headers: Record<string, string> = { ...request.headers, "accept-encoding": "identity" };
  if (content !== null) headers["content-type"] = "application/json";
  let response, text;
  try {
    const limit = AbortSignal.timeout(Math.ceil(timeout + wait));
    const all = signal ? AbortSignal.any([signal, limit]) : limit;
    if (token !== undefined) headers.authorization = `Bearer ${await within(all, readToken(token))}`;
    // A redirect would take the payload and the token to another address.
    response = await send(urls[to] + path, { method, headers, body: content, redirect: "manual", signal: all });
    text = await readText(response, hasPayloads ? MAX_PAYLOADS : MAX_ANSWER);
  } catch (cause) {
    if (cause instanceof TransportError) throw cause;
    // The query may have an ordering key.
    throw new TransportError(`no answer to ${method} ${path.split("?")[0]}: ${String(cause)}`, { cause });
  }
  if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
    throw new Problem(response.status, { title: "not an answer from Lisa", detail: "a redirect, which is not followed" });
  }
  if (!response.ok) throw problemOf(response.status, text, response.headers);
  // A proxy may answer with anything. Lisa may have carried out the request.
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    // The error would quote the answer, which may have the token of a delivery.
    throw new TransportError("not an answer from Lisa: it is not JSON");
  }
  try {
    return read(body);
  } catch (cause) {
    throw new TransportError(`not an answer from Lisa: ${String(cause)}`, { cause });
  }
}

/** Reads the body, up to a limit. */
async function readText(response: Response, limit: number): Promise<string> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let text = "";
  for (let size = 0; reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > limit) {
      await reader.cancel();
      throw new RangeError(`it is longer than ${limit} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
  return text + decoder.decode();
}

/** Returns true if a text can be a bearer token. */
export function isToken(text: unknown): text is string {
  return typeof text === "string" && /^[!-~]+$/.test(text.trim());
}

/** Reads the token. While it is rotated, there may be none for a moment. */
async function readToken(token: string | (() => string | Promise<string>)): Promise<string> {
  try {
    const text = typeof token === "string" ? token : await token();
    if (isToken(text)) return text.trim();
  } catch (cause) {
    throw new TransportError(`cannot read the token: ${String(cause)}`, { cause });
  }
  throw new TransportError("cannot read the token: it is empty, or has invalid characters");
}
