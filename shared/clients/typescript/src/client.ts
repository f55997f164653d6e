/** The client, and the deliveries that it pulls. */

import { fromBase64, toBase64, uuidV7 } from "./bytes.js";
import { LisaError, Problem, type ProblemBody, TransportError, problemOf } from "./errors.js";

/** The most items and bytes of a batch. */
const MAX_ITEMS = 1000;
const MAX_BYTES = 4 * 1024 * 1024 - 2;

/** A duration: milliseconds, or a string such as `"30m"`. */
type Duration = number | string;
/** An instant: a `Date`, or a string in RFC 3339. */
type Instant = Date | string;

/** The configuration of a client. */
export interface LisaOptions {
  /** The URL of the gateway, if it differs from the URL of the producer. */
  gateway?: string;
  /** The bearer token, or a function that returns it for each request. */
  token?: string | (() => string | Promise<string>);
  /** The time limit of one try, in milliseconds. Default: 10,000. */
  timeout?: number;
  /** The maximum number of tries of a request. Default: 5. */
  tries?: number;
  fetch?: typeof fetch;
}

/** The options of a message. The defaults are those of the topic. */
export interface SendOptions {
  /** The id (idempotency key). By default, a UUID of version 7. */
  id?: string;
  delay?: Duration;
  deliver_at?: Instant;
  key?: string;
  merge_key?: string;
  priority?: number;
  ttl?: Duration;
  expires_at?: Instant;
  max_attempts?: number;
  retry?: Record<string, unknown>;
  durability?: string;
  even_if_cancelled?: boolean;
  headers?: Record<string, string>;
}

/** A message of a batch: bytes and strings are sent unchanged, and everything else as JSON. */
export type NewMessage = SendOptions & { payload: unknown };

/** A message that was accepted. */
export interface Sent {
  id: string;
  outcome: "waiting" | "ready" | "merged" | "duplicate" | "rescheduled";
  due_at?: string | null;
  ended?: string;
  durability?: string;
}

/** A stored message with its state. */
export interface Message {
  id: string;
  topic: string;
  state: "waiting" | "backlog" | "parked" | "ready" | "in_flight" | "retry" | "garbage";
  due_at: string | null;
  attempt: number;
  headers: Record<string, string>;
  groups: GroupState[];
  payload: Uint8Array;
}

/** The state of a message in a group, and what it waits for. */
export interface GroupState {
  group: string;
  state: string;
  why: string;
  /** The message that holds its ordering key, if it is parked. */
  holder?: string;
  /** The last failed attempts, up to five, newest first. */
  attempts?: FailedAttempt[];
}

/** A failed attempt of a message. Lisa keeps 200 bytes of an error. */
export interface FailedAttempt {
  at: string;
  outcome: "failed" | "rejected" | "lease_expired";
  consumer?: string;
  error: string;
}

/** A cancelled message. Its payload is missing if it was cancelled before. */
export interface Cancelled {
  id: string;
  headers?: Record<string, string>;
  in_garbage?: string[];
  payload?: Uint8Array;
}

/** The end of a delivery, or the new end of its lease. */
export interface Ended {
  outcome: "acked" | "retry" | "deferred" | "garbage" | "expired" | "lost" | "extended";
  due_at?: string;
  lease_until?: string;
}

/** The outcome of a delivery. */
export type Outcome =
  | { ack: true }
  | { retry: { after?: Duration; error?: string } }
  | { defer: { after: Duration } | { until: Instant } }
  | { reject: { error?: string } };

/** The options of a pull. */
export interface PullOptions {
  group?: string;
  /** The maximum number of deliveries. Default: 1. */
  max?: number;
  /** The time to wait for the first message, at most 30 s. Default: 20 s. */
  wait?: Duration;
  lease?: Duration;
  consumer?: string;
  signal?: AbortSignal;
}

