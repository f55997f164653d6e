// sqs-producer and sqs-consumer, as their READMEs show them. Argument: the queue, as an address.
// The variables of the AWS SDKs have the endpoint and the credentials.
import assert from "node:assert/strict";
import { Consumer } from "sqs-consumer";
import { Producer } from "sqs-producer";

const [queueUrl] = process.argv.slice(2);
const region = process.env.AWS_REGION;
const producer = Producer.create({ queueUrl, region });
const seen = new Map();
const app = Consumer.create({
  queueUrl,
  region,
  messageAttributeNames: ["All"],
  visibilityTimeout: 5,
  heartbeatInterval: 1,
  handleMessage: async (message) => {
    const attempts = (seen.get(message.Body)?.attempts ?? 0) + 1;
    seen.set(message.Body, { attempts, attributes: message.MessageAttributes });
    if (message.Body === "fails" && attempts === 1) throw new Error("the first attempt");
    // Longer than its visibility timeout, which the heartbeat extends.
    if (message.Body === "slow") await new Promise((done) => setTimeout(done, 6500));
    return message;
  },
  terminateVisibilityTimeout: true,
});
const errors = [];
app.on("error", (error) => errors.push(error.message));
app.on("processing_error", (error) => errors.push(error.message));

await producer.send(["msg1", "msg2", "fails", "slow"]);
await producer.send([
  {
    id: "id1",
    body: "Hello world with two string attributes: attr1 and attr2",
    messageAttributes: {
      attr1: { DataType: "String", StringValue: "stringValue" },
      attr2: { DataType: "Binary", BinaryValue: Buffer.from("binaryValue") },
    },
  },
  { id: "id2", body: "Hello world delayed by 5 seconds", delaySeconds: 5 },
]);
await producer.send({ id: "tenant", body: "from a tenant", groupId: "tenant-a" });

app.start();
const until = Date.now() + 90_000;
const isDone = async () => seen.size === 7 && seen.get("fails").attempts === 2 && (await producer.queueSize()) === 0;
while (!(await isDone())) {
  assert(Date.now() < until, JSON.stringify([...seen, errors]));
  await new Promise((done) => setTimeout(done, 100));
}
const stopped = new Promise((done) => app.on("stopped", done));
app.stop();
await stopped;
const { attributes } = seen.get("Hello world with two string attributes: attr1 and attr2");
assert.equal(attributes.attr1.StringValue, "stringValue");
assert.equal(Buffer.from(attributes.attr2.BinaryValue).toString(), "binaryValue");
assert.equal(seen.get("slow").attempts, 1);
// A heartbeat may come just after its message was deleted.
const others = errors.filter((error) => !error.includes("visibility timeout"));
assert.deepEqual(others, ["Unexpected message handler failure: the first attempt"]);
console.log("sqs-producer and sqs-consumer: sent and handled 7 messages");
