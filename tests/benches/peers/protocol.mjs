// The part that all Node peers share. protocol.rs describes the protocol with the driver.
const SIZE = 100;
const CALLERS = 50;
// The delay of messages that open connections and prepare the server before the measurement: never due.
export const WARM_UP_MS = 7_200_000;

const [mode, how, ...numbers] = process.argv.slice(3);
export const address = process.argv[2];
const [n, delay, rate] = numbers.map(Number);
// The handlers of a worker at once.
export const handlers = Number(mode === 'work' && how) || 500;
export const host = address.split(':')[0];
export const port = Number(address.split(':')[1]);

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (line) => process.stdout.write(`${line}\n`);
const heard = { go: null, end: null };
const go = new Promise((done) => (heard.go = done));
const end = new Promise((done) => (heard.end = done));
process.stdin.once('data', heard.go).once('end', heard.end);

// The text of a message that is due at this time.
export const message = (due) => `${due} `.padEnd(SIZE, 'x');

const late = [];
let last = 0;
// Takes note of a message that is handled now.
export function handled(text) {
  last = Date.now();
  late.push(last - Number.parseInt(text, 10));
}

async function send({ bulk, prepare, batch, one }) {
  await prepare();
  say('ready');
  await go;
  const start = performance.now();
  if (rate > 0) {
    for (let out = 0; out < n; ) {
      const size = Math.min(Math.max(1, Math.floor(rate / 100)), n - out);
      await batch(size, delay);
      out += size;
      await sleep(Math.max(0, start + (out * 1000) / rate - performance.now()));
    }
  } else if (how === 'bulk') {
    for (let out = 0; out < n; out += bulk) await batch(Math.min(bulk, n - out), delay);
  } else {
    const caller = async () => {
      for (let out = 0; out < n; out += CALLERS) await one(delay);
    };
    await Promise.all(Array.from({ length: CALLERS }, caller));
  }
  say(`sent ${((performance.now() - start) / 1000).toFixed(6)}`);
  await end;
  process.exit(0);
}

async function work({ prepare, start }) {
  let told = 0;
  await prepare();
  say('ready');
  await go;
  await start();
  setInterval(() => {
    if (late.length > told) say(`handled ${(told = late.length)} ${last}`);
  }, 20);
  await end;
  process.stdout.write(`late ${late.join(' ')}\n`, () => process.exit(0));
}

// Runs the peer: a sender with `prepare`, `batch(size, delay)` of at most `bulk` and `one(delay)`, or a worker with `prepare`
// and `start`.
export const run = (sender, worker) => (mode === 'send' ? send(sender) : work(worker));
