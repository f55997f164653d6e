/** Batches: the items of a request, their results, and the batching of single calls. */

import { LisaError, Problem } from "./errors.js";
import { endOfTurn, pause } from "./time.js";

/** The most items of a request, and the most UTF-16 code units of their JSON: each takes up to three bytes. */
const MAX_ITEMS = 500;
const MAX_LENGTH = (1024 * 1024) / 3;
/** The most requests of a batcher that are in flight. */
const MAX_IN_FLIGHT = 2;

/** An item of a batch, with what its tries have shown. */
export class Item {
  /** Its JSON. */
  readonly text: string;
  readonly #id: string | undefined;
  #tries = 0;
  #isInDoubt = false;

  constructor(body: object & { id?: string }) {
    this.text = JSON.stringify(body);
    this.#id = body.id;
  }

  /** Takes the result of a try. Returns it if it is final, completed with what earlier tries have shown. */
  conclude<T>(result: T | LisaError, tries: number): { final: T | LisaError } | undefined {
    if (!(result instanceof LisaError)) return { final: result };
    this.#tries += 1;
    if (result.retryable && this.#tries < tries) {
      this.#isInDoubt ||= result.inDoubt;
      return undefined;
    }
    if (result instanceof Problem && result.code === "stale") result.maybeSettled = this.#isInDoubt;
    // The error may name another message, such as the one to replace.
    if (this.#id !== undefined) result.id = this.#id;
    return { final: result };
  }

  /** The number of tries that failed. */
  get failures(): number {
    return this.#tries;
  }
}

/** Sends items in one request, once. Returns a result for each, or the error of the whole request. */
export type Attempt<T> = (items: readonly Item[]) => Promise<(T | LisaError)[] | LisaError>;

/** Returns the number of leading items that fit in a request. */
export function fitting(items: readonly { readonly text: string }[]): number {
  let length = 0;
  const end = items.findIndex(({ text }, index) => {
    length += text.length + 1;
    return index > 0 && (index === MAX_ITEMS || length > MAX_LENGTH);
  });
  return end < 0 ? items.length : end;
}

/**
 * Sends items in order, one request after the other. Returns a result for each. If a request is refused as a whole, no more are
 * sent: they would be refused, too.
 */
export async function sendInOrder<T>(items: readonly Item[], attempt: Attempt<T>, tries: number): Promise<(T | LisaError)[]> {
  const results = new Map<Item, T | LisaError>();
  for (const left = [...items]; left.length > 0; ) {
    let pending = left.splice(0, fitting(left));
    while (pending.length > 0) {
      const answer = await attempt(pending);
      if (answer instanceof LisaError && !answer.retryable) pending = [...pending, ...left.splice(0)];
      const answers = each(answer, pending);
      const again = pending.filter((item, n) => {
        const concluded = item.conclude(answers[n]!, tries);
        if (concluded) results.set(item, concluded.final);
        return !concluded;
      });
      if (again.length > 0) await pause(again[0]!.failures, longestAfter(answers));
      pending = again;
    }
  }
  return items.map((item) => results.get(item)!);
}

function each<T>(answer: (T | LisaError)[] | LisaError, items: readonly unknown[]): (T | LisaError)[] {
  return answer instanceof LisaError ? items.map(() => answer.copy()) : answer;
}

function longestAfter(results: readonly unknown[]): number {
  return Math.max(0, ...results.map((result) => (result instanceof LisaError ? result.retryAfter : 0)));
}

interface Call<T> extends Pick<Item, "text"> {
  item: Item;
  end: (result: T | LisaError) => void;
  fail: (error: unknown) => void;
}

/**
 * Sends the items of single calls in batches. The first one is sent at once. Those that are added while requests are in flight
 * are sent together in the next request. A repeated item does not delay others.
 */
export class Batcher<T> {
  readonly #attempt: Attempt<T>;
  readonly #tries: number;
  #waiting: Call<T>[] = [];
  #inFlight = 0;
  #isScheduled = false;

  constructor(attempt: Attempt<T>, tries: number) {
    this.#attempt = attempt;
    this.#tries = tries;
  }

  /** Sends an item. Throws its error. */
  async add(item: Item): Promise<T> {
    const result = await new Promise<T | LisaError>((end, fail) => this.#push({ item, text: item.text, end, fail }));
    if (result instanceof LisaError) throw result;
    return result;
  }

  /** True if nothing waits or is in flight. */
  get isIdle(): boolean {
    return this.#waiting.length === 0 && this.#inFlight === 0;
  }

  #push(call: Call<T>): void {
    this.#waiting.push(call);
    if (this.#isScheduled) return;
    // Waits for the code that runs now, which may add more.
    this.#isScheduled = true;
    void endOfTurn().then(() => {
      this.#isScheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    while (this.#waiting.length > 0 && this.#inFlight < MAX_IN_FLIGHT) {
      void this.#send(this.#waiting.splice(0, fitting(this.#waiting)));
    }
  }

  async #send(calls: Call<T>[]): Promise<void> {
    this.#inFlight += 1;
    let results: (T | LisaError)[];
    try {
      results = each(await this.#attempt(calls.map(({ item }) => item)), calls);
    } catch (error) {
      for (const { fail } of calls) fail(error);
      return;
    } finally {
      this.#inFlight -= 1;
      this.#flush();
    }
    const again = calls.filter(({ item, end }, n) => {
      const concluded = item.conclude(results[n]!, this.#tries);
      if (concluded) end(concluded.final);
      return !concluded;
    });
    if (again.length === 0) return;
    await pause(again[0]!.item.failures, longestAfter(results));
    for (const call of again) this.#push(call);
  }
}
