// Tests of automatic batching: nothing is lost, sent twice or returned to another caller.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lisa, Problem } from "lisa-relay";
import { eventually, forward, serve } from "./faults.mjs";

const { LISA_URL: url } = process.env;
const lisa = new Lisa(url);
const COUNT = 300;
let topics = 0;
const topic = () => `ts-batch-${process.pid}-${topics++}`;
const isCode = (code) => (error) => error instanceof Problem && error.code === code;

/** Passes requests on, records the sizes of the batches whose path ends with `part`, and fails two of them. */
function relay(part) {
  const sizes = [];
  const answer = async (request, response) => {
    if (!request.path.endsWith(part)) return forward(url, request);
    const nth = sizes.push(JSON.parse(request.body).length);
    // Refused, without having been carried out.
    if (nth === 3) return [503, { "retry-after": "0" }, '{"status":503,"code":"unavailable"}'];
    const answered = await forward(url, request);
    if (nth !== 5) return answered;
    // Carried out, but the answer is lost.
    response.destroy();
  };
  return { answer, sizes };
}

/** Runs `call` for 0 to COUNT - 1, 50 at a time. */
async function fiftyAtATime(call) {
  const results = [];
  let next = 0;
  await Promise.all(Array.from({ length: 50 }, async () => {
    while (next < COUNT) {
      const n = next++;
      results[n] = await call(n).catch((error) => error);
    }
  }));
  return results;
}

test("sends share requests, and each gets its own receipt", async () => {
  const [name, { answer, sizes }] = [topic(), relay("messages:batch")];
  await serve(answer, async (proxy) => {
    const other = new Lisa(proxy);
    const results = await fiftyAtATime((n) => other.send(name, n, { id: `${name}-${n}`, delay: n % 50 === 7 ? "soon" : "1h" }));
    for (const [n, result] of results.entries()) {
      assert.equal(result.id, `${name}-${n}`);
      assert.equal(result instanceof Problem && result.code, n % 50 === 7 && "invalid");
      if (n % 50 !== 7) assert.equal(JSON.parse(new TextDecoder().decode((await lisa.get(name, result.id)).payload)), n);
    }
  });
  assert.ok(sizes.reduce((sum, size) => sum + size) >= COUNT && sizes.length < COUNT / 3, String(sizes));
});

test("a refusal of a whole request is the error of each call, and ends a batch", async () => {
  await serve(() => [401, {}, '{"status":401,"code":"unauthorized"}'], async (fake, requests) => {
    const other = new Lisa(fake);
    const results = await other.sendMany("t", Array.from({ length: 2000 }, (_, payload) => ({ payload })));
    assert.ok(results.every(isCode("unauthorized")));
    assert.deepEqual([requests.length, new Set(results).size, new Set(results.map(({ id }) => id)).size], [1, 2000, 2000]);
    await assert.rejects(other.send("t", "x"), isCode("unauthorized"));
  });
});

test("an item that is repeated holds up no other", async () => {
  let others = 0;
  const result = ({ id }) => {
    if (id === "last" && others < 20) return { id, error: { status: 429, code: "full" } };
    others += 1;
    return { id, outcome: "ready" };
  };
  await serve(({ body }) => [200, {}, JSON.stringify(JSON.parse(body).map(result))], async (fake) => {
    // The last try is 24 s after the first one.
    const other = new Lisa(fake, { tries: 8 });
    const last = other.send("t", "x", { id: "last" });
    for (let n = 0; n < 20; n++) await other.send("t", "x");
    await last;
  });
});

test("a worker settles in batches, and runs no more handlers than it may", async () => {
  for (const concurrency of [1, 7, 50, 250]) {
    const [name, { answer, sizes }, stop, seen] = [topic(), relay("deliveries:settle"), new AbortController(), new Map()];
    const count = Math.min(COUNT, 20 * concurrency);
    await lisa.sendMany(name, Array.from({ length: count }, (_, n) => ({ payload: n, id: `${name}-${n}` })));
    let [running, most] = [0, 0];
    await serve(answer, (proxy) => new Lisa(url, { gateway: proxy }).work(name, async (delivery) => {
      most = Math.max(most, ++running);
      const n = delivery.json();
      await new Promise((resolve) => setTimeout(resolve, n % 3));
      running -= 1;
      seen.set(n, (seen.get(n) ?? 0) + 1);
      if (seen.size === count) stop.abort();
      if (n === 5 && delivery.attempt === 1) return { retry: { after: 0 } };
    }, { concurrency, signal: stop.signal }));
    assert.ok(most <= concurrency);
    assert.deepEqual([seen.size, [...seen].filter(([n, times]) => times !== 1 && n !== 5)], [count, []]);
    if (concurrency > 1) assert.ok(sizes.length < count / 2, String(sizes));
    for (const n of seen.keys()) if (n !== 5) await assert.rejects(lisa.get(name, `${name}-${n}`), ({ ended }) => ended === "acked");
  }
});

test("leases are extended together", async () => {
  const [name, stop, attempts, sizes] = [topic(), new AbortController(), new Map(), []];
  await lisa.sendMany(name, Array.from({ length: 40 }, (_, payload) => ({ payload })));
  const answer = (request) => {
    if (request.path.endsWith(":extend")) sizes.push(JSON.parse(request.body).length);
    return forward(url, request);
  };
  await serve(answer, (proxy) => new Lisa(url, { gateway: proxy }).work(name, async (delivery) => {
    attempts.set(delivery.json(), delivery.attempt);
    await eventually(() => sizes.reduce((sum, size) => sum + size, 0) >= 120, "three extensions of each");
    stop.abort();
  }, { concurrency: 40, lease: "3s", signal: stop.signal }));
  assert.deepEqual([attempts.size, new Set(attempts.values()), Math.max(...sizes)], [40, new Set([1]), 40]);
});

test("a request that cannot be made fails its calls, and not those after it", async () => {
  let isBroken = true;
  const broken = new Lisa(url, { token: () => { if (isBroken) throw Object.create(null); return "token"; }, tries: 1 });
  for (let n = 0; n < 3; n++) await assert.rejects(Promise.all([broken.send("t", 1), broken.send("t", 2)]));
  isBroken = false;
  await broken.send(topic(), "x");
  for (const timeout of [5e9, -1, NaN]) assert.throws(() => new Lisa(url, { timeout }), TypeError);
  await new Lisa(url, { timeout: 1500.5 }).send(topic(), "x");
  for (const name of [undefined, null, "", 7]) await assert.rejects(lisa.send(name, "x"), TypeError);
});

test("the error of a send has the id of its message", async () => {
  await assert.rejects(lisa.send(topic(), "x", { id: "mine", replace: "gone" }), ({ id }) => id === "mine");
});

test("an outcome is repeated until the lease ends", async () => {
  const [name, stop, attempts] = [topic(), new AbortController(), []];
  const { id } = await lisa.send(name, "x");
  let failures = 0;
  const answer = (request, response) => {
    if (!request.path.endsWith(":settle") || ++failures > 3) return forward(url, request);
    response.destroy();
  };
  await serve(answer, (proxy) => new Lisa(url, { gateway: proxy, tries: 1 }).work(name, (delivery) => {
    attempts.push(delivery.attempt);
    stop.abort();
  }, { signal: stop.signal, log: () => {} }));
  await assert.rejects(lisa.get(name, id), ({ ended }) => ended === "acked");
  assert.deepEqual(attempts, [1]);
});
