// Tests that a worker charges messages with nothing but the failures of their handlers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lisa, Problem, TransportError } from "lisa-relay";
import { MISLEADING, eventually, forward, serve } from "./faults.mjs";

const { LISA_URL: url } = process.env;
const lisa = new Lisa(url);
let topics = 0;
const topic = () => `ts-work-${process.pid}-${topics++}`;
const ended = (outcome) => (error) => error instanceof Problem && error.ended === outcome;

test("a wrong argument is thrown before the first pull", async () => {
  const wrong = [
    ["topic", undefined], ["topic", ""], ["handler", undefined], ["group", 7], ["consumer", 7],
    ["concurrency", 0], ["concurrency", "4"], ["concurrency", 1.5], ["concurrency", NaN],
    ["max_per_key", 0], ["max_per_key", 201], ["max_per_key", 1.5], ["max_per_key", "4"],
    ["lease", "30"], ["lease", "soon"], ["lease", NaN], ["lease", 0], ["lease", -1], ["lease", null],
    ["signal", new AbortController()], ["log", "warn"],
  ];
  await serve(() => [200, {}, '{"deliveries":[]}'], async (fake, requests) => {
    for (const [name, value] of wrong) {
      const { topic: where, handler, ...options } = { topic: "t", handler: () => {}, [name]: value };
      await assert.rejects(new Lisa(fake).work(where, handler, options), (error) => error instanceof TypeError && error.message.includes(`${name}:`), name);
    }
    await assert.rejects(new Lisa(fake).work("t", null, { concurrency: 0, lease: "soon" }), /handler.*concurrency.*lease/);
    assert.equal(requests.length, 0);
  });
});

test("a wrong configuration is thrown at once", () => {
  for (const [name, value] of [["gateway", "localhost"], ["timeout", "2s"], ["timeout", NaN], ["tries", 0], ["token", "a\nb"], ["token", ""]]) {
    assert.throws(() => new Lisa(url, { [name]: value }), (error) => error instanceof TypeError && error.message.startsWith(`${name}:`), name);
  }
  assert.throws(() => new Lisa("localhost:7812"), TypeError);
});

test("a lease is extended every third of its length, whether it is a string or a number", async () => {
  for (const lease of ["1s 500ms", 2_000]) {
    const [name, stop, attempts] = [topic(), new AbortController(), []];
    await lisa.send(name, "slow");
    await serve((request) => forward(url, request), async (proxy, requests) => {
      const work = new Lisa(url, { gateway: proxy }).work(name, async (delivery) => {
        attempts.push(delivery.attempt);
        const first = delivery.leaseUntil;
        // Longer than the lease: only an extended lease still holds then.
        await eventually(() => new Date() > Number(first) + 2_000, "the first lease is over");
        await delivery.ack();
        stop.abort();
      }, { lease, signal: stop.signal });
      await work;
      assert.ok(requests.filter(({ path }) => path.endsWith(":extend")).length < 20);
    });
    assert.deepEqual(attempts, [1]);
  }
});

test("a handler learns that its lease was lost, and its outcome is not sent", async () => {
  const delivery = { id: "a", token: "t", attempt: 1, due_at: "2026-01-01T00:00:00Z", lease_until: "2026-01-01T00:00:00Z", payload: "x" };
  const answers = {
    pull: () => ({ deliveries: [delivery] }),
    extend: () => [{ error: { status: 409, code: "stale" } }],
  };
  for (const isReadAtOnce of [true, false]) {
    const [stop, logged] = [new AbortController(), []];
    await serve(({ path }) => [200, {}, JSON.stringify(answers[path.split(/[/:]/).at(-1)]())], async (fake, requests) => {
      await new Lisa(fake).work("t", async (pulled) => {
        stop.abort();
        if (isReadAtOnce) await new Promise((resolve) => pulled.signal.addEventListener("abort", resolve));
        await eventually(() => pulled.isLost, "lost");
        assert.equal(pulled.signal.reason.code, "stale");
      }, { lease: 100, signal: stop.signal, log: (text) => logged.push(text) });
      assert.deepEqual(requests.map(({ path }) => path), ["/v1/topics/t/groups/default/pull", "/v1/deliveries:extend"]);
    });
    assert.deepEqual(logged, ["lease of a was lost; another worker may have it"]);
  }
});

