// Tests of the package against a real relay: see tests/clients/run.sh.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { InvalidSignature, Lisa, Problem, TransportError, verifyWebhook } from "lisa-relay";

const { LISA_URL: url, LISA_URL_WITH_TOKENS: guarded, LISA_TOKEN: token, LISA_HOOK_PORT: port, LISA_HOOK_SECRET: secret, LISA_README: readme } = process.env;
const lisa = new Lisa(url);
let topics = 0;
const topic = () => `ts-${process.pid}-${topics++}`;
const isCode = (code) => (error) => error instanceof Problem && error.code === code;

test("every byte is kept, and a repeated id is a duplicate", async () => {
  const [name, bytes] = [topic(), Uint8Array.from({ length: 256 }, (_, n) => n)];
  const sent = await lisa.send(name, bytes, { id: "mine", delay: 3_600_000, key: "ключ", headers: { "x-a": "b" } });
  assert.equal(sent.outcome, "waiting");
  const again = await lisa.send(name, bytes, { id: "mine", delay: "1h", key: "ключ" });
  assert.equal(again.outcome, "duplicate");
  const found = await lisa.get(name, "mine", "ключ");
  assert.deepEqual([found.state, found.payload, found.headers["x-a"]], ["waiting", bytes, "b"]);
  const later = await lisa.reschedule(name, "mine", { deliver_at: new Date(Date.now() + 7_200_000) }, "ключ");
  assert.equal(later.outcome, "rescheduled");
  assert.deepEqual((await lisa.cancel(name, "mine", "ключ")).payload, bytes);
  await assert.rejects(lisa.get(name, "mine"), (error) => isCode("not_found")(error) && error.ended === "cancelled");
});

test("a message is delivered now, and replaced", async () => {
  const name = topic();
  const first = await lisa.send(name, "first", { delay: "1h" });
  const { id } = await lisa.send(name, "second", { delay: "1h", replace: first.id });
  assert.equal((await lisa.deliverNow(name, id)).outcome, "rescheduled");
  const [delivery] = await lisa.pull(name);
  assert.deepEqual([delivery.id, delivery.text()], [id, "second"]);
  await assert.rejects(lisa.deliverNow(name, id), ({ code }) => code === "in_flight");
});

test("a batch has a result for each message, in order", async () => {
  const messages = Array.from({ length: 2_500 }, (_, n) => ({ payload: n, delay: n === 1_234 ? "soon" : "1h" }));
  const results = await lisa.sendMany(topic(), messages);
  assert.equal(results.length, 2_500);
  results.forEach((result, n) => assert.equal(result instanceof Problem, n === 1_234, String(n)));
  assert.match(results[1_234].errors[0].field, /delay/);
  assert.equal(results[1_234].id.length, 36);
});

test("a delivery is settled once, and its lease can be extended", async () => {
  const name = topic();
  const sent = await lisa.send(name, { order: 7 }, { key: "straße 7" });
  const [delivery] = await lisa.pull(name);
  assert.deepEqual([delivery.id, delivery.attempt, delivery.json(), delivery.key], [sent.id, 1, { order: 7 }, "straße 7"]);
  const before = delivery.leaseUntil;
  await delivery.extend("10m");
  assert.ok(delivery.leaseUntil > before);
  assert.equal((await delivery.ack()).outcome, "acked");
  await assert.rejects(delivery.ack(), (error) => isCode("stale")(error) && !error.maybeSettled);
  assert.deepEqual(await lisa.pull(name, { wait: 0 }), []);
});

test("a message has its failed attempts and the holder of its key", async () => {
  const [name, options] = [topic(), { key: "k" }];
  const first = await lisa.send(name, "a", options);
  const second = await lisa.send(name, "b", options);
  const [delivery] = await lisa.pull(name);
  await delivery.retry({ after: "1h", error: "no" });
  const [failed] = (await lisa.get(name, first.id, "k")).groups;
  assert.deepEqual([failed.state, failed.holder, failed.attempts[0].outcome, failed.attempts[0].error], ["retry", undefined, "failed", "no"]);
  const [parked] = (await lisa.get(name, second.id, "k")).groups;
  assert.deepEqual([parked.state, parked.holder, parked.attempts], ["parked", first.id, undefined]);
});

