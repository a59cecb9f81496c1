"""A total time limit for HTTP requests, however slowly the server sends.

The timeout of `requests` is the time between two bytes, so a server that sends one byte per second
never exceeds it. Here a timer closes the socket at the deadline, and the blocked read raises an
error.
"""

import contextlib
import socket
import threading

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

# The deadline and the socket of each thread; a session has one connection.
_here = threading.local()


class Deadline:
    """Ends the reads and writes of the thread at a deadline.

    Args:
        seconds: Time from the start of the block.

    Attributes:
        is_over: Whether the deadline has passed in the block.
    """

    def __init__(self, seconds: float):
        self.is_over = False
        self._lock, self._socket = threading.Lock(), getattr(_here, "socket", None)
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "Deadline":
        _here.deadline = self
        self._timer.start()
        return self

    def __exit__(self, *_) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None  # the next request may use it again
        _here.deadline = None

    def connected(self, to: socket.socket) -> None:
        """Registers a new socket."""
        with self._lock:
            self._socket = to
            if self.is_over:
                _shut(to)

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._socket is not None:
                _shut(self._socket)


def _shut(to: socket.socket) -> None:
    plain = getattr(to, "socket", to)  # the socket inside TLS through a proxy
    with contextlib.suppress(OSError, TypeError):  # the socket may already be closed
        # `shutdown` of a TLS socket would wait for the other side.
        socket.socket.shutdown(plain, socket.SHUT_RDWR)


class DeadlineAdapter(HTTPAdapter):
    """An adapter whose connections register their sockets with the deadline of the thread."""

    def init_poolmanager(self, *arguments, **options) -> None:
        """Creates the connection manager."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments, **options):
        """Returns the connection manager of a proxy."""
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def _with_registration(pool: type) -> type:
    class Connection(pool.ConnectionCls):
        def connect(self) -> None:
            super().connect()
            _here.socket = self.sock
            if getattr(_here, "deadline", None) is not None:
                _here.deadline.connected(self.sock)

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


_POOLS = {
    "http": _with_registration(HTTPConnectionPool),
    "https": _with_registration(HTTPSConnectionPool),
}
