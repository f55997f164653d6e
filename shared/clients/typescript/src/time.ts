/** Durations, instants and pauses. */

/** A duration: milliseconds, or a string such as `"30m"`. */
export type Duration = number | string;
/** An instant: a `Date`, or a string in RFC 3339. */
export type Instant = Date | string;

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns a duration in milliseconds. Throws `RangeError` if it is none. */
export function milliseconds(name: string, value: Duration): number {
  const ms = typeof value === "number" ? value : typeof value === "string" ? read(value) : NaN;
  if (Number.isFinite(ms) && ms >= 0) return ms;
  throw new RangeError(`${name}: ${String(value)} is not a duration: use milliseconds, or a string such as "30s"`);
}

function read(text: string): number {
  if (!/^(\s*\d+\s*(ms|s|m|h|d))+\s*$/.test(text)) return NaN;
  const parts = text.matchAll(/(\d+)\s*([a-z]+)/g);
  return Array.from(parts, ([, count, unit]) => Number(count) * UNITS[unit!]!).reduce((sum, part) => sum + part, 0);
}

/** Waits, at most until the signal is aborted. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return;
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}

/** Waits for a result. Throws the reason of the signal once that is aborted. */
export async function within<T>(signal: AbortSignal, result: Promise<T>): Promise<T> {
  signal.throwIfAborted();
  let stop = () => {};
  const stopped = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop);
  });
  try {
    return await Promise.race([result, stopped]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** Waits before the next try: exponential with jitter, and not less than the server asks for, up to a minute. */
export async function pause(attempt: number, after: number, signal?: AbortSignal): Promise<void> {
  const backoff = Math.min(8000, 125 * 2 ** Math.min(attempt, 6));
  await sleep(Math.max(backoff, Math.min(after, 60_000)) * (1 + Math.random() / 4), signal);
}

const { setImmediate = (then: () => void) => setTimeout(then, 0) } = globalThis as { setImmediate?: (then: () => void) => unknown };

/** Waits until the code that is ready now has run, and the calls that it makes are known. */
export async function endOfTurn(): Promise<void> {
  await new Promise<void>((resolve) => setImmediate(resolve));
}
