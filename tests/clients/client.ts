// Uses each role through openapi-fetch and the generated types: `client.js BASE_URL TOKEN`.

import createClient from "openapi-fetch";

import type { components, paths } from "./types.js";

type Schemas = components["schemas"];
declare const process: { argv: string[] };

const [, , baseUrl, token] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

function check(holds: boolean, what: string): asserts holds {
  if (!holds) throw new Error(what);
}

// Compiles only if it has each state.
function isOnStream(state: Schemas["State"]): boolean {
  switch (state) {
    case "ready":
    case "in_flight":
      return true;
    case "waiting":
    case "backlog":
    case "parked":
    case "retry":
    case "garbage":
      return false;
  }
}

const bytesOf = (base64: string) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
const same = (one: Uint8Array, other: Uint8Array) => one.length === other.length && one.every((byte, n) => byte === other[n]);
const message = { topic: "orders", id: "typescript" };

// Send, look up, cancel: every byte is kept. The tool types bytes as a string.
const payload = Uint8Array.from({ length: 256 }, (_, n) => n);
const sent = await client.POST("/v1/topics/{topic}/messages", {
  params: { path: { topic: "orders" }, header: { "Lisa-Id": "typescript", "Lisa-Delay": "1h" } },
  headers: { "Content-Type": "application/octet-stream" },
  body: payload as unknown as string,
  bodySerializer: (bytes) => bytes,
});
const outcome: "waiting" | "ready" | "merged" | "duplicate" | "rescheduled" | undefined = sent.data?.outcome;
check(outcome === "waiting", JSON.stringify(sent.error));
const seen = await client.GET("/v1/topics/{topic}/messages/{id}", { params: { path: message } });
check(seen.data !== undefined && !isOnStream(seen.data.state), JSON.stringify(seen.error));
check(same(bytesOf(seen.data.payload_base64 ?? ""), payload), JSON.stringify(seen.data));
const cancelled = await client.DELETE("/v1/topics/{topic}/messages/{id}", { params: { path: message } });
check(same(bytesOf(cancelled.data?.payload_base64 ?? ""), payload), JSON.stringify(cancelled));
const gone = await client.GET("/v1/topics/{topic}/messages/{id}", { params: { path: message } });
check(gone.error?.code === "not_found" && gone.error.ended === "cancelled", JSON.stringify(gone));

// A batch has a result for each message, including one that is refused.
const batch = await client.POST("/v1/topics/{topic}/messages:batch", {
  params: { path: { topic: "orders" } },
  body: [
    { payload: { order: 7 }, delay: "1h", id: "typescript-7", retry: { kind: "fixed", delay: "5s" } },
    { payload_text: "x", delay: "soon" },
  ],
});
// Without a schema for lines, this is not a text.
const results = batch.data as Schemas["BatchResult"][];
const words = results.map((result) => ("error" in result ? result.error.code : result.outcome));
check(words.join() === "waiting,invalid", JSON.stringify(batch));

// Answers of the manager.
const stats = await client.GET("/v1/stats");
check(stats.data?.topics[0]?.topic === "orders", JSON.stringify(stats));
const topic = await client.GET("/v1/topics/{topic}", { params: { path: { topic: "orders" } } });
check(topic.data?.settings.retry.kind === "exponential", JSON.stringify(topic));
const run = await client.POST("/v1/jobs/{name}/run", { params: { path: { name: "clean" } } });
const report = run.data?.report;
check(report != null && "tombstones" in report, JSON.stringify(run));
const page = await client.GET("/v1/topics/{topic}/messages", {
  params: { path: { topic: "orders" }, query: { state: "waiting", limit: 10 } },
});
check(page.data?.messages.some((one) => one.id === "typescript-7") === true, JSON.stringify(page));
console.log("typescript: ok");
