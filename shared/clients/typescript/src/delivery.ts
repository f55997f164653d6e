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
  /** The maximum number of deliveries. Default: 1. */
  max?: number;
  /** The time to wait for the first message, at most 30 s. Default: 20 s. */
  wait?: Duration;
  lease?: Duration;
  consumer?: string;
  signal?: AbortSignal;
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