test("many deliveries are settled together", async () => {
  const name = topic();
  await lisa.sendMany(name, ["a", "b", "c"].map((payload) => ({ payload })));
  const pulled = [];
  while (pulled.length < 3) pulled.push(...(await lisa.pull(name, { max: 3 })));
  const outcomes = [{ ack: true }, { retry: { after: "1h", error: "x" } }, { reject: { error: "bad" } }];
  const ended = await lisa.settleMany(pulled.map(({ token }, n) => ({ token, ...outcomes[n] })));
  assert.deepEqual(ended.map((one) => one.outcome), ["acked", "retry", "garbage"]);
});

test("a worker acks, retries and stops at its signal", async () => {
  const [stop, seen] = [new AbortController(), []];
  await lisa.send("jobs", "fails once", { id: `once-${process.pid}` });
  const work = lisa.work("jobs", (delivery) => {
    seen.push(delivery.attempt);
    if (delivery.attempt === 1) throw new Error("not yet");
    stop.abort();
  }, { signal: stop.signal, concurrency: 2 });
  await work;
  assert.deepEqual(seen, [1, 2]);
  await assert.rejects(lisa.get("jobs", `once-${process.pid}`), isCode("not_found"));
});

test("a lost answer is repeated under the same id", async () => {
  let calls = 0;
  const flaky = new Lisa(url, { fetch: async (...request) => {
    const answer = await fetch(...request);
    if (++calls === 1) throw new TypeError("connection reset");
    return answer;
  } });
  assert.equal((await flaky.send(topic(), "x", { delay: "1h" })).outcome, "duplicate");
  assert.equal(calls, 2);
});

test("tries end, and the error has the id", async () => {
  const away = new Lisa("http://127.0.0.1:1", { tries: 2 });
  await assert.rejects(away.send("t", "x"), (error) => error instanceof TransportError && error.id.length === 36);
});

test("tokens are needed where there are some", async () => {
  await assert.rejects(new Lisa(guarded).send("orders", "x"), isCode("unauthorized"));
  const sent = await new Lisa(guarded, { token: async () => `${token}\n` }).send("orders", "x", { delay: "1h" });
  assert.equal(sent.outcome, "waiting");
});

test("a webhook of the relay is verified, and an altered one is not", async () => {
  const received = new Promise((resolve) => {
    const server = createServer(async (request, response) => {
      const parts = [];
      for await (const part of request) parts.push(part);
      response.end();
      server.close();
      resolve([request.headers, Buffer.concat(parts)]);
    }).listen(Number(port), "127.0.0.1");
  });
  const sent = await lisa.send("hooks", "hello");
  const [headers, body] = await received;
  assert.equal(await verifyWebhook(headers, body, ["whsec_AAAA", secret]), sent.id);
  await assert.rejects(verifyWebhook(headers, `${body}!`, secret), InvalidSignature);
  await assert.rejects(verifyWebhook({ ...headers, "webhook-timestamp": "1" }, body, secret), InvalidSignature);
  await assert.rejects(verifyWebhook(headers, body, "secret"), TypeError);
});

test("the example of the README runs as it is", async () => {
  const [, code] = readFileSync(readme, "utf8").match(/```ts\n([\s\S]*?)```/);
  const lines = [];
  const log = console.log;
  console.log = (...words) => lines.push(words);
  try {
    const local = code.replace("http://127.0.0.1:7812", url).replaceAll('"orders"', `"${topic()}"`).replace('"lisa-relay"', JSON.stringify(import.meta.resolve("lisa-relay")));
    await import(`data:text/javascript,${encodeURIComponent(local)}`);
  } finally {
    console.log = log;
  }
  assert.deepEqual(lines, [["waiting", true, { order: 7 }]]);
});
