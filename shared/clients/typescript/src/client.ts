/** The client, and the deliveries that it pulls. */

import { type Attempt, Batcher, Item, sendInOrder } from "./batch.js";
import { fromBase64, toBase64, uuidV7 } from "./bytes.js";
import { LisaError, Problem, type ProblemBody } from "./errors.js";
import { type HttpOptions, type Request, exchange, isToken } from "./http.js";
import { type Body, type Outcome, settleItem, texts } from "./outcome.js";
import { type Duration, type Instant, pause } from "./time.js";
import { type Handler, type WorkOptions, runWorker } from "./work.js";

/** The longest time limit, in milliseconds: more than a day. */
const MAX_TIMEOUT = 100_000_000;

/** The configuration of a client. */
export interface LisaOptions extends HttpOptions {
  /** The URL of the gateway, if it differs from the URL of the producer. */
  gateway?: string;
  /** The maximum number of tries of a request. Default: 5. */
  tries?: number;
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
  /** Replaces the message with this id, if it has not been delivered yet. */
  replace?: string;
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

/** A client of one relay. */
export class Lisa {
  readonly #urls: { producer: string; gateway: string };
  readonly #options: LisaOptions;
  /** By topic; only those in use. */
  readonly #sends = new Map<string, Batcher<Sent>>();
  readonly #settles: Batcher<Ended>;
  readonly #extends: Batcher<Ended>;

  /** Creates a client. The default address is that of `lisa-manager dev`. Throws `TypeError` for wrong options. */
  constructor(url = "http://127.0.0.1:7812", options: LisaOptions = {}) {
    const { gateway = url, token, timeout = 1, tries = 1 } = options;
    for (const [name, one] of Object.entries({ url, gateway })) {
      if (!/^https?:\/\/[^/]/.test(one)) throw new TypeError(`${name}: ${one} is not a URL with http or https`);
    }
    if (!Number.isFinite(timeout) || timeout <= 0 || timeout > MAX_TIMEOUT) throw new TypeError(`timeout: ${timeout} is not a number of milliseconds`);
    if (!Number.isInteger(tries) || tries < 1) throw new TypeError(`tries: ${tries} is less than 1`);
    if (token !== undefined && typeof token !== "function" && !isToken(token)) throw new TypeError("token: is empty, or has invalid characters");
    const trim = (text: string) => text.replace(/\/+$/, "");
    this.#urls = { producer: trim(url), gateway: trim(gateway) };
    this.#options = options;
    // As in all calls, the tokens are in the body, because URLs are logged.
    this.#settles = new Batcher(this.#attempt<Ended>("/v1/deliveries:settle", true), this.#tries());
    this.#extends = new Batcher(this.#attempt<Ended>("/v1/deliveries:extend", true), this.#tries());
  }

