// The driver of the contract suite: see shared/clients/README.md. With the argument `fetch`, it sends requests as a browser does.

import { createInterface } from "node:readline";
import { Delivery, Lisa, LisaError, Problem } from "lisa-relay";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Returns a result of the client as JSON of the contract has it. */
function shown(result) {
  if (Array.isArray(result)) return result.map(shown);
  if (result instanceof TypeError || result instanceof RangeError) return { error: { kind: "argument", message: result.message } };
  if (result instanceof LisaError) {
    const { message, id, retryable, status, code, ended, maybeSettled } = result;
    return { error: { kind: result instanceof Problem ? "problem" : "transport", message, id, retryable, status, code, ended, maybe_settled: maybeSettled } };
  }
  if (result instanceof Error) throw result;
  const { id, outcome, state, attempt, payload } = result;
  return { id, outcome, state, attempt, payload: payload && new TextDecoder().decode(payload) };
}

/** Makes a call. Returns its error. */
async function attempt(call) {
  try {
    return await call();
  } catch (error) {
    return error;
  }
}

/** Returns the error of a call, or its result as it is. */
async function plain(call) {
  const result = await attempt(call);
  return result instanceof Error ? shown(result) : result;
}

/** Returns a schedule as JSON of the contract has it. */
function withTimes(schedule) {
  return schedule.next_times ? { ...schedule, next_times: schedule.next_times.map(Date.parse) } : schedule;
}

async function inTurns(items, callers, use) {
  const [results, left] = [[], items.entries()];
  const turns = Array.from({ length: callers }, async () => {
    for (const [n, item] of left) results[n] = await use(item);
  });
  await Promise.all(turns);
  return results;
}

let lisa;
let deliveries = [];
const each = async (use) => shown(await Promise.all(deliveries.map((one, n) => attempt(() => use(one, n)))));

async function work({ topic, handler: { do: all, of = {}, sleep = 0, together = 1 }, stop_after: stopAfter, ...options }) {
  const [stop, handled] = [new AbortController(), []];
  let [begun, running, most] = [0, 0, 0];
  const handle = async (delivery) => {
    begun += 1;
    most = Math.max(most, ++running);
    try {
      while (begun < together) await pause(10);
      await pause(sleep);
      const steps = of[delivery.text()] ?? all;
      const step = steps[Math.min(delivery.attempt, steps.length) - 1];
      if (step.fail) throw new Error(step.fail);
      if (step.settle) await delivery.settle(step.settle);
      return step.wrong ? "no outcome" : step.settle ? undefined : step;
    } finally {
      running -= 1;
      handled.push({ payload: delivery.text(), attempt: delivery.attempt });
      if (handled.length >= stopAfter) stop.abort();
    }
  };
  const result = await attempt(() => lisa.work(topic, handle, { ...options, signal: stop.signal }));
  return result ? shown(result) : { handled, most };
}

const commands = {
  client: ({ url, ...options }) => {
    // A browser has nothing but `fetch`.
    if (process.argv[2] === "fetch") options.fetch = fetch;
    lisa = new Lisa(url, options);
    return {};
  },
  send: async ({ topic, payload, options }) => shown(await attempt(() => lisa.send(topic, payload, options))),
  send_concurrently: async ({ topic, messages, callers }) =>
    shown(await inTurns(messages, callers, ({ payload, ...options }) => attempt(() => lisa.send(topic, payload, options)))),
  send_many: async ({ topic, messages }) => shown(await attempt(() => lisa.sendMany(topic, messages))),
  get: async ({ topic, id }) => shown(await attempt(() => lisa.get(topic, id))),
  cancel: async ({ topic, id }) => shown(await attempt(() => lisa.cancel(topic, id))),
  deliver_now: async ({ topic, id }) => shown(await attempt(() => lisa.deliverNow(topic, id))),
  reschedule: async ({ topic, id, options }) => shown(await attempt(() => lisa.reschedule(topic, id, options))),
  list: ({ topic, options }) => plain(() => lisa.list(topic, options)),
  cancel_key: ({ topic, key }) => plain(() => lisa.cancelKey(topic, key)),
  reschedule_key: ({ topic, key, options }) => plain(() => lisa.rescheduleKey(topic, key, options)),
  requeue: ({ topic, ids, group }) => plain(() => lisa.requeue(topic, ids, group)),
  list_topics: ({ prefix }) => plain(() => lisa.listTopics(prefix)),
  get_topic: ({ topic }) => plain(() => lisa.getTopic(topic)),
  put_topic: ({ topic, settings, ...condition }) => plain(() => lisa.putTopic(topic, settings, condition)),
  remove_topic: ({ topic, how, ...condition }) => plain(() => lisa.removeTopic(topic, how, condition)),
  pause_topic: ({ topic }) => plain(() => lisa.pauseTopic(topic)),
  resume_topic: ({ topic }) => plain(() => lisa.resumeTopic(topic)),
  pause_group: ({ topic, group }) => plain(() => lisa.pauseGroup(topic, group)),
  resume_group: ({ topic, group }) => plain(() => lisa.resumeGroup(topic, group)),
  drain_group: ({ topic, group }) => plain(() => lisa.drainGroup(topic, group)),
  drop_group: ({ topic, group }) => plain(() => lisa.dropGroup(topic, group)),
  keep_group: ({ topic, group }) => plain(() => lisa.keepGroup(topic, group)),
  list_schedules: ({ prefix, limit, cursor }) => plain(() => lisa.listSchedules({ prefix, limit, cursor })),
  get_schedule: async ({ schedule }) => withTimes(await plain(() => lisa.getSchedule(schedule))),
  put_schedule: async ({ topic, schedule, definition, ...condition }) => withTimes(await plain(() => lisa.putSchedule(schedule, definition, condition))),
  backfill_schedule: async ({ schedule, from, to, dry_run }) => {
    const made = await plain(() => lisa.backfillSchedule(schedule, { from, to, dry_run }));
    return made.error ? made : { ...made, next: made.next && Date.parse(made.next) };
  },
  remove_schedule: async ({ topic, schedule, ...condition }) => (await plain(() => lisa.removeSchedule(schedule, condition))) ?? { removed: true },
  pause_schedule: ({ schedule }) => plain(() => lisa.pauseSchedule(schedule)),
  resume_schedule: ({ schedule }) => plain(() => lisa.resumeSchedule(schedule)),
  own_token: () => plain(() => lisa.ownToken()),
  list_tokens: ({ prefix, limit, cursor }) => plain(() => lisa.listTokens({ prefix, limit, cursor })),
  get_token: ({ token }) => plain(() => lisa.getToken(token)),
  put_token: ({ topic, token, definition, ...condition }) => plain(() => lisa.putToken(token, definition, condition)),
  rotate_token: ({ token, step }) => plain(() => lisa.rotateToken(token, step)),
  remove_token: async ({ topic, token, ...condition }) => (await plain(() => lisa.removeToken(token, condition))) ?? { removed: true },
  run_schedule: ({ schedule }) => plain(() => lisa.runSchedule(schedule)),
  pull: async ({ topic, options }) => {
    const pulled = await attempt(() => lisa.pull(topic, options));
    if (Array.isArray(pulled)) deliveries = pulled;
    return shown(pulled);
  },
  settle: ({ outcomes }) => each((one, n) => one.settle(outcomes[n % outcomes.length])),
  settle_many: async ({ outcomes }) => shown(await attempt(() => lisa.settleMany(deliveries.map(({ token }, n) => ({ token, ...outcomes[n] }))))),
  extend: ({ lease }) => each((one) => one.extend(lease)),
  work,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...command } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(await commands[call](command))}\n`);
}