/** The options of a worker. */
export interface WorkOptions {
  group?: string;
  concurrency?: number;
  /** The lease, in milliseconds, which is extended while a handler runs. Default: 60,000. */
  lease?: number;
  consumer?: string;
  /** Stops the worker: it pulls no more, and running handlers may finish. */
  signal?: AbortSignal;
}

interface Request {
  method: string;
  path: string;
  body?: unknown;
  headers?: Record<string, string>;
  isToGateway?: boolean;
  wait?: number;
  signal?: AbortSignal | undefined;
}

/** A client of one relay. */
export class Lisa {
  readonly #urls: { producer: string; gateway: string };
  readonly #options: LisaOptions;

  /** Creates a client. The default address is that of `lisa-manager dev`. */
  constructor(url = "http://127.0.0.1:7812", options: LisaOptions = {}) {
    const trim = (text: string) => text.replace(/\/+$/, "");
    this.#urls = { producer: trim(url), gateway: trim(options.gateway ?? url) };
    this.#options = options;
  }

  /** Sends a message. Throws a `LisaError`; to repeat the send, use its `id`. */
  async send(topic: string, payload: unknown, options: SendOptions = {}): Promise<Sent> {
    const [result] = await this.sendMany(topic, [{ ...options, payload }]);
    if (result instanceof LisaError) throw result;
    return result!;
  }

  /** Sends any number of messages, in batches. Returns a result for each, in order: its receipt, or its error. */
  async sendMany(topic: string, messages: Iterable<NewMessage>): Promise<(Sent | LisaError)[]> {
    return this.#batch<Sent>(`${path("topics", topic)}/messages:batch`, Array.from(messages, item), false);
  }