  /**
   * Sends a message. Throws a `LisaError`; to repeat the send, use its `id`. Sends that are made while others are in flight share
   * requests, and may be stored in any order; `await` each if the order matters.
   */
  async send(topic: string, payload: unknown, options: SendOptions = {}): Promise<Sent> {
    const message = item({ ...options, payload });
    let sends = this.#sends.get(topic);
    if (!sends) {
      for (const [name, one] of this.#sends) if (one.isIdle) this.#sends.delete(name);
      sends = new Batcher(this.#attempt<Sent>(batchPath(topic), false), this.#tries());
      this.#sends.set(topic, sends);
    }
    return sends.add(message);
  }

  /** Sends any number of messages in order, in batches. Returns a result for each: its receipt, or its error. */
  async sendMany(topic: string, messages: Iterable<NewMessage>): Promise<(Sent | LisaError)[]> {
    return sendInOrder(Array.from(messages, item), this.#attempt<Sent>(batchPath(topic), false), this.#tries());
  }

  /** Looks up a message that is still stored. `key` finds a message with an id of your own without querying every shard. */
  async get(topic: string, id: string, key?: string): Promise<Message> {
    const request = { method: "GET", path: path("topics", topic, "messages", id), headers: keyHeader(key), hasPayloads: true };
    return this.#call(request, (body) => withPayload(object(body, "id")) as unknown as Message);
  }

  /** Cancels a message that has not been delivered yet. */
  async cancel(topic: string, id: string, key?: string): Promise<Cancelled> {
    const request = { method: "DELETE", path: path("topics", topic, "messages", id), headers: keyHeader(key), hasPayloads: true };
    return this.#call(request, (body) => withPayload(object(body, "id")) as unknown as Cancelled);
  }

  /** Reschedules a message that has not been delivered yet. */
  async reschedule(topic: string, id: string, due: { delay: Duration } | { deliver_at: Instant }, key?: string): Promise<Sent> {
    const request = { method: "PATCH", path: path("topics", topic, "messages", id), content: JSON.stringify(texts(due)), headers: keyHeader(key) };
    return this.#call(request, (body) => object(body, "id", "outcome") as unknown as Sent);
  }

  /** Delivers now a message that is waiting for its due time or for its next attempt. */
  async deliverNow(topic: string, id: string, key?: string): Promise<Sent> {
    const request = { method: "POST", path: path("topics", topic, "messages", id, "deliver-now"), headers: keyHeader(key) };
    return this.#call(request, (body) => object(body, "id", "outcome") as unknown as Sent);
  }

  /** Pulls messages; none if no message became ready in time. */
  async pull(topic: string, { group = "default", wait = 20_000, signal, ...options }: PullOptions = {}): Promise<Delivery[]> {
    const content = JSON.stringify(texts({ ...options, wait }));
    const where = path("topics", topic, "groups", group, "pull");
    const request = { method: "POST", path: where, content, isToGateway: true, hasPayloads: true, wait: 30_000, signal };
    // A repeated pull could leave the messages of the first one to their lease: the caller decides.
    return this.#try(request, (answer) => {
      const deliveries = Array.from(object(answer).deliveries as Body[], (one) => new Delivery(this, object(one, "id", "token", "due_at", "lease_until")));
      // A worker would run too many handlers.
      if (deliveries.length > (options.max ?? 1)) throw new TypeError(`${deliveries.length} deliveries for a pull of ${options.max ?? 1}`);
      return deliveries;
    });
  }

  /** Settles a delivery by its token. */
  async settle(token: string, outcome: Outcome): Promise<Ended> {
    return this.#settles.add(new Item(settleItem(token, outcome)));
  }

  /** Settles many deliveries, in batches. Returns a result for each, in order: its outcome, or its error. */
  async settleMany(items: Iterable<{ token: string } & Outcome>): Promise<(Ended | LisaError)[]> {
    const all = Array.from(items, ({ token, ...outcome }) => new Item(settleItem(token, outcome)));
    return sendInOrder(all, this.#attempt<Ended>("/v1/deliveries:settle", true), this.#tries());
  }

  /** Replaces the lease of a delivery with a new one that starts now; by default the topic's. */
  async extend(token: string, lease?: Duration): Promise<Ended> {
    return this.#extends.add(new Item(texts({ token, lease })));
  }

  /**
   * Pulls messages and runs a handler for each, until the signal is aborted. Acknowledges a message when its handler returns, and reports
   * a failed attempt when it throws. A handler can also return an outcome. The lease is extended while it runs; if it is lost,
   * the handler's signal is aborted. While pulls fail with a retryable error, it retries. Throws errors that a retry cannot fix.
   * Throws a `TypeError` for wrong arguments, before the first pull.
   */
  async work(topic: string, handler: Handler, options: WorkOptions = {}): Promise<void> {
    await runWorker(this, topic, handler, options);
  }

  /** Returns a function that sends items to a path, once. */
  #attempt<T>(where: string, isToGateway: boolean): Attempt<T> {
    return async (items) => {
      const content = `[${items.map(({ text }) => text).join()}]`;
      try {
        return await this.#try({ method: "POST", path: where, content, isToGateway }, (answer) => readResults<T>(answer, items.length));
      } catch (error) {
        if (error instanceof LisaError) return error;
        throw error;
      }
    };
  }

  /** Sends a request until it has an answer that is no reason to repeat it. */
  async #call<T>(request: Request, read: (body: unknown) => T): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#try(request, read);
      } catch (error) {
        if (!(error instanceof LisaError) || !error.retryable || attempt >= this.#tries()) throw error;
        await pause(attempt, error.retryAfter);
      }
    }
  }

  #try<T>(request: Request, read: (body: unknown) => T): Promise<T> {
    return exchange(request.isToGateway ? this.#urls.gateway : this.#urls.producer, request, this.#options, read);
  }

  #tries(): number {
    return this.#options.tries ?? 5;
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

/** Returns an object with these texts, or throws. */
function object(body: unknown, ...names: string[]): Body {
  if (typeof body !== "object" || body === null || Array.isArray(body)) throw new TypeError("not an object");
  const missing = names.find((name) => typeof (body as Body)[name] !== "string");
  if (missing !== undefined) throw new TypeError(`${missing} is missing`);
  return body as Body;
}

/** Reads the results of a batch. */
function readResults<T>(answer: unknown, count: number): (T | LisaError)[] {
  const read = Array.from(answer as Body[], (one) => {
    if (!("error" in object(one))) return object(one, "outcome") as T;
    const error = object(one.error) as ProblemBody;
    return new Problem(error.status ?? 500, error);
  });
  if (read.length !== count) throw new TypeError(`${read.length} results for a batch of ${count}`);
  return read;
}

/** Returns a path with escaped parts. */
function path(...parts: string[]): string {
  const wrong = parts.findIndex((part: unknown) => typeof part !== "string" || part === "");
  if (wrong >= 0) throw new TypeError(`${String(parts[wrong])} is not the name of a topic or group, or the id of a message`);
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}

function batchPath(topic: string): string {
  return `${path("topics", topic)}/messages:batch`;
}

function keyHeader(key: string | undefined): Record<string, string> {
  if (key === undefined) return {};
  // A header is bytes: those of UTF-8.
  return { "lisa-key": String.fromCharCode(...new TextEncoder().encode(key)) };
}

/** Returns a message as an item of a batch. */
function item(message: NewMessage): Item {
  return new Item(bodyOf(message));
}

function bodyOf({ payload, ...options }: NewMessage): Body & { id?: string } {
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
