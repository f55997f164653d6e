// BullMQ: finished jobs are removed, a worker takes 500 jobs at once, bulk by addBulk.
import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { WARM_UP_MS, handled, handlers, host, message, port, run } from './protocol.mjs';

const connection = new Redis({ host, port, maxRetriesPerRequest: null });
const text = (delay) => message(Date.now() + delay);
const opts = (delay) => ({ delay, removeOnComplete: true, removeOnFail: true });
let queue;
let worker;

const sender = {
  bulk: 1000,
  prepare: async () => {
    queue = new Queue('bench', { connection });
    await sender.one(WARM_UP_MS);
  },
  batch: (size, delay) =>
    queue.addBulk(
      Array.from({ length: size }, () => ({ name: 'handle', data: text(delay), opts: opts(delay) })),
    ),
  one: (delay) => queue.add('handle', text(delay), opts(delay)),
};

await run(sender, {
  prepare: async () => {
    const handle = async (job) => handled(job.data);
    worker = new Worker('bench', handle, { connection, concurrency: handlers, autorun: false });
    await worker.waitUntilReady();
  },
  // Its promise ends with the worker.
  start: () => void worker.run(),
});
