// Tests of the package against a real relay: see tests/clients/run.sh.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createServer } from "node:http";
import { test } from "node:test";
import { InvalidSignature, Lisa, Problem, TransportError, verifyWebhook } from "lisa-relay";
import { serve } from "./faults.mjs";

const { LISA_URL: url, LISA_URL_WITH_TOKENS: guarded, LISA_TOKEN: token, LISA_HOOK_PORT: port, LISA_HOOK_SECRET: secret, LISA_README: readme } = process.env;
const lisa = new Lisa(url);
let topics = 0;
const topic = () => `ts-${process.pid}-${topics++}`;
const isCode = (code) => (error) => error instanceof Problem && error.code === code;

test("a client reads its own token", async () => {
  const { used, ...own } = await new Lisa(guarded, { token }).ownToken();
  assert.deepEqual([own.token, own.declared_in_file, own.scopes.includes("send"), used], ["all", true, true, {}]);
});

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

test("a page leads to the next one until the last", async () => {
  const name = topic();
  await lisa.sendMany(name, ["a", "b", "c"].map((id) => ({ id, payload: id, delay: "1h", key: "ключ" })));
  const [listed, options] = [[], { key: "ключ", limit: 2 }];
  let cursor;
  do {
    const page = await lisa.list(name, { ...options, cursor });
    listed.push(...page.messages);
    cursor = page.next;
  } while (cursor !== null);
  assert.deepEqual(listed.map(({ id, state, key }) => [id, state, key]), ["a", "b", "c"].map((id) => [id, "waiting", "ключ"]));
  assert.deepEqual((await lisa.list(name, { to: new Date() })).messages, []);
  const { rescheduled } = await lisa.rescheduleKey(name, "ключ", { deliver_at: new Date(Date.now() + 7_200_000) });
  assert.equal(rescheduled, 3);
  assert.deepEqual(await lisa.requeue(name, ["a"]), { found: 0, done: 0, dry_run: false, missing: ["a"] });
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

test("an answer that switches to another protocol is an error at once", async () => {
  const answer = (_, response) => void response.socket.end("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
  await serve(answer, async (fake) => {
    for (const options of [{}, { fetch }]) {
      const call = new Lisa(fake, { tries: 1, timeout: 60_000, ...options }).get("t", "a");
      await assert.rejects(call, TransportError);
    }
  });
});

test("a negative duration is thrown", async () => {
  await serve(() => [200, {}, "[]"], async (fake, requests) => {
    for (const delay of [-5_000, NaN, Infinity]) await assert.rejects(new Lisa(fake).send("t", "x", { delay }), /delay: .* is not a duration/);
    assert.equal(requests.length, 0);
  });
});

test("a wrong key, id or time is thrown", async () => {
  await serve(() => [200, {}, "{}"], async (fake, requests) => {
    const lisa = new Lisa(fake);
    await assert.rejects(lisa.rescheduleKey("t", "k", { delay: "1h", deliver_at: new Date() }), /^TypeError: deliver_at: cannot be combined with delay/);
    await assert.rejects(lisa.cancelKey("t", ""), /^TypeError: key: /);
    await assert.rejects(lisa.list("t", { group: "" }), /^TypeError: group: /);
    for (const ids of [[], "id", [7], undefined]) await assert.rejects(lisa.requeue("t", ids), /^TypeError: ids: /);
    assert.equal(requests.length, 0);
    assert.throws(() => new Lisa(fake, { manager: "localhost" }), /^TypeError: manager: /);
  });
});

test("a hostile webhook is an invalid signature, also for the sample in the guide", async () => {
  const guide = readFileSync(join(dirname(readme), "../../docs/guides/webhooks.md"), "utf8");
  const [, code] = guide.match(/```js\n([\s\S]*?)```/);
  const { verify } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
  const now = String(Math.floor(Date.now() / 1000));
  const hostile = [["timestamp", ""], ["timestamp", "NaN"], ["timestamp", "1e9"], ["timestamp", "9".repeat(5_000)], ["timestamp", "١٧"], ["id", ""], ["id", "\ud800"], ["signature", "v1,é"], ["signature", "v1,"], ["signature", ""]];
  for (const [name, value] of hostile) {
    const headers = { "webhook-id": "1", "webhook-timestamp": now, "webhook-signature": "v1,AAAA", [`webhook-${name}`]: value };
    await assert.rejects(verifyWebhook(headers, "{}", secret), InvalidSignature);
    assert.throws(() => verify(secret, headers, Buffer.from("{}")), { name: "Error" });
    delete headers[`webhook-${name}`];
    await assert.rejects(verifyWebhook(headers, "{}", secret), InvalidSignature);
    assert.throws(() => verify(secret, headers, Buffer.from("{}")), { name: "Error" });
  }
  // An hour ago, a body that begins with the time of now was sent.
  const old = Number(now) - 3600;
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const signature = createHmac("sha256", key).update(`1.${old}.${now}.x`).digest("base64");
  const replayed = { "webhook-id": `1.${old}`, "webhook-timestamp": now, "webhook-signature": `v1,${signature}` };
  await assert.rejects(verifyWebhook(replayed, "x", secret), InvalidSignature);
  assert.throws(() => verify(secret, replayed, Buffer.from("x")), { name: "Error" });
});
