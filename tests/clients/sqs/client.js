// @aws-sdk/client-sqs against an endpoint that works with SQS clients. Arguments: the endpoint, and the queue.
// The SDK compares the MD5 of each body that it sends and receives.
import assert from "node:assert/strict";
import * as aws from "@aws-sdk/client-sqs";

const [endpoint, QueueName] = process.argv.slice(2);
const sqs = new aws.SQSClient({
  endpoint,
  region: "eu-central-1",
  credentials: {
    accessKeyId: process.env.SQS_KEY ?? "test",
    secretAccessKey: process.env.SQS_SECRET ?? "test",
  },
});

const { QueueUrl } = await sqs.send(new aws.CreateQueueCommand({ QueueName }));
assert.equal((await sqs.send(new aws.GetQueueUrlCommand({ QueueName }))).QueueUrl, QueueUrl);

async function receive(options = {}) {
  for (let tries = 0; tries < 20; tries++) {
    const wait = { QueueUrl, WaitTimeSeconds: 5, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"] };
    const { Messages } = await sqs.send(new aws.ReceiveMessageCommand({ ...wait, ...options }));
    if (Messages?.length) return Messages;
  }
  throw new Error("nothing to receive");
}

const MessageAttributes = {
  Color: { DataType: "String", StringValue: "röt" },
  bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 1, 255]) },
};
const MessageBody = 'ünï "quoted" 🦊';
const sent = await sqs.send(new aws.SendMessageCommand({ QueueUrl, MessageBody, MessageAttributes, DelaySeconds: 1 }));
const [message] = await receive();
assert.equal(message.Body, MessageBody);
assert.equal(message.MessageId, sent.MessageId);
assert.equal(message.MessageAttributes.Color.StringValue, "röt");
assert.deepEqual([...message.MessageAttributes.bytes.BinaryValue], [0, 1, 255]);
assert.equal(message.Attributes.ApproximateReceiveCount, "1");
const { ReceiptHandle } = message;
await sqs.send(new aws.ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 }));
const [again] = await receive();
assert.equal(again.Attributes.ApproximateReceiveCount, "2");
await assert.rejects(
  sqs.send(new aws.DeleteMessageCommand({ QueueUrl, ReceiptHandle })),
  (error) => error instanceof aws.ReceiptHandleIsInvalid,
);
await sqs.send(new aws.DeleteMessageCommand({ QueueUrl, ReceiptHandle: again.ReceiptHandle }));

const Entries = [..."abc"].map((Id) => ({ Id, MessageBody: Id }));
const batch = await sqs.send(new aws.SendMessageBatchCommand({ QueueUrl, Entries }));
assert.equal(batch.Successful.length, 3);
const bodies = new Set();
while (bodies.size < 3) {
  const messages = await receive({ MaxNumberOfMessages: 10 });
  messages.forEach(({ Body }) => bodies.add(Body));
  const handles = messages.map(({ ReceiptHandle }, index) => ({ Id: `${index}`, ReceiptHandle }));
  const deleted = await sqs.send(new aws.DeleteMessageBatchCommand({ QueueUrl, Entries: handles }));
  assert.equal(deleted.Successful.length, messages.length);
}
await assert.rejects(
  sqs.send(new aws.GetQueueUrlCommand({ QueueName: "nothing-here" })),
  (error) => error instanceof aws.QueueDoesNotExist,
);
console.log("node: sent, received, changed and deleted messages");