test("those behind a lost lease are handed back", async () => {
  const body = (id) => ({ id, token: id, attempt: 1, due_at: "2026-01-01T00:00:00Z", lease_until: "2026-01-01T00:00:00Z", key: "k", payload: "x" });
  const back = { defer: { after: "0ms" } };
  const cases = {
    // A message that waits, or one that was handled.
    extend: { lost: "1", handled: ["0"], settled: { 0: { ack: true }, 2: back, 3: back } },
    settle: { lost: "0", handled: ["0", "1"], settled: { 0: { ack: true }, 1: { ack: true }, 2: back, 3: back } },
  };
  for (const [verb, expected] of Object.entries(cases)) {
    const [stop, logged, handled, settled] = [new AbortController(), [], [], {}];
    let pulls = 0;
    const answer = ({ path, body: text }) => {
      if (path.endsWith("/pull")) return { deliveries: pulls++ === 0 ? ["0", "1", "2", "3"].map(body) : [] };
      return JSON.parse(text).map(({ token, ...outcome }) => {
        if (path.endsWith("settle")) settled[token] = outcome;
        return path.endsWith(verb) && token === expected.lost ? { error: { status: 409, code: "stale" } } : { outcome: "acked" };
      });
    };
    await serve((request) => [200, {}, JSON.stringify(answer(request))], async (fake, requests) => {
      const work = new Lisa(fake).work("t", async ({ id }) => {
        handled.push(id);
        if ((verb === "settle") === (id === "1")) await eventually(() => logged.length > 0, "the lease is lost");
      }, { concurrency: 3, max_per_key: 4, lease: 300, signal: stop.signal, log: (text) => logged.push(text) });
      await eventually(() => Object.keys(settled).length === Object.keys(expected.settled).length, "all are settled");
      stop.abort();
      await work;
      assert.deepEqual(JSON.parse(requests[0].body), { lease: "300ms", max: 12, max_per_key: 4, max_keys: 3, wait: "20000ms" });
    });
    assert.deepEqual({ handled, settled, logged }, { handled: expected.handled, settled: expected.settled, logged: [`lease of ${expected.lost} was lost; another worker may have it`] });
  }
});

test("a worker survives that there is no token for a moment", async () => {
  const [name, stop, logged] = [topic(), new AbortController(), []];
  const sent = await lisa.send(name, "x");
  let token = () => { throw new Error("vault is sealed"); };
  const worker = new Lisa(url, { token: () => token(), tries: 1 });
  const has = (text) => () => logged.some((line) => line.startsWith(text));
  const work = worker.work(name, async () => {
    token = () => "";
    await eventually(has("cannot extend"), "an extension without a token");
    token = () => "token";
    stop.abort();
  }, { lease: "3s", signal: stop.signal, log: (text) => logged.push(text) });
  await eventually(has("cannot pull"), "a pull without a token");
  token = async () => "token";
  await work;
  await assert.rejects(lisa.get(name, sent.id), ended("acked"));
});

test("whatever a handler does wrong is a failed attempt, and is reported", async () => {
  const wrong = [
    [() => { throw new TransportError("no answer of another relay"); }, /no answer of another relay/],
    [() => { throw Object.create(null); }, /an error that has no text/],
    [() => { throw "é".repeat(20_000); }, /é{100}/],
    [() => 7, /not an outcome: 7/],
    [() => ({ retry: { after: -5 } }), /after: -5 is not a duration/],
    [() => ({ retry: { after: "soon" } }), /wrong outcome: 422 invalid/],
    [() => ({ defer: {} }), /wrong outcome: 422 invalid/],
  ];
  for (const [handler, expected] of wrong) {
    const [stop, attempts, warned] = [new AbortController(), [], []];
    const { id } = await lisa.send("jobs", "x");
    const warn = console.warn;
    console.warn = (text) => warned.push(text);
    try {
      const work = lisa.work("jobs", (delivery) => {
        if (delivery.id === id) attempts.push(delivery.attempt);
        return handler();
      }, { signal: stop.signal });
      const { error } = await eventually(async () => { const found = await lisa.get("jobs", id); return found.reason && found; }, "in garbage");
      assert.match(error, expected);
      stop.abort();
      await work;
    } finally {
      stop.abort();
      console.warn = warn;
    }
    assert.deepEqual(attempts, [1, 2]);
    assert.ok(warned.filter((text) => text.includes(id)).length >= 2, String(warned));
  }
});
