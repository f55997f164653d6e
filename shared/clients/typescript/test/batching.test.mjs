// Tests of automatic batching: nothing is lost, sent twice or returned to another caller.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lisa, TransportError } from "lisa-relay";
import { serve } from "./faults.mjs";

const { LISA_URL: url } = process.env;
const lisa = new Lisa(url);
let topics = 0;
const topic = () => `ts-batch-${process.pid}-${topics++}`;

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

test("a request that cannot be made fails its calls, and not those after it", async () => {
  let isBroken = true;
  const broken = new Lisa(url, { token: () => { if (isBroken) throw Object.create(null); return "token"; }, tries: 1 });
  for (let n = 0; n < 3; n++) await assert.rejects(Promise.all([broken.send("t", 1), broken.send("t", 2)]));
  const late = new Lisa(url, { token: () => new Promise((resolve) => setTimeout(resolve, 2_000, "late")), timeout: 200, tries: 1 });
  for (let n = 0; n < 3; n++) await assert.rejects(late.send("t", 1), TransportError);
  isBroken = false;
  await broken.send(topic(), "x");
  for (const timeout of [5e9, -1, NaN]) assert.throws(() => new Lisa(url, { timeout }), TypeError);
  await new Lisa(url, { timeout: 1500.5 }).send(topic(), "x");
  for (const name of [undefined, null, "", 7]) await assert.rejects(lisa.send(name, "x"), TypeError);
});
