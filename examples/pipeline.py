"""Orders become invoices, each exactly once, though the worker is killed in between.

python examples/pipeline.py [DIRECTORY]

The worker acks the order and puts the invoice in one transaction. Run it on a directory, stop it at any moment with
Ctrl-C or kill -9, and run it again: it goes on, and no order has two invoices or none. Without a directory it uses a
temporary one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter

import aiodq

ORDERS = 1000


async def take_orders(orders: aiodq.Queue) -> None:
    """Put those orders that were not put before, all or none of them."""
    if orders.end_offset == 0:
        await orders.put_many([b"order %d" % number for number in range(ORDERS)])


async def work(store: aiodq.Store, orders: aiodq.Queue) -> None:
    """Make an invoice of each order, and note who did."""
    async for order in orders:
        async with store.transaction() as tx:
            tx.ack(order)
            tx.put("invoices", order.body.replace(b"order", b"invoice"))
            tx.put("audit", b"one more", key=order.body)


async def main(directory: str) -> None:
    """Work off all orders, and count invoices."""
    async with aiodq.open(directory) as store:
        orders = store.queue("orders")
        invoices = store.topic("invoices", aiodq.StoreOptions(retention=aiodq.Retention(consumed="keep")))
        await take_orders(orders)
        workers = [asyncio.create_task(work(store, orders)) for _ in range(20)]
        await orders.join()
        for worker in workers:
            worker.cancel()
        made = Counter([invoice.body async for invoice in invoices.scan()])
        print(f"{ORDERS} orders, {len(made)} invoices, {sum(made.values()) - len(made)} of them twice")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="aiodq-") as temporary:
            asyncio.run(main(temporary))
