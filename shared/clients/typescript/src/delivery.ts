/** Deliveries, and the options of pulls. */

import { object, payloadOf } from "./answers.js";
import { type LisaError, Problem } from "./errors.js";
import type { Outcome } from "./outcome.js";
import type { Duration, Instant } from "./time.js";

/** The end of a delivery, or the new end of its lease. */
export interface Ended {
  outcome: "acked" | "retry" | "deferred" | "garbage" | "expired" | "lost" | "extended";
  due_at?: string;
  lease_until?: string;
}

/** The options of a pull. */
export interface PullOptions {
  group?: string;
  /** The maximum number of deliveries, 1 to 200. Default: 1. */
  max?: number;
  /** The maximum number of deliveries with the same ordering key, in its order. The messages behind them wait until all are settled. Default: 1. */
  max_per_key?: number;
  /** The maximum number of ordering keys. A delivery without a key counts as a key of its own. Default: `max`. */
  max_keys?: number;
  /** The time to wait for the first message, at most 30 s. Default: 20 s. */
  wait?: Duration;
  lease?: Duration;
  consumer?: string;
  signal?: AbortSignal;
}

/** The most deliveries of a pull. */
export const MAX_PULL = 200;

/** Returns what is wrong with a number of deliveries of a pull, if anything. */
export function wrongCount(name: string, value: unknown): string | undefined {
  const isAllowed = Number.isInteger(value) && (value as number) >= 1 && (value as number) <= MAX_PULL;
  return isAllowed ? undefined : `${name}: ${String(value)} is not an integer of 1 to ${MAX_PULL}`;
}

/** Returns the deliveries of each ordering key, in order. One without a key is alone. */
export function runsOf(deliveries: readonly Delivery[]): Delivery[][] {
  const runs = new Map<unknown, Delivery[]>();
  for (const delivery of deliveries) {
    const key = delivery.key ?? delivery;
    const run = runs.get(key);
    if (run) run.push(delivery);
    else runs.set(key, [delivery]);
  }
  return [...runs.values()];
}

/** The calls of a delivery. */
export interface DeliveryCalls {
  settle(token: string, outcome: Outcome): Promise<Ended>;
  extend(token: string, lease?: Duration): Promise<Ended>;
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
  /** @internal True once it was settled as acknowledged. */
  isAcked = false;
  /** True once its worker knows that the lease was lost. */
  isLost = false;
  readonly #relay: DeliveryCalls;
  /** Created on first use, because creating one for each message costs too much. */
  #lost: AbortController | undefined;

  constructor(relay: DeliveryCalls, answer: unknown) {
    const body = object(answer, "id", "token", "due_at", "lease_until");
    this.#relay = relay;
    this.id = body.id as string;
    this.token = body.token as string;
    this.attempt = body.attempt as number;
    this.maxAttempts = body.max_attempts as number;
    this.dueAt = new Date(body.due_at as string);
    this.leaseUntil = new Date(body.lease_until as string);
    this.key = body.key as string | undefined;
    this.headers = body.headers as Record<string, string>;
    this.payload = payloadOf(body)!;
  }

  /** Aborted when its worker learns that the lease was lost: another worker may have the message. */
  get signal(): AbortSignal {
    this.#lost ??= new AbortController();
    return this.#lost.signal;
  }

  /** @internal */
  lose(reason: LisaError): void {
    this.isLost = true;
    this.#lost ??= new AbortController();
    this.#lost.abort(reason);
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
      const ended = await this.#relay.settle(this.token, outcome);
      this.isSettled = true;
      this.isAcked = ended.outcome === "acked";
      return ended;
    } catch (error) {
      this.isSettled ||= error instanceof Problem && error.code === "stale";
      throw error;
    }
  }

  /** Replaces the lease with a new one that starts now; by default the topic's. */
  async extend(lease?: Duration): Promise<Ended> {
    const ended = await this.#relay.extend(this.token, lease);
    if (ended.lease_until !== undefined) this.leaseUntil = new Date(ended.lease_until);
    return ended;
  }
}
