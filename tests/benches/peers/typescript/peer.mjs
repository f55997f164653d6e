// Lisa through its TypeScript client: bulk by `sendMany` of 1,000, 500 handlers at once.
import { Lisa } from 'lisa-relay';
import { WARM_UP_MS, address, handled, handlers, message, run } from './protocol.mjs';

const [producer, gateway] = address.split(',');
const lisa = new Lisa(producer, { gateway });
const text = (delay) => message(Date.now() + delay);

const sender = {
  bulk: 1000,
  prepare: () => sender.one(WARM_UP_MS),
  batch: async (size, delay) => {
    const results = await lisa.sendMany(
      'bench',
      Array.from({ length: size }, () => ({ payload: text(delay), delay })),
    );
    for (const result of results) if (result instanceof Error) throw result;
  },
  one: (delay) => lisa.send('bench', text(delay), { delay }),
};

await run(sender, {
  prepare: async () => {},
  // Its promise ends with the worker.
  start: () => void lisa.work('bench', (delivery) => handled(delivery.text()), { concurrency: handlers }),
});
