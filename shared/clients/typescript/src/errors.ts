/** The errors of the client: no response, or a response that is a problem (RFC 9457). */

const RETRYABLE = new Set([408, 429, 502, 503, 504]);

/** The codes of problems. Codes never change their meaning; a later version of Lisa may add some. */
export type Code =
  | "invalid" | "too_large" | "unauthorized" | "invalid_delivery_token" | "forbidden" | "not_found" | "unknown_topic" | "full"
  | "in_flight" | "garbage" | "cancelled" | "stale" | "declared_in_file" | "not_empty" | "busy" | "quota" | "unavailable" | "indeterminate" | (string & {});

/** A request that failed. If it was a send, `id` is the id to repeat it with. */
export class LisaError extends Error {
  id?: string;
  /** True if the request can be repeated. */
  readonly retryable: boolean = true;
  /** True if the request may have been carried out. */
  readonly inDoubt: boolean = true;
  /** The time before the next try that the server requests, in milliseconds. */
  readonly retryAfter: number = 0;

  /** Returns a copy of this error: each item of a batch that failed as a whole gets one. */
  copy(): LisaError {
    return new LisaError(this.message, { cause: this.cause });
  }
}

/** No response from Lisa: no connection, a timeout, a broken connection, a response from something else, or no token to send. */
export class TransportError extends LisaError {
  override name = "TransportError";

  override copy(): TransportError {
    return new TransportError(this.message, { cause: this.cause });
  }
}

/** A body of RFC 9457. */
export interface ProblemBody {
  type?: string;
  title?: string;
  status?: number;
  detail?: string;
  code?: string;
  id?: string;
  ended?: string;
  into?: string;
  stored?: boolean;
  errors?: { field: string; detail: string }[];
}

/** A response that is an error. `code` identifies it; `message` is for humans. */
export class Problem extends LisaError {
  override name = "Problem";
  readonly status: number;
  readonly code: Code;
  readonly detail: string;
  /** Everything that is wrong with the request. */
  readonly errors: { field: string; detail: string }[];
  /** The end of the affected message, if it has ended and Lisa still remembers it. */
  readonly ended: string | undefined;
  /** True if the message is stored although the code is `indeterminate`. */
  readonly stored: boolean;
  /** With the code `stale`: true if an earlier try of the same call may have settled the delivery. */
  maybeSettled = false;
  override readonly retryable: boolean;
  override readonly inDoubt: boolean;
  override readonly retryAfter: number;
  readonly #body: ProblemBody;

  constructor(status: number, body: ProblemBody, retryAfter = 0) {
    super(`${status} ${body.code ?? body.title ?? ""}: ${body.detail ?? ""}`);
    this.#body = body;
    this.status = status;
    this.code = body.code ?? "";
    this.detail = body.detail ?? "";
    this.errors = Array.isArray(body.errors) ? body.errors : [];
    this.ended = body.ended;
    this.stored = body.stored ?? false;
    if (body.id !== undefined) this.id = body.id;
    this.retryable = RETRYABLE.has(status);
    this.inDoubt = status === 502 || status === 504 || this.code === "indeterminate";
    this.retryAfter = retryAfter;
  }

  override copy(): Problem {
    return new Problem(this.status, this.#body, this.retryAfter);
  }
}

/** Reads the problem of an answer, which may come from a proxy and not be JSON. */
export function problemOf(status: number, text: string, retryAfter: string | null): Problem {
  const seconds = Number(retryAfter ?? "");
  const after = Number.isFinite(seconds) ? seconds * 1000 : 0;
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === "object" && body !== null) return new Problem(status, body, after);
  } catch {
    // Not JSON.
  }
  return new Problem(status, { title: "not an answer from Lisa", detail: text.slice(0, 200) }, after);
}
