/** Sends a request once: with `fetch`, or in Node with its own HTTP client, which takes half the CPU time. */

/** A request as it is sent. */
export interface Sending {
  method: string;
  headers: Record<string, string>;
  body: string | null;
  signal: AbortSignal;
}

/** An answer as it was received. */
export interface Received {
  status: number;
  header(name: string): string | null;
  body: Uint8Array;
}

/** Sends a request, and reads an answer of at most `limit` bytes. Follows no redirect. */
export type Transport = (url: string, sending: Sending, limit: number) => Promise<Received>;

/** Returns the transport for a `fetch` of the caller; by default that of the platform. */
export function transportOf(own: typeof fetch | undefined): Transport {
  return own ? byFetch(own) : platform;
}

function byFetch(send: typeof fetch): Transport {
  return async (url, { method, headers, body, signal }, limit) => {
    const response = await send(url, { method, headers, body, signal, redirect: "manual" });
    // A browser hides the status of a redirect.
    const status = response.type === "opaqueredirect" ? 302 : response.status;
    return { status, header: (name) => response.headers.get(name), body: await read(response, limit) };
  };
}

/** Reads the body of a response, up to a limit. */
async function read(response: Response, limit: number): Promise<Uint8Array> {
  const reader = response.body?.getReader();
  const chunks = new Chunks(limit);
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    if (!chunks.add(value)) {
      await reader.cancel();
      throw chunks.error();
    }
  }
  return chunks.all();
}

/** The parts of a body. */
class Chunks {
  readonly #limit: number;
  readonly #chunks: Uint8Array[] = [];
  #size = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Adds a part. Returns false if the body is too long. */
  add(chunk: Uint8Array): boolean {
    this.#size += chunk.length;
    this.#chunks.push(chunk);
    return this.#size <= this.#limit;
  }

  error(): RangeError {
    return new RangeError(`it is longer than ${this.#limit} bytes`);
  }

  all(): Uint8Array {
    if (this.#chunks.length === 1) return this.#chunks[0]!;
    const all = new Uint8Array(this.#size);
    let at = 0;
    for (const chunk of this.#chunks) {
      all.set(chunk, at);
      at += chunk.length;
    }
    return all;
  }
}

/** The parts of `node:http` and `node:https` that are used here. */
interface NodeHttp {
  Agent: new (options: { keepAlive: boolean; timeout: number }) => object;
  request(url: string, options: object, answer: (response: NodeResponse) => void): NodeStream & { end(body?: Uint8Array): void };
}
interface NodeStream {
  on(event: "data", then: (chunk: Uint8Array) => void): void;
  on(event: "error", then: (error: unknown) => void): void;
  on(event: "end" | "close", then: () => void): void;
  destroy(): void;
}
interface NodeResponse extends NodeStream {
  statusCode: number;
  headers: Record<string, string | string[] | undefined>;
}

/** The time after which an idle connection is closed, in milliseconds: shorter than the 5 s or more of common proxies. */
const IDLE = 4000;

function byNode(http: NodeHttp, https: NodeHttp): Transport {
  const options = { keepAlive: true, timeout: IDLE };
  const agents = { http: new http.Agent(options), https: new https.Agent(options) };
  return (url, { method, headers, body, signal }, limit) =>
    new Promise((resolve, reject) => {
      const [module, agent] = url.startsWith("https:") ? [https, agents.https] : [http, agents.http];
      const fail = (error: unknown) => reject(signal.aborted ? signal.reason : error);
      // If the body were a string, Node would also encode the headers as UTF-8.
      const bytes = body === null ? undefined : new TextEncoder().encode(body);
      const length = bytes ? { "content-length": bytes.length } : {};
      const request = module.request(url, { method, headers: { ...headers, ...length }, agent, signal }, (response) => {
        const chunks = new Chunks(limit);
        response.on("data", (chunk) => {
          if (chunks.add(chunk)) return;
          reject(chunks.error());
          request.destroy();
        });
        response.on("end", () => {
          const header = (name: string) => [response.headers[name] ?? null].flat()[0]!;
          resolve({ status: response.statusCode, header, body: chunks.all() });
        });
        response.on("error", fail);
      });
      request.on("error", fail);
      request.end(bytes);
    });
}

interface Process {
  versions?: Record<string, string>;
  getBuiltinModule?: (name: string) => NodeHttp | undefined;
}

function findNode(): Transport | undefined {
  const { versions = {}, getBuiltinModule } = (globalThis as { process?: Process }).process ?? {};
  // Bun and Deno imitate Node, but their `fetch` is faster.
  if (!getBuiltinModule || !versions.node || versions.bun || versions.deno) return undefined;
  const [http, https] = [getBuiltinModule("node:http"), getBuiltinModule("node:https")];
  return http && https ? byNode(http, https) : undefined;
}

const platform: Transport = findNode() ?? byFetch((...request) => fetch(...request));
