// pg-boss: bulk by insert, two workers that fetch 500 jobs at once and go on without a pause while there are more.
// ../protocol.rs describes the protocol with the driver.
import { PgBoss } from 'pg-boss';

const SIZE = 100;
const BATCH = 500;
const CALLERS = 50;
// The delay of messages that open connections and prepare the server before the measurement: never due.
const WARM_UP_MS = 7_200_000;
const [address, mode, how, ...numbers] = process.argv.slice(2);
const [host, port] = address.split(':');
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (line) => process.stdout.write(`${line}\n`);

const heard = { go: null, end: null };
const go = new Promise((done) => (heard.go = done));
const end = new Promise((done) => (heard.end = done));
process.stdin.once('data', heard.go).once('end', heard.end);

// Its own maintenance and cron are not needed in the seconds of a measurement.
const boss = new PgBoss({
  host,
  port: Number(port),
  user: 'bench',
  database: 'postgres',
  supervise: false,
  schedule: false,
});
boss.on('error', (error) => console.error(error.message));
await boss.start();
await boss.createQueue('bench', { partition: true });

async function send(n, delay, rate) {
  const job = (ms = delay) => {
    const due = Date.now() + ms;
    return { data: { text: `${due} `.padEnd(SIZE, 'x') }, startAfter: new Date(due) };
  };
  const one = (ms) => {
    const { data, startAfter } = job(ms);
    return boss.send('bench', data, { startAfter });
  };
  const batch = (size) => boss.insert('bench', Array.from({ length: size }, () => job()));
  await Promise.all(Array.from({ length: CALLERS }, () => one(WARM_UP_MS)));
  say('ready');
  await go;
  const start = performance.now();
  if (rate > 0) {
    for (let out = 0; out < n; ) {
      const size = Math.min(Math.max(1, Math.floor(rate / 100)), n - out);
      await batch(size);
      out += size;
      await sleep(Math.max(0, start + (out * 1000) / rate - performance.now()));
    }
  } else if (how === 'bulk') {
    for (let out = 0; out < n; out += BATCH) await batch(Math.min(BATCH, n - out));
  } else {
    const caller = async () => {
      for (let out = 0; out < n; out += CALLERS) await one();
    };
    await Promise.all(Array.from({ length: CALLERS }, caller));
  }
  say(`sent ${((performance.now() - start) / 1000).toFixed(6)}`);
  await end;
  process.exit(0);
}

async function work() {
  const late = [];
  let told = 0;
  let last = 0;
  const handle = async (jobs) => {
    for (const job of jobs) {
      last = Date.now();
      late.push(last - Number.parseInt(job.data.text, 10));
    }
  };
  const options = {
    batchSize: BATCH,
    burstWhenBatchFull: true,
    localConcurrency: 2,
    pollingIntervalSeconds: 0.5,
  };
  say('ready');
  await go;
  await boss.work('bench', options, handle);
  setInterval(() => {
    if (late.length > told) say(`handled ${(told = late.length)} ${last}`);
  }, 20);
  await end;
  process.stdout.write(`late ${late.join(' ')}\n`, () => process.exit(0));
}

await (mode === 'send' ? send(...numbers.map(Number)) : work());