  /** Looks up a message that is still stored. `key` finds a message with an id of your own without querying every shard. */
  async get(topic: string, id: string, key?: string): Promise<Message> {
    return withPayload(await this.#call({ method: "GET", path: path("topics", topic, "messages", id), headers: keyHeader(key) })) as unknown as Message;
  }

  /** Cancels a message that has not been delivered yet. */
  async cancel(topic: string, id: string, key?: string): Promise<Cancelled> {
    const body = await this.#call({ method: "DELETE", path: path("topics", topic, "messages", id), headers: keyHeader(key) });
    return withPayload(body) as unknown as Cancelled;
  }

  /** Reschedules a message that has not been delivered yet. */
  async reschedule(topic: string, id: string, due: { delay: Duration } | { deliver_at: Instant }, key?: string): Promise<Sent> {
    const request = { method: "PATCH", path: path("topics", topic, "messages", id), body: texts(due), headers: keyHeader(key) };
    return (await this.#call(request)) as unknown as Sent;
  }

  /** Pulls messages; none if no message became ready in time. */
  async pull(topic: string, { group = "default", wait = 20_000, signal, ...options }: PullOptions = {}): Promise<Delivery[]> {
    const body = texts({ ...options, wait });
    const request = { method: "POST", path: path("topics", topic, "groups", group, "pull"), body, isToGateway: true, wait: 30_000, signal };
    // A repeated pull could leave the messages of the first one to their lease: the caller decides.
    const answer = await this.#try(request);
    return (answer.deliveries as Body[]).map((delivery) => new Delivery(this, delivery));
  }

  /** Settles a delivery by its token. */
  async settle(token: string, outcome: Outcome): Promise<Ended> {
    const [verb, body] = Object.entries(outcome)[0] ?? [];
    const options = body === true ? {} : texts(body as object);
    const request = { method: "POST", path: path("deliveries", token, verb ?? ""), body: options, isToGateway: true };
    return (await this.#call(request)) as unknown as Ended;
  }

  /** Settles many deliveries, in batches. Returns a result for each, in order: its outcome, or its error. */
  async settleMany(items: Iterable<{ token: string } & Outcome>): Promise<(Ended | LisaError)[]> {
    const all = Array.from(items, ({ token, ...outcome }) => {
      const [verb, body] = Object.entries(outcome)[0]!;
      return { token, [verb]: body === true ? true : texts(body as object) };
    });
    return this.#batch<Ended>("/v1/deliveries:settle", all, true);
  }

  /** Replaces the lease of a delivery with a new one that starts now; by default the topic's. */
  async extend(token: string, lease?: Duration): Promise<Ended> {
    const body = lease === undefined ? {} : texts({ lease });
    return (await this.#call({ method: "POST", path: path("deliveries", token, "extend"), body, isToGateway: true })) as unknown as Ended;
  }

  /**
   * Pulls messages and runs a handler for each, until the signal is aborted. Acknowledges a message when its handler returns, and reports
   * a failed attempt when it throws. A handler can also return an outcome. The lease is extended while it runs; if it is lost,
   * the handler's signal is aborted. While the gateway is unavailable, it retries. Throws errors that a retry cannot fix.
   */
  async work(topic: string, handler: (delivery: Delivery, signal: AbortSignal) => Promise<Outcome | void> | Outcome | void, options: WorkOptions = {}): Promise<void> {
    const { group = "default", concurrency = 1, lease = 60_000, consumer } = options;
    const failed = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, failed.signal]) : failed.signal;
    const named = consumer === undefined ? {} : { consumer };
    const loop = async () => {
      for (let failures = 0; !signal.aborted; ) {
        let pulled: Delivery[];
        try {
          pulled = await this.pull(topic, { group, lease, ...named, signal });
          failures = 0;
        } catch (error) {
          if (signal.aborted) return;
          if (!(error instanceof LisaError) || !error.retryable) throw error;
          await pause(++failures, error.retryAfter, signal);
          continue;
        }
        for (const delivery of pulled) await run(delivery, handler, lease);
      }
    };
    const loops = Array.from({ length: concurrency }, () => loop().catch((error: unknown) => failed.abort(error)));
    await Promise.all(loops);
    if (failed.signal.aborted) throw failed.signal.reason;
  }

  async #batch<T>(where: string, items: object[], isToGateway: boolean): Promise<(T | LisaError)[]> {
    const results: (T | LisaError)[] = new Array(items.length);
    for (const chunk of chunks(items)) {
      let pending = chunk;
      const doubted = new Set<number>();
      for (let attempt = 1; pending.length > 0; attempt++) {
        const body = pending.map((index) => items[index]);
        let answers: (T | LisaError)[];
        try {
          const answer = (await this.#try({ method: "POST", path: where, body, isToGateway })) as unknown as Body[];
          answers = answer.map((one) => ("error" in one ? new Problem((one.error as ProblemBody).status ?? 500, one.error as ProblemBody) : (one as T)));
          if (answers.length !== pending.length) throw new Error(`${answers.length} results for a batch of ${pending.length}`);
        } catch (error) {
          if (!(error instanceof LisaError) || !error.retryable) throw error;
          answers = pending.map(() => error);
        }
        const again: number[] = [];
        let after = 0;
        pending.forEach((index, n) => {
          let result = answers[n]!;
          if (result instanceof LisaError) {
            // The items of a batch that had no answer share an error.
            if (result instanceof TransportError) result = new TransportError(result.message, { cause: result.cause });
            if (result instanceof Problem && result.code === "stale") result.maybeSettled = doubted.has(index);
            const { id } = items[index] as { id?: string };
            if (id !== undefined) result.id ??= id;
            if (result.inDoubt) doubted.add(index);
            if (result.retryable) again.push(index);
            after = Math.max(after, result.retryAfter);
          }
          results[index] = result;
        });
        pending = attempt < this.#tries() ? again : [];
        if (pending.length > 0) await pause(attempt, after);
      }
    }
    return results;
  }

  /** Sends a request until it has an answer that is no reason to repeat it. */
  async #call(request: Request): Promise<Body> {
    let inDoubt = false;
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#try(request);
      } catch (error) {
        if (!(error instanceof LisaError)) throw error;
        if (error instanceof Problem && error.code === "stale") error.maybeSettled = inDoubt;
        if (attempt >= this.#tries() || !error.retryable) throw error;
        inDoubt ||= error.inDoubt;
        await pause(attempt, error.retryAfter);
      }
    }
  }

