// pg-boss: bulk by insert, two workers that fetch 500 jobs at once and go on without a pause while there are more.
import { PgBoss } from 'pg-boss';
import { WARM_UP_MS, handled, host, message, port, run } from './protocol.mjs';

const BATCH = 500;
const CONNECTIONS = 50;

// Its own maintenance and cron are not needed in the seconds of a measurement.
const boss = new PgBoss({
  host,
  port,
  user: 'bench',
  database: 'postgres',
  supervise: false,
  schedule: false,
});
boss.on('error', (error) => console.error(error.message));
await boss.start();
await boss.createQueue('bench', { partition: true });

const job = (delay) => {
  const due = Date.now() + delay;
  return { data: { text: message(due) }, startAfter: new Date(due) };
};
const sender = {
  bulk: BATCH,
  prepare: () => Promise.all(Array.from({ length: CONNECTIONS }, () => sender.one(WARM_UP_MS))),
  batch: (size, delay) => boss.insert('bench', Array.from({ length: size }, () => job(delay))),
  one: (delay) => {
    const { data, startAfter } = job(delay);
    return boss.send('bench', data, { startAfter });
  },
};

await run(sender, {
  prepare: async () => {},
  start: () => {
    const handle = async (jobs) => jobs.forEach((job) => handled(job.data.text));
    const options = {
      batchSize: BATCH,
      burstWhenBatchFull: true,
      localConcurrency: 2,
      pollingIntervalSeconds: 0.5,
    };
    return boss.work('bench', options, handle);
  },
});
