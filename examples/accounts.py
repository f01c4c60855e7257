"""Order by key: changes of each account one after the other, two hundred accounts at a time, on eight queues.

A change that cannot be read becomes a dead letter at once; one that fails is repeated in place, and holds up its account alone.
"""

import json
import os
from collections import defaultdict

import rmq_async
from rmq_async import Admin, Consumer, Message, MessageExt, Producer, Retry, RetryLater
from rmq_async.embedded import EmbeddedRocketMQ

balances: defaultdict[str, list[int]] = defaultdict(lambda: [0])
failed: set[str] = set()


async def main() -> None:
    async with EmbeddedRocketMQ() as server:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        async with Admin() as admin, Producer("bank") as producer:
            await admin.create_topic("AccountTopic", queues=8)
            for number in range(1000):
                account = f"account-{number % 200}"
                body = b"not JSON" if number == 500 else json.dumps({"add": number // 200 + 1}).encode()
                await producer.send(Message("AccountTopic", body, keys=account), key=account)  # to the account's queue

        consumer = Consumer("ledger", concurrency=200, start_from="earliest")

        @consumer.handler(
            "AccountTopic", order="key", key=lambda message: message.keys[0], retry=Retry(limit=5, delays=(0.1, 1.0)),
            dead_letter_on=(ValueError,),
        )  # fmt: skip
        async def apply(message: MessageExt) -> None:
            change = json.loads(message.body)
            (account,) = message.keys
            if account == "account-17" and account not in failed:
                failed.add(account)
                raise RetryLater(0.1)  # here: the account waits, others go on
            balances[account].append(balances[account][-1] + change["add"])

        async with consumer:
            await consumer.wait_idle(timeout=20.0)
        print(f"{len(balances)} accounts, {sum(map(len, balances.values())) - len(balances)} changes")
        print(f"account-17: {balances['account-17']}")
        print(f"dead letters: {[message.body for message in server.dead_letters('ledger')]}")


if __name__ == "__main__":
    rmq_async.run(main())
