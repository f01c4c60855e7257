"""Exactly-once effect: inbox, payment and receipt are one database transaction, so each payment message counts once.

Three orders are sent, one of them twice with one unique id, as a producer does whose first answer was lost. Needs the extra
``outbox``. In production: PostgreSQL instead of the SQLite file, and the tables in your migrations.
"""

import json
import os
import tempfile

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rmq_async
from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.inbox import Inbox
from rmq_async.outbox import Outbox


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    amount: Mapped[int]


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        async with EmbeddedRocketMQ() as server:
            os.environ["NAMESRV_ADDR"] = server.namesrv
            await pay_orders(f"sqlite+aiosqlite:///{place}/payments.db")


async def pay_orders(url: str) -> None:
    engine = create_async_engine(url)
    sessions = async_sessionmaker(engine)
    inbox = Inbox(group="payments")
    outbox = Outbox(engine, Producer("payments"))
    async with engine.begin() as connection:
        for metadata in (Base.metadata, inbox.metadata, outbox.metadata):
            await connection.run_sync(metadata.create_all)

    consumer = Consumer("payments", start_from="earliest")

    @consumer.handler("PaymentTopic")
    async def pay(message: MessageExt) -> None:
        async with sessions.begin() as session:
            if not await inbox.first(session, message):
                return  # handled before: this message is done
            order = json.loads(message.body)
            session.add(Payment(order=order["number"], amount=order["amount"]))
            receipt = Message("ReceiptTopic", b"order %d is paid" % order["number"], keys=f"order-{order['number']}")
            await outbox.add(session, receipt)

    mailing = Consumer("mailing", start_from="earliest")

    @mailing.handler("ReceiptTopic")
    async def mail(message: MessageExt) -> None:
        print(message.body.decode())

    async with Admin() as admin, Producer("orders") as producer:
        for topic in ("PaymentTopic", "ReceiptTopic"):
            await admin.create_topic(topic, queues=4)
        for number, unique_id in ((1, "P1"), (2, "P2"), (2, "P2"), (3, "P3")):
            body = json.dumps({"number": number, "amount": number * 10}).encode()
            await producer.send(Message("PaymentTopic", body, unique_id=unique_id))

    async with outbox, consumer, mailing:
        settled = await consumer.wait_settled(4)
        await mailing.wait_settled(3)

    async with sessions() as session:
        total = await session.scalar(select(func.sum(Payment.amount)))
    print(f"{len(settled)} messages, {total} paid")
    await engine.dispose()


if __name__ == "__main__":
    rmq_async.run(main())
