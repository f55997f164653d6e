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
  const arrived = new Arrived(limit);
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    if (!arrived.add(value)) {
      await reader.cancel();
      throw arrived.error();
    }
  }
  return arrived.bytes();
}

/** The part of a body that has arrived. Parts of a few bytes take no more memory than large ones. */
class Arrived {
  readonly #limit: number;
  #bytes = new Uint8Array(0);
  #size = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Adds a part. Returns false if the body is too long. */
  add(part: Uint8Array): boolean {
    const size = this.#size + part.length;
    if (size > this.#limit) return false;
    if (size > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(size, 2 * this.#bytes.length));
      larger.set(this.#bytes.subarray(0, this.#size));
      this.#bytes = larger;
    }
    this.#bytes.set(part, this.#size);
    this.#size = size;
    return true;
  }

  error(): RangeError {
    return new RangeError(`it is longer than ${this.#limit} bytes`);
  }

  bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#size);
  }
}

/** The parts of `node:http` and `node:https` that are used here. */
interface NodeHttp {
  Agent: new (options: { keepAlive: boolean; timeout: number }) => object;
  request(url: string, options: object, answer: (response: NodeResponse) => void): NodeStream & { end(body?: Uint8Array): void };
}
interface NodeStream {
  on(event: "data", then: (part: Uint8Array) => void): void;
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
        const arrived = new Arrived(limit);
        response.on("data", (part) => {
          if (arrived.add(part)) return;
          reject(arrived.error());
          request.destroy();
        });
        response.on("end", () => {
          const header = (name: string) => [response.headers[name] ?? null].flat()[0]!;
          resolve({ status: response.statusCode, header, body: arrived.bytes() });
        });
        response.on("error", fail);
      });
      request.on("error", fail);
      // If the other side switches to another protocol, nothing else tells of the end.
      request.on("close", () => fail(new Error("the connection was closed")));
      request.end(bytes);
    });
}

interface Process {
  release?: { name?: string };
  versions?: Record<string, string>;
  getBuiltinModule?: (name: string) => NodeHttp | undefined;
}

function findNode(): Transport | undefined {
  const { release, versions = {}, getBuiltinModule } = (globalThis as { process?: Process }).process ?? {};
  // Bun, Deno and Workers imitate Node, but their `fetch` is faster or more complete.
  if (!getBuiltinModule || release?.name !== "node" || versions.bun || versions.deno) return undefined;
  const [http, https] = [getBuiltinModule("node:http"), getBuiltinModule("node:https")];
  return http && https ? byNode(http, https) : undefined;
}

const platform: Transport = findNode() ?? byFetch((...request) => fetch(...request));