  async #try({ method, path, body, headers = {}, isToGateway = false, wait = 0, signal }: Request): Promise<Body> {
    const { token, timeout = 10_000, fetch: send = fetch } = this.#options;
    const all: Record<string, string> = { ...headers };
    if (body !== undefined) all["content-type"] = "application/json";
    if (token !== undefined) all.authorization = `Bearer ${(typeof token === "string" ? token : await token()).trim()}`;
    const limit = AbortSignal.timeout(timeout + wait);
    let response, text;
    try {
      response = await send((isToGateway ? this.#urls.gateway : this.#urls.producer) + path, {
        method,
        headers: all,
        body: body === undefined ? null : JSON.stringify(body),
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
      });
      text = await response.text();
    } catch (cause) {
      throw new TransportError(`no answer to ${method} ${path.replace(/deliveries\/[^/]+/, "deliveries/…")}: ${String(cause)}`, { cause });
    }
    if (!response.ok) throw problemOf(response.status, text, response.headers);
    try {
      return JSON.parse(text) as Body;
    } catch (cause) {
      throw new TransportError("not an answer of Lisa", { cause });
    }
  }

  #tries(): number {
    return Math.max(1, this.#options.tries ?? 5);
  }
}

/** A message that was pulled, and its lease. */
export class Delivery {
  readonly id: string;
  readonly token: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly dueAt: Date;
  /** The ordering key, if the message has one. */
  readonly key: string | undefined;
  readonly headers: Record<string, string>;
  readonly payload: Uint8Array;
  leaseUntil: Date;
  /** True once it was settled, or known to be stale. */
  isSettled = false;
  readonly #lisa: Lisa;

  constructor(lisa: Lisa, body: Body) {
    this.#lisa = lisa;
    this.id = body.id as string;
    this.token = body.token as string;
    this.attempt = body.attempt as number;
    this.maxAttempts = body.max_attempts as number;
    this.dueAt = new Date(body.due_at as string);
    this.leaseUntil = new Date(body.lease_until as string);
    this.key = body.key as string | undefined;
    this.headers = body.headers as Record<string, string>;
    this.payload = withPayload(body).payload as Uint8Array;
  }

  /** Returns the payload as text. */
  text(): string {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.payload);
  }

  /** Parses the payload as JSON. */
  json<T = unknown>(): T {
    return JSON.parse(this.text()) as T;
  }

  /** Acknowledges it: the work is done. */
  ack(): Promise<Ended> {
    return this.settle({ ack: true });
  }

  /** Reports a failed attempt. */
  retry(options: { after?: Duration; error?: string } = {}): Promise<Ended> {
    return this.settle({ retry: options });
  }

  /** Delivers it again later, without counting an attempt. */
  defer(when: { after: Duration } | { until: Instant }): Promise<Ended> {
    return this.settle({ defer: when });
  }

  /** Moves the message to garbage (dead letters). */
  reject(error?: string): Promise<Ended> {
    return this.settle({ reject: error === undefined ? {} : { error } });
  }

  async settle(outcome: Outcome): Promise<Ended> {
    try {
      const ended = await this.#lisa.settle(this.token, outcome);
      this.isSettled = true;
      return ended;
    } catch (error) {
      this.isSettled ||= error instanceof Problem && error.code === "stale";
      throw error;
    }
  }

  /** Replaces the lease with a new one that starts now; by default the topic's. */
  async extend(lease?: Duration): Promise<Ended> {
    const ended = await this.#lisa.extend(this.token, lease);
    if (ended.lease_until !== undefined) this.leaseUntil = new Date(ended.lease_until);
    return ended;
  }
}

type Body = Record<string, unknown>;

