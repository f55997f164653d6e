/** One request: its token, its time limit, and an answer of limited length. */

import { Problem, TransportError, problemOf } from "./errors.js";
import { within } from "./time.js";
import { type Received, transportOf } from "./transport.js";

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
  /** Sends all requests. Default: in Node its HTTP client, elsewhere `fetch`. */
  fetch?: typeof fetch;
}

/** Sends a request once. Returns what `read` makes of the answer, which is undefined if its status is 204. */
export async function exchange<T>(urls: Urls, request: Request, options: HttpOptions, read: (body: unknown) => T): Promise<T> {
  const { method, path, content = null, to = "producer", hasPayloads = false, wait = 0, signal } = request;
  const { token, timeout = 10_000 } = options;
  // Otherwise, a proxy may compress the answer. Browsers ignore this header.
  const headers: Record<string, string> = { ...request.headers, "accept-encoding": "identity" };
  if (content !== null) headers["content-type"] = "application/json";
  let answer: Received;
  let text;
  // Not `AbortSignal.any`: in Node 20, each would stay in the memory of the caller's signal.
  const ending = new AbortController();
  const all = ending.signal;
  const stop = () => ending.abort(signal?.reason);
  const timer = setTimeout(() => ending.abort(new DOMException("the time limit is over", "TimeoutError")), timeout + wait);
  try {
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    if (token !== undefined) headers.authorization = `Bearer ${await within(all, readToken(token))}`;
    const sending = { method, headers, body: content, signal: all };
    answer = await transportOf(options.fetch)(urls[to] + path, sending, hasPayloads ? MAX_PAYLOADS : MAX_ANSWER);
    text = new TextDecoder("utf-8", { fatal: true }).decode(answer.body);
  } catch (cause) {
    if (cause instanceof TransportError) throw cause;
    // The query may have an ordering key.
    throw new TransportError(`no answer to ${method} ${urls[to]}${path.split("?")[0]}: ${String(cause)}`, { cause });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
  const { status } = answer;
  // A redirect would take the payload and the token to another address.
  if (status >= 300 && status < 400) {
    throw new Problem(status, { title: "not an answer from Lisa", detail: "a redirect, which is not followed" });
  }
  if (status >= 400) throw problemOf(status, text, answer.header("retry-after"));
  // A proxy may answer with anything. Lisa may have carried out the request.
  let body: unknown;
  try {
    body = status === 204 ? undefined : JSON.parse(text);
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
