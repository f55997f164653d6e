"""aiobotocore: one client of an event loop sends and receives with many calls at the same time. Argument: the queue.

The variables of the AWS SDKs have the endpoint and the credentials.
"""

import asyncio
import sys

from aiobotocore.session import get_session

MESSAGES = 30


async def main(queue):
    async with get_session().create_client("sqs") as client:
        url = (await client.create_queue(QueueName=queue))["QueueUrl"]
        sent = await asyncio.gather(
            *(client.send_message(QueueUrl=url, MessageBody=str(n), DelaySeconds=n % 2) for n in range(MESSAGES))
        )
        left = {message["MessageId"] for message in sent}
        assert len(left) == MESSAGES

        async def work():
            while left:
                received = await client.receive_message(QueueUrl=url, WaitTimeSeconds=1, MaxNumberOfMessages=5)
                for message in received.get("Messages", []):
                    await client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    left.remove(message["MessageId"])

        await asyncio.wait_for(asyncio.gather(*(work() for _ in range(4))), 90)
        try:
            await client.get_queue_url(QueueName="nothing-here")
            raise AssertionError("a queue that does not exist")
        except client.exceptions.QueueDoesNotExist:
            pass
    print(f"aiobotocore: sent, received and deleted {MESSAGES} messages")


asyncio.run(main(sys.argv[1]))
