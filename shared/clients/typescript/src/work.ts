/** The worker: pulls, runs handlers, extends their leases and settles. */

import type { Delivery, Lisa } from "./client.js";
import { LisaError, Problem } from "./errors.js";
import { type Outcome, settleItem } from "./outcome.js";
import { type Duration, milliseconds, pause, sleep } from "./time.js";

/** The options of a worker. */
export interface WorkOptions {
  group?: string;
  concurrency?: number;
  /** The lease, which is extended while a handler runs. Default: 1 minute. */
  lease?: Duration;
  consumer?: string;
  /** Stops the worker: it pulls no more, and running handlers may finish. */
  signal?: AbortSignal;
  /** Receives failures: failed attempts, pulls, extensions and settlements, and lost leases. Default: `console.warn`. */
  log?: (text: string, error: unknown) => void;
}

export type Handler = (delivery: Delivery, signal: AbortSignal) => Promise<Outcome | void> | Outcome | void;

/** Handles messages until the signal is aborted. */
export async function runWorker(lisa: Lisa, topic: string, handler: Handler, options: WorkOptions): Promise<void> {
  const { group = "default", concurrency = 1, lease = 60_000, consumer, log = warn } = options;
  check(topic, handler, { ...options, group, concurrency, lease, log });
  const failed = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, failed.signal]) : failed.signal;
  const named = consumer === undefined ? {} : { consumer };
  const loop = async () => {
    for (let failures = 0; !signal.aborted; ) {
      let pulled: Delivery[];
      try {
        pulled = await lisa.pull(topic, { group, lease, ...named, signal });
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof LisaError) || !error.retryable) throw error;
        log("cannot pull; retrying", error);
        await pause(++failures, error.retryAfter, signal);
        continue;
      }
      for (const delivery of pulled) await handle(delivery, handler, lease, log);
    }
  };
  const loops = Array.from({ length: concurrency }, () => loop().catch((error: unknown) => failed.abort(error)));
  await Promise.all(loops);
  if (failed.signal.aborted) throw failed.signal.reason;
}

/** Throws one error for all wrong arguments. Later, they would count as failed attempts of messages. */
function check(topic: unknown, handler: unknown, { group, concurrency, lease, consumer, signal, log }: WorkOptions): void {
  const isName = (value: unknown) => typeof value === "string" && value !== "";
  const problems: string[] = [];
  if (!isName(topic)) problems.push(`topic: ${String(topic)} is not a string, or is empty`);
  if (typeof handler !== "function") problems.push(`handler: ${String(handler)} is not a function`);
  if (!isName(group)) problems.push(`group: ${String(group)} is not a string, or is empty`);
  if (!Number.isInteger(concurrency) || concurrency! < 1) problems.push(`concurrency: ${String(concurrency)} is not an integer of at least 1`);
  try {
    if (milliseconds("lease", lease!) === 0) problems.push("lease: must be longer than zero");
  } catch (error) {
    problems.push((error as Error).message);
  }
  if (consumer !== undefined && !isName(consumer)) problems.push(`consumer: ${String(consumer)} is not a string, or is empty`);
  if (signal !== undefined && !(signal instanceof AbortSignal)) problems.push("signal: is not an AbortSignal");
  if (typeof log !== "function") problems.push(`log: ${String(log)} is not a function`);
  if (problems.length > 0) throw new TypeError(problems.join("; "));
}

/** Runs a handler, extends the lease meanwhile, and settles. Throws nothing. */
async function handle(delivery: Delivery, handler: Handler, lease: Duration, log: NonNullable<WorkOptions["log"]>): Promise<void> {
  const [lost, done] = [new AbortController(), new AbortController()];
  void extendUntilDone(delivery, lease, lost, done.signal, log);
  let outcome: Outcome;
  try {
    outcome = (await handler(delivery, lost.signal)) ?? { ack: true };
    settleItem(delivery.token, outcome);
  } catch (error) {
    log(`attempt ${delivery.attempt} of ${delivery.id} failed`, error);
    outcome = { retry: { error: textOf(error) } };
  } finally {
    done.abort();
  }
  if (!delivery.isSettled && !lost.signal.aborted) await settle(delivery, outcome, log);
}

async function settle(delivery: Delivery, outcome: Outcome, log: NonNullable<WorkOptions["log"]>, isLast = false): Promise<void> {
  try {
    await delivery.settle(outcome);
  } catch (error) {
    if (error instanceof Problem && error.code === "stale") {
      if (!error.maybeSettled) log(`lease of ${delivery.id} was lost; another worker may have it`, error);
    } else if (error instanceof Problem && error.code === "invalid" && !isLast) {
      log(`the outcome of ${delivery.id} is wrong`, error);
      await settle(delivery, { retry: { error: `the handler returned a wrong outcome: ${error.message}` } }, log, true);
    } else {
      log(`cannot settle ${delivery.id}; it is delivered again after its lease`, error);
    }
  }
}

/** Extends the lease until the handler is done. A failure says nothing about the handler, unless the lease was lost. */
async function extendUntilDone(delivery: Delivery, lease: Duration, lost: AbortController, done: AbortSignal, log: NonNullable<WorkOptions["log"]>): Promise<void> {
  for (;;) {
    await sleep(milliseconds("lease", lease) / 3, done);
    if (done.aborted) return;
    if (delivery.isSettled) continue;
    try {
      await delivery.extend(lease);
    } catch (error) {
      if (done.aborted || delivery.isSettled) continue;
      if (error instanceof Problem && error.code === "stale") {
        log(`lease of ${delivery.id} was lost; another worker may have it`, error);
        return lost.abort(error);
      }
      log(`cannot extend the lease of ${delivery.id}`, error);
    }
  }
}

function textOf(error: unknown): string {
  try {
    return String(error);
  } catch {
    return "an error that has no text";
  }
}

function warn(text: string, error: unknown): void {
  console.warn(`lisa-relay: ${text}:`, error);
}