/** Runs a handler, extends the lease meanwhile, and settles. */
async function run(delivery: Delivery, handler: (delivery: Delivery, signal: AbortSignal) => Promise<Outcome | void> | Outcome | void, lease: number): Promise<void> {
  const lost = new AbortController();
  const timer = setInterval(() => {
    delivery.extend(lease).catch((error: unknown) => {
      if (error instanceof Problem && error.code === "stale") lost.abort(error);
    });
  }, lease / 3);
  let outcome: Outcome;
  try {
    outcome = (await handler(delivery, lost.signal)) ?? { ack: true };
  } catch (error) {
    outcome = { retry: { error: String(error) } };
  } finally {
    clearInterval(timer);
  }
  if (delivery.isSettled || lost.signal.aborted) return;
  try {
    await delivery.settle(outcome);
  } catch (error) {
    // Without an answer, or stale: the message comes again after its lease, or was settled.
    if (!(error instanceof LisaError) || (!error.retryable && !delivery.isSettled)) throw error;
  }
}

/** Returns a path with escaped parts. */
function path(...parts: string[]): string {
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}

function keyHeader(key: string | undefined): Record<string, string> {
  if (key === undefined) return {};
  // A header is bytes: those of UTF-8.
  return { "lisa-key": String.fromCharCode(...new TextEncoder().encode(key)) };
}

/** Returns options as JSON has them: durations and instants as texts. Those that are undefined are left out. */
function texts(options: object): Body {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const durations = new Set(["delay", "ttl", "after", "lease", "wait"]);
  return Object.fromEntries(
    given.map(([name, value]) => {
      if (durations.has(name) && typeof value === "number") return [name, `${Math.round(value)}ms`];
      return [name, value instanceof Date ? value.toISOString() : (value as unknown)];
    }),
  );
}

/** Returns a message as an item of a batch. */
function item({ payload, ...options }: NewMessage): Body {
  const body = texts({ ...options, id: options.id ?? uuidV7() });
  const headers = options.headers ?? {};
  const type = (value: string) => {
    const isGiven = Object.keys(headers).some((name) => name.toLowerCase() === "content-type");
    if (!isGiven) body.headers = { ...headers, "content-type": value };
  };
  if (payload instanceof Uint8Array) {
    type("application/octet-stream");
    return { ...body, payload_base64: toBase64(payload) };
  }
  if (typeof payload === "string") {
    type("text/plain; charset=utf-8");
    return { ...body, payload_text: payload };
  }
  if (payload === undefined) throw new TypeError("payload: undefined is not JSON; send null, a text or bytes");
  type("application/json");
  return { ...body, payload };
}

/** Returns a body with its payload as bytes, if it has one. */
function withPayload({ payload, payload_base64: base64, ...rest }: Body): Body {
  if (typeof base64 === "string") return { ...rest, payload: fromBase64(base64) };
  return typeof payload === "string" ? { ...rest, payload: new TextEncoder().encode(payload) } : rest;
}

/** Splits items into batches that Lisa accepts. Yields the indices of each. */
function* chunks(items: object[]): Generator<number[]> {
  let chunk: number[] = [];
  let size = 0;
  for (const [index, one] of items.entries()) {
    const length = new TextEncoder().encode(JSON.stringify(one)).length + 1;
    if (chunk.length > 0 && (chunk.length === MAX_ITEMS || size + length > MAX_BYTES)) {
      yield chunk;
      [chunk, size] = [[], 0];
    }
    chunk.push(index);
    size += length;
  }
  if (chunk.length > 0) yield chunk;
}

/** Waits before the next try: exponential with jitter, and not less than the server asks for, up to a minute. */
async function pause(attempt: number, after: number, signal?: AbortSignal): Promise<void> {
  const backoff = Math.min(8000, 125 * 2 ** Math.min(attempt, 6));
  const ms = Math.max(backoff, Math.min(after, 60_000)) * (1 + Math.random() / 4);
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
