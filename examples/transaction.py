"""Pay an order in a database and announce it, both or neither: a transactional message around a database transaction.

Consumers see the message once it is committed. When the producer could not say how its transaction ended, the broker asks, and
``check`` finds the answer in the database.
"""

import sqlite3
import time

import rmq_async
from rmq_async import Admin, Message, MessageExt, PullConsumer, TransactionProducer, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ

LONGEST = 60
"""Seconds; no transaction of the database takes longer than that."""


class Shop:
    """The database calls are short here; for longer ones make ``execute`` and ``check`` coroutines and use asyncio.to_thread."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE account (owner TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))")
        self.database.execute("CREATE TABLE payment (order_key TEXT PRIMARY KEY)")
        with self.database:
            self.database.execute("INSERT INTO account VALUES ('ann', 100)")

    def execute(self, message: Message, price: int) -> TransactionStatus:
        """Called when the broker has the message and does not show it to consumers yet."""
        (order,) = message.keys
        try:
            with self.database:  # commits, or rolls back
                self.database.execute("UPDATE account SET balance = balance - ? WHERE owner = 'ann'", (price,))
                self.database.execute("INSERT INTO payment VALUES (?)", (order,))
        except sqlite3.IntegrityError:
            return TransactionStatus.ROLLBACK
        if order == "order-3":
            return TransactionStatus.UNKNOWN  # what an exception means too, and what a broker believes that hears nothing
        return TransactionStatus.COMMIT

    def check(self, message: MessageExt) -> TransactionStatus:
        """Called when the broker asks: also in another process of the group, while this one still executes, or is gone."""
        if self.database.execute("SELECT 1 FROM payment WHERE order_key = ?", message.keys).fetchone():
            return TransactionStatus.COMMIT
        age = time.time() - message.born_time_ms / 1000
        return TransactionStatus.ROLLBACK if age > LONGEST else TransactionStatus.UNKNOWN  # ROLLBACK is final


async def main() -> None:
    shop = Shop()
    async with (
        EmbeddedRocketMQ(transaction_timeout=0.2, transaction_check_interval=0.2) as server,
        TransactionProducer("payments", execute=shop.execute, check=shop.check, namesrv=server.namesrv) as producer,
        PullConsumer("dispatch", namesrv=server.namesrv) as consumer,
        Admin(namesrv=server.namesrv) as admin,
    ):
        await admin.create_topic("PaidTopic")
        begin = {queue: await consumer.max_offset(queue) for queue in await consumer.queues("PaidTopic")}
        for number, price in ((1, 60), (2, 60), (3, 40)):
            order = f"order-{number}"
            result = await producer.send_in_transaction(Message("PaidTopic", order.encode(), keys=order), price)
            print(f"{order} for {price}: {result.local_status.name}")

        announced: list[str] = []
        async for message in consumer.read("PaidTopic", start=begin, end=None):
            announced.append(message.body.decode())
            if len(announced) == 2:
                break
        print("announced:", ", ".join(announced))
    shop.database.close()


if __name__ == "__main__":
    rmq_async.run(main())
