"""Views of a web framework that calls them in threads (Django, Flask, any WSGI), with a queue behind them.

    python examples/blocking_views.py DIRECTORY [PORT]
    curl -d '{"item": "tea"}' http://127.0.0.1:8000/orders

In Django, each process opens the queue when it first needs it, in mode "shared":

    @functools.cache
    def orders(process):
        return aiodq.sync.open_queue(settings.ORDERS, mode="shared")

    def place(request):
        return JsonResponse({"order": orders(os.getpid()).put(request.body)}, status=202)

Not in `AppConfig.ready`: that also runs in the process of `runserver` that only restarts the other, for every command
of `manage.py`, and with `gunicorn --preload` before the fork, after which a worker gets `WrongContextError`. A command
works the orders off: `orders(os.getpid()).consume(ship)`. An `async def` view uses `aiodq.open` instead.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import aiodq.sync

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

LARGEST_ORDER = 16 * 1024


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request; closing waits for them."""


class Quiet(WSGIRequestHandler):
    """Without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base
        """Say nothing."""


def is_order(body: bytes) -> bool:
    """Return whether what was sent can be worked off."""
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(order, dict) and isinstance(order.get("item"), str)


class Views:
    """The application: what WSGI calls, in whichever thread."""

    def __init__(self, orders: aiodq.sync.Queue) -> None:
        """Serve a queue."""
        self.orders = orders
        self.shipped = 0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        headers = [("Content-Type", "application/json")]
        try:
            if environ["REQUEST_METHOD"] == "POST":
                status, answer = self.place(environ)
            else:
                status, answer = self.stats()
        except aiodq.MessageSizeError as error:
            status, answer = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error)}
        except (aiodq.QueueShutDown, aiodq.QueueFull, aiodq.StorageError):
            # At the end, no space, or the disk failed: the order is not promised, and the customer may try again.
            status, answer = HTTPStatus.SERVICE_UNAVAILABLE, {"error": "no orders are taken at the moment"}
            headers.append(("Retry-After", "5"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [json.dumps(answer).encode()]

    def place(self, environ: WSGIEnvironment) -> tuple[HTTPStatus, dict[str, object]]:
        """Take an order: it is on disk when the client reads 202. Threads that put at once share a sync."""
        length = environ.get("CONTENT_LENGTH", "")
        if not length.isdecimal():
            return HTTPStatus.LENGTH_REQUIRED, {"error": "an order says how long it is"}
        if int(length) > LARGEST_ORDER:  # before it is read
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"an order has up to {LARGEST_ORDER} bytes"}
        body = environ["wsgi.input"].read(int(length))
        if not is_order(body):
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "an order is JSON with an item"}
        return HTTPStatus.ACCEPTED, {"order": self.orders.put(body)}

    def stats(self) -> tuple[HTTPStatus, dict[str, object]]:
        """Say how far the work is."""
        return HTTPStatus.OK, {"waiting": self.orders.qsize(), "shipped": self.shipped}

    def ship(self, order: aiodq.sync.Message) -> None:
        """Work an order off, in a thread of `consume`."""
        if json.loads(order.body)["item"] == "bomb":
            raise aiodq.Reject("we do not ship that")
        self.shipped += 1


def main(directory: str, port: int = 8000) -> None:
    """Serve until SIGTERM: then requests that have arrived are answered, and orders in hand are finished."""
    options = aiodq.ChannelOptions(dead_letter="refused")
    with aiodq.sync.open_queue(directory, channel=options) as orders:
        views = Views(orders)
        worker = threading.Thread(target=orders.consume, args=(views.ship,))
        worker.start()
        with make_server("127.0.0.1", port, views, Server, Quiet) as server:
            signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
            print(f"serving on {server.server_port}", flush=True)
            server.serve_forever()
        orders.stop(grace=10)
        worker.join()


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: blocking_views.py DIRECTORY [PORT]")
    main(sys.argv[1], *map(int, sys.argv[2:]))
