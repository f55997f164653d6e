// BullMQ: finished jobs are removed, a worker takes 100 jobs at once, bulk by addBulk.
// ../protocol.rs describes the protocol with the driver.
import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';

const SIZE = 100;
const BATCH = 1000;
// The delay of messages that open connections and load scripts before the measurement: never due.
const WARM_UP_MS = 7_200_000;
const [address, mode, how, ...numbers] = process.argv.slice(2);
const [host, port] = address.split(':');
const connection = new Redis({ host, port: Number(port), maxRetriesPerRequest: null });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (line) => process.stdout.write(`${line}\n`);

const heard = { go: null, end: null };
const go = new Promise((done) => (heard.go = done));
const end = new Promise((done) => (heard.end = done));
process.stdin.once('data', heard.go).once('end', heard.end);

async function send(n, delay, rate) {
  const queue = new Queue('bench', { connection });
  const text = () => `${Date.now() + delay} `.padEnd(SIZE, 'x');
  const opts = { delay, removeOnComplete: true, removeOnFail: true };
  const one = (options = opts) => queue.add('handle', text(), options);
  const batch = (size) =>
    queue.addBulk(Array.from({ length: size }, () => ({ name: 'handle', data: text(), opts })));
  await one({ ...opts, delay: WARM_UP_MS });
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
      for (let out = 0; out < n; out += 50) await one();
    };
    await Promise.all(Array.from({ length: 50 }, caller));
  }
  say(`sent ${((performance.now() - start) / 1000).toFixed(6)}`);
  await end;
  process.exit(0);
}

async function work() {
  const late = [];
  let told = 0;
  let last = 0;
  const handle = async (job) => {
    last = Date.now();
    late.push(last - Number.parseInt(job.data, 10));
  };
  const worker = new Worker('bench', handle, { connection, concurrency: 100, autorun: false });
  await worker.waitUntilReady();
  say('ready');
  await go;
  worker.run();
  setInterval(() => {
    if (late.length > told) say(`handled ${(told = late.length)} ${last}`);
  }, 20);
  await end;
  process.stdout.write(`late ${late.join(' ')}\n`, () => process.exit(0));
}

await (mode === 'send' ? send(...numbers.map(Number)) : work());
