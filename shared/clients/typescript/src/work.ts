/** The worker: pulls, runs handlers, extends their leases and settles. */

import { type Attempt, Batcher, Item } from "./batch.js";
import { type Delivery, type DeliveryCalls, type Ended, MAX_PULL, type PullOptions, runsOf, wrongCount } from "./delivery.js";
import { LisaError, Problem } from "./errors.js";
import { type Outcome, settleItem } from "./outcome.js";
import { type Duration, endOfTurn, milliseconds, pause } from "./time.js";

/** The most pulls in flight. */
const MAX_PULLS = 2;
/** The messages that are worth a pull of their own: one request for 50 costs less than two for 25. */
const FEW = 50;
/** The time after a stop for which outcomes are repeated, in milliseconds. */
const GRACE = 30_000;

/** The options of a worker. */
export interface WorkOptions {
  group?: string;
  concurrency?: number;
  /**
   * The maximum number of messages with the same ordering key in a pull, 1 to 200. Default: 1. A handler gets them one after another, in
   * order. Those behind a message that is not acknowledged are delivered again after it.
   */
  max_per_key?: number;
  /** The lease, which is extended while a handler runs. Default: 1 minute. */
  lease?: Duration;
  consumer?: string;
  /** Stops the worker: it pulls no more, and running handlers may finish. */
  signal?: AbortSignal;
  /** Receives failures: failed attempts, pulls, extensions and settlements, and lost leases. Default: `console.warn`. */
  log?: (text: string, error: unknown) => void;
}

export type Handler = (delivery: Delivery) => Promise<Outcome | void> | Outcome | void;

/** The requests of a worker, each of which is sent once. */
export interface WorkerCalls {
  pull(options: PullOptions, of: DeliveryCalls): Promise<Delivery[]>;
  settle: Attempt<Ended>;
  /** Settles, and then pulls what is ready now. */
  settleAndPull(items: readonly Item[], options: PullOptions, of: DeliveryCalls): Promise<SettledAndPulled>;
  extend: DeliveryCalls["extend"];
  /** The most tries of a settlement. */
  tries: number;
}

/** One result for each settled item, in order, and the deliveries that were pulled. */
export interface SettledAndPulled {
  results: (Ended | LisaError)[];
  deliveries: Delivery[];
}

/** Handles messages until the signal is aborted. */
export async function runWorker(calls: WorkerCalls, topic: string, handler: Handler, options: WorkOptions): Promise<void> {
  const { group = "default", concurrency = 1, max_per_key: maxPerKey = 1, lease = 60_000, consumer, log = warn } = options;
  check(topic, handler, { ...options, group, concurrency, max_per_key: maxPerKey, lease, log });
  const failed = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, failed.signal]) : failed.signal;
  const pull = { group, lease, signal, ...(consumer === undefined ? {} : { consumer }) };
  await new Worker(calls, pull, handler, { concurrency, maxPerKey, lease, log }).run(failed);
  if (failed.signal.aborted) throw failed.signal.reason;
}

