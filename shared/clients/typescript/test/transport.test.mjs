// Tests of what the client does on the wire: what it sends where, and what it accepts.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { InvalidSignature, Lisa, Problem, TransportError, verifyWebhook } from "lisa-relay";
import { MISLEADING, forward, serve } from "./faults.mjs";

const { LISA_URL: url, LISA_HOOK_SECRET: secret, LISA_README: readme } = process.env;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

test("any other answer is a TransportError", async () => {
  for (const one of MISLEADING.slice(0, -1)) {
    await serve(() => one, async (fake) => {
      const client = new Lisa(fake, { tries: 1 });
      const calls = [() => client.pull("t"), () => client.get("t", "x"), () => client.send("t", "x"), () => client.settle("token", { ack: true }), () => client.extend("token")];
      for (const call of calls) await assert.rejects(call, TransportError, `${call} ${one}`.slice(0, 80));
    });
  }
  await serve(() => [200, {}, '{"deliveries":[{"id":"x"}]}'], (fake) => assert.rejects(new Lisa(fake).pull("t"), TransportError));
});

test("a redirect is not followed", async () => {
  await serve(() => [200, {}, "{}"], async (elsewhere, requests) => {
    for (const status of [301, 302, 303, 307, 308]) {
      await serve(() => [status, { location: `${elsewhere}/v1/x` }, ""], async (fake) => {
        const client = new Lisa(fake, { token: "secret" });
        for (const call of [() => client.send("t", "payload"), () => client.pull("t"), () => client.settle("token", { ack: true })]) {
          await assert.rejects(call, (error) => error instanceof Problem && error.status === status && !error.retryable && /redirect/.test(error.message));
        }
      });
    }
    assert.deepEqual(requests, []);
  });
});

test("the time limit bounds the whole call", async () => {
  const dribble = async (_, response) => {
    response.writeHead(200);
    for (let left = 600; left > 0 && !response.destroyed; left--) {
      response.write(" ");
      await pause(50);
    }
    response.end("{}");
  };
  await serve(dribble, async (fake) => {
    await assert.rejects(new Lisa(fake, { timeout: 500, tries: 1 }).get("t", "x"), (error) => error instanceof TransportError && error.cause.name === "TimeoutError");
  });
});

test("an answer is bounded, also after it is unpacked", async () => {
  const packed = gzipSync(Buffer.alloc(256 * 1024 * 1024, " "), { level: 1 });
  await serve(() => [200, { "content-encoding": "gzip" }, packed], async (fake, requests) => {
    await assert.rejects(new Lisa(fake, { tries: 1 }).settle("token", { ack: true }), (error) => error instanceof TransportError && /longer than/.test(error.message));
    assert.equal(requests[0].headers["accept-encoding"], "identity");
  });
});

test("the token of a delivery is in no URL and in no error", async () => {
  const name = `ts-wire-${process.pid}`;
  await new Lisa(url).send(name, "x");
  await serve((request) => forward(url, request), async (proxy, requests) => {
    const [delivery] = await new Lisa(url, { gateway: proxy }).pull(name);
    await delivery.extend("1m");
    await delivery.ack();
    await assert.rejects(delivery.ack(), (error) => error.code === "stale" && !error.message.includes(delivery.token));
    assert.deepEqual(requests.map(({ path }) => path.replace(name, "t")), [
      "/v1/topics/t/groups/default/pull", "/v1/deliveries:extend", "/v1/deliveries:settle", "/v1/deliveries:settle",
    ]);
  });
});

test("a negative duration is thrown", async () => {
  await serve(() => [200, {}, "[]"], async (fake, requests) => {
    for (const delay of [-5_000, NaN, Infinity]) await assert.rejects(new Lisa(fake).send("t", "x", { delay }), /delay: .* is not a duration/);
    assert.equal(requests.length, 0);
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
});
