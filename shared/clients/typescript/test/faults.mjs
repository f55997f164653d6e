// A server in front of the relay, which tests let misbehave.

import { createServer } from "node:http";

/** Answers that are not those of Lisa: status, headers, body. */
export const MISLEADING = [
  [200, { "content-type": "text/html" }, "<html>Please log in</html>"],
  [200, { "content-encoding": "gzip" }, "this is not gzip"],
  [200, {}, "{}"],
  [200, {}, "null"],
  [200, {}, "[".repeat(100_000)],
  [200, {}, Buffer.from([0xff])],
  [204, {}, ""],
  [503, {}, '{"code": {}, "errors": 7}'],
];

/** Runs `use` with the address of a server that answers with what `answer` returns or writes, and with the requests that it got. */
export async function serve(answer, use) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    requests.push({ path: request.url, headers: request.headers, body: String(Buffer.concat(parts)) });
    const result = await answer(requests.at(-1), response);
    if (!result) return;
    response.writeHead(result[0], result[1]);
    response.end(result[2]);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await use(`http://127.0.0.1:${server.address().port}`, requests);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** Passes a request on to the relay. */
export async function forward(url, { path, body }) {
  const answer = await fetch(url + path, { method: "POST", headers: { "content-type": "application/json" }, body });
  return [answer.status, { "content-type": answer.headers.get("content-type") }, await answer.text()];
}

/** Waits until something holds. */
export async function eventually(holds, what) {
  for (let left = 600; left > 0; left--) {
    const result = await holds();
    if (result) return result;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`never: ${what}`);
}