/** Throws one error for all wrong arguments. Later, they would count as failed attempts of messages. */
function check(topic: unknown, handler: unknown, options: WorkOptions): void {
  const { group, concurrency, max_per_key: maxPerKey, lease, consumer, signal, log } = options;
  const isName = (value: unknown) => typeof value === "string" && value !== "";
  const problems: string[] = [];
  if (!isName(topic)) problems.push(`topic: ${String(topic)} is not a string, or is empty`);
  if (typeof handler !== "function") problems.push(`handler: ${String(handler)} is not a function`);
  if (!isName(group)) problems.push(`group: ${String(group)} is not a string, or is empty`);
  if (!Number.isInteger(concurrency) || concurrency! < 1) problems.push(`concurrency: ${String(concurrency)} is not an integer of at least 1`);
  const wrong = wrongCount("max_per_key", maxPerKey);
  if (wrong !== undefined) problems.push(wrong);
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

/** A delivery whose handler runs, or waits for those before it in its run. */
interface Running {
  delivery: Delivery;
  extendedAt: number;
  run: Run;
}

/** The messages of one ordering key in a pull, which are handled one after another, or one message without a key. */
interface Run {
  waiting: Running[];
  /** True once a message of it was not acknowledged. Those behind it have to be delivered after it. */
  isBroken: boolean;
}

interface Limits {
  concurrency: number;
  maxPerKey: number;
  lease: Duration;
  log: NonNullable<WorkOptions["log"]>;
}

/**
 * Pulls a run of messages for each free handler. Runs end in any order, and the outcomes are sent in batches while the next messages
 * are pulled and handled: as many outcomes as messages may be in flight. While messages are ready, a batch of outcomes is also a pull.
 */
class Worker {
  readonly #calls: WorkerCalls;
  readonly #pullOptions: PullOptions & { signal: AbortSignal };
  readonly #handler: Handler;
  readonly #concurrency: number;
  readonly #maxPerKey: number;
  readonly #lease: Duration;
  readonly #log: NonNullable<WorkOptions["log"]>;
  /** The calls of its deliveries. */
  readonly #ofDeliveries: DeliveryCalls;
  readonly #running = new Set<Running>();
  /** The runs, each of which has a handler. */
  #runs = 0;
  /** The runs that pulls in flight ask for. */
  #requested = 0;
  #pulls = 0;
  /** The outcomes that are not settled yet, and those of them in a request. */
  #settling = 0;
  #sending = 0;
  #failures = 0;
  /** True if the last pull found so many messages that more are probably ready. */
  #areReady = false;
  /** False once a request that also pulls was refused. */
  #maySettleAndPull = true;
  #repeatUntil = Infinity;
  #changed: () => void = () => {};

  constructor(calls: WorkerCalls, pull: PullOptions & { signal: AbortSignal }, handler: Handler, limits: Limits) {
    [this.#calls, this.#pullOptions, this.#handler] = [calls, pull, handler];
    ({ concurrency: this.#concurrency, maxPerKey: this.#maxPerKey, lease: this.#lease, log: this.#log } = limits);
    const settles = new Batcher<Ended>((items) => this.#send(items), calls.tries);
    this.#ofDeliveries = { settle: (token, outcome) => settles.add(new Item(settleItem(token, outcome))), extend: calls.extend };
  }

  async run(failed: AbortController): Promise<void> {
    const { signal } = this.#pullOptions;
    const lease = milliseconds("lease", this.#lease);
    const extending = setInterval(() => this.#extendThoseDue(lease / 3), Math.max(10, lease / 6));
    const stop = () => this.#changed();
    signal.addEventListener("abort", stop);
    try {
      while (!signal.aborted) {
        const runs = this.#wanted(this.#settling);
        if (runs > 0) void this.#pull(runs).catch((error: unknown) => failed.abort(error));
        else await this.#change();
      }
      this.#repeatUntil = Date.now() + GRACE;
      while (this.#pulls + this.#running.size + this.#settling > 0) await this.#change();
    } finally {
      clearInterval(extending);
      signal.removeEventListener("abort", stop);
    }
  }

  /**
   * Returns the number of runs to pull now, while this many outcomes are on their way: for half of the free handlers, so that
   * the gateway can fill a second pull while the messages of the first are handled, but not for few. The second is only for at
   * least half of all handlers: otherwise, the first one will return soon.
   */
  #wanted(outcomes: number): number {
    const free = this.#concurrency - this.#runs - this.#requested;
    const isSecond = this.#pulls > 0;
    if (this.#pulls === MAX_PULLS || outcomes >= this.#concurrency * this.#maxPerKey || (isSecond && free * 2 < this.#concurrency)) return 0;
    return Math.min(isSecond ? free : Math.max(Math.ceil(free / 2), FEW), free, MAX_PULL);
  }

  /** Returns the options of a pull of this many runs. */
  #optionsOf(runs: number): PullOptions & { max: number; signal: AbortSignal } {
    if (this.#maxPerKey === 1) return { ...this.#pullOptions, max: runs };
    return { ...this.#pullOptions, max: Math.min(runs * this.#maxPerKey, MAX_PULL), max_per_key: this.#maxPerKey, max_keys: runs };
  }

  /** Waits until something ends. All that ends in the same turn of the event loop counts as one change. */
  async #change(): Promise<void> {
    await new Promise<void>((resolve) => (this.#changed = resolve));
    await endOfTurn();
  }

  async #pull(runs: number): Promise<void> {
    await this.#counted(runs, async (options) => {
      try {
        const deliveries = await this.#calls.pull(options, this.#ofDeliveries);
        this.#failures = 0;
        return { deliveries };
      } catch (error) {
        const { signal } = this.#pullOptions;
        if (!signal.aborted) {
          if (!(error instanceof LisaError) || !error.retryable) throw error;
          this.#log("cannot pull; retrying", error);
          this.#areReady = false;
          await pause(++this.#failures, error.retryAfter, signal);
        }
        return { deliveries: [] };
      }
    });
  }

  /** Sends outcomes. While messages are ready, pulls in the same request. */
  async #send(items: readonly Item[]): Promise<(Ended | LisaError)[] | LisaError> {
    const mayPull = this.#areReady && this.#maySettleAndPull && !this.#pullOptions.signal.aborted;
    const runs = mayPull ? this.#wanted(this.#sending) : 0;
    this.#sending += items.length;
    try {
      let results = runs > 0 ? await this.#settleAndPull(items, runs) : await this.#calls.settle(items);
      if (runs > 0 && results instanceof LisaError && !results.retryable) {
        // It says nothing about the outcomes.
        this.#log("cannot settle and pull in one request", results);
        this.#maySettleAndPull = false;
        results = await this.#calls.settle(items);
      }
      // Those that are repeated later count for the next pull.
      if (results instanceof LisaError || results.some((one) => one instanceof LisaError && one.retryable)) this.#areReady = false;
      return results;
    } finally {
      this.#sending -= items.length;
    }
  }

  async #settleAndPull(items: readonly Item[], runs: number): Promise<(Ended | LisaError)[] | LisaError> {
    const { results } = await this.#counted(runs, async (options) => {
      try {
        return await this.#calls.settleAndPull(items, options, this.#ofDeliveries);
      } catch (error) {
        if (!(error instanceof LisaError)) throw error;
        return { results: error, deliveries: [] };
      }
    });
    return results;
  }

  /** Counts a pull of this many runs while it is in flight, and handles what it returns. */
  async #counted<T extends { deliveries: Delivery[] }>(runs: number, pull: (options: PullOptions) => Promise<T>): Promise<T> {
    this.#pulls += 1;
    this.#requested += runs;
    try {
      const options = this.#optionsOf(runs);
      const pulled = await pull(options);
      const pulledRuns = runsOf(pulled.deliveries);
      this.#areReady = pulledRuns.length * 2 >= runs || pulled.deliveries.length * 2 >= options.max;
      for (const deliveries of pulledRuns) this.#begin(deliveries);
      return pulled;
    } finally {
      this.#requested -= runs;
      this.#pulls -= 1;
      this.#changed();
    }
  }

  #begin(deliveries: Delivery[]): void {
    const [run, extendedAt]: [Run, number] = [{ waiting: [], isBroken: false }, Date.now()];
    const [first, ...others] = deliveries.map((delivery) => ({ delivery, extendedAt, run }));
    run.waiting = others;
    for (const running of [first!, ...others]) this.#running.add(running);
    this.#runs += 1;
    void this.#handle(first!);
  }

  /** Begins the next handler of a run, or ends the run: those that wait are delivered again, uncounted. */
  #goOn(run: Run): void {
    const [next, ...others] = run.waiting;
    if (next && !run.isBroken && !next.delivery.isLost && !this.#pullOptions.signal.aborted) {
      run.waiting = others;
      void this.#handle(next);
      return;
    }
    this.#runs -= 1;
    for (const running of run.waiting) {
      this.#running.delete(running);
      void this.#end(running, { defer: { after: 0 } });
    }
  }

  /** Runs a handler, and settles its delivery. The next handler of the run does not wait for that. Throws nothing. */
  async #handle(running: Running): Promise<void> {
    const { delivery, run } = running;
    let outcome: Outcome;
    try {
      outcome = (await this.#handler(delivery)) ?? { ack: true };
      settleItem(delivery.token, outcome);
    } catch (error) {
      this.#log(`attempt ${delivery.attempt} of ${delivery.id} failed`, error);
      outcome = { retry: { error: textOf(error) } };
    }
    this.#running.delete(running);
    const isAcked = delivery.isSettled ? delivery.isAcked : "ack" in outcome;
    run.isBroken ||= delivery.isLost || !isAcked;
    this.#goOn(run);
    await this.#end(running, outcome);
  }

  async #end(running: Running, outcome: Outcome): Promise<void> {
    const { delivery, run } = running;
    this.#settling += 1;
    this.#changed();
    if (!delivery.isSettled && !delivery.isLost && !(await this.#settle(running, outcome))) run.isBroken = true;
    this.#settling -= 1;
    this.#changed();
  }

  /**
   * Settles. Repeats it until the lease ends, since the work is done; after a stop, for half a minute. Returns false if the message is
   * delivered again.
   */
  async #settle({ delivery, extendedAt }: Running, outcome: Outcome): Promise<boolean> {
    const leaseEnds = extendedAt + milliseconds("lease", this.#lease);
    for (let isWrong = false; ; ) {
      try {
        const ended = await delivery.settle(outcome);
        return ended.due_at === undefined;
      } catch (error) {
        if (error instanceof Problem && error.code === "stale") {
          if (!error.maybeSettled) this.#log(`lease of ${delivery.id} was lost; another worker may have it`, error);
          return error.maybeSettled;
        }
        if (error instanceof Problem && error.code === "invalid" && !isWrong) {
          this.#log(`the outcome of ${delivery.id} is wrong`, error);
          [isWrong, outcome] = [true, { retry: { error: `the handler returned a wrong outcome: ${error.message}` } }];
          continue;
        }
        const mayRepeat = Date.now() < Math.min(leaseEnds, this.#repeatUntil);
        if (!mayRepeat || !(error instanceof LisaError && error.retryable)) {
          this.#log(`cannot settle ${delivery.id}; it is delivered again after its lease`, error);
          return false;
        }
        this.#log(`cannot settle ${delivery.id}; retrying`, error);
        await pause(3, error.retryAfter);
      }
    }
  }

  /** Extends the leases that are due, in one request. A failure says nothing about a handler, unless its lease was lost. */
  #extendThoseDue(after: number): void {
    const now = Date.now();
    for (const running of this.#running) {
      if (now < running.extendedAt + after || running.delivery.isSettled || running.delivery.isLost) continue;
      running.extendedAt = now;
      void this.#extend(running);
    }
  }

  async #extend(running: Running): Promise<void> {
    const { delivery } = running;
    try {
      await delivery.extend(this.#lease);
    } catch (error) {
      if (!this.#running.has(running) || delivery.isSettled) return;
      if (!(error instanceof Problem && error.code === "stale")) return this.#log(`cannot extend the lease of ${delivery.id}`, error);
      this.#log(`lease of ${delivery.id} was lost; another worker may have it`, error);
      delivery.lose(error);
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

/** One line for an error that passes by itself: it may be repeated often. */
function warn(text: string, error: unknown): void {
  if (error instanceof LisaError && error.retryable) console.warn(`lisa-relay: ${text}: ${error.message}`);
  else console.warn(`lisa-relay: ${text}:`, error);
}
