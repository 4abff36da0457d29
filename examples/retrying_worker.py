"""Mails that fail are tried again, later and later; what fails for good goes to a dead-letter topic and waits there.

python examples/retrying_worker.py [DIRECTORY]

Without a directory it uses a temporary one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile

import aiodq

RETRYING = aiodq.ChannelOptions(
    visibility_timeout=30,
    backoff=aiodq.Backoff(first=0.05, factor=2, limit=1, jitter=0),
    max_attempts=3,
    dead_letter="mail.dead",
)
FAILURES = {b"bob@example.org": 1, b"nobody@example.org": 99}
"""How often sending fails, by address."""


class MailServerError(Exception):
    """The server did not take the mail this time."""


async def send(mail: aiodq.Message) -> None:
    """Send one mail. An exception has it tried again, after the channel's backoff; a dead letter says which it was."""
    if mail.attempts <= FAILURES.get(mail.body, 0):
        raise MailServerError(f"{mail.body.decode()}, attempt {mail.attempts}")
    print(f"sent to {mail.body.decode()}, attempt {mail.attempts}")


async def main(directory: str) -> None:
    """Put some mails, work them off, and look at what could not be sent."""
    async with aiodq.open(directory) as store:
        mails = store.queue("mail", RETRYING)
        await mails.put_many([b"ann@example.org", b"bob@example.org", b"nobody@example.org", b"eve@example.org"])

        workers = asyncio.create_task(mails.consume(send, concurrency=2))
        await mails.join()  # until every mail is sent or dead
        await mails.stop()
        await workers

        dead = store.queue("mail.dead")
        async with await dead.get() as letter:
            print(f"gave up {letter.body.decode()}, {letter.headers['aiodq-reason']}: {letter.headers['aiodq-error']}")
        print(f"{mails.depth} mails left, {dead.depth} dead letters")


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # what a handler raises is logged; here it is on purpose
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="aiodq-") as temporary:
            asyncio.run(main(temporary))
