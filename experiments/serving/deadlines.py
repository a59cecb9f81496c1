"""A time by which an HTTP request must have ended, however slowly the other side sends.

A timeout of `requests` is the time between two bytes: a server that sends one byte a second is
waited for as long as it likes. So a timer closes the socket at the deadline, and the blocked read
raises an error.
"""

import contextlib
import socket
import threading

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

# the deadline and the socket of a thread, whose session has one connection
_here = threading.local()


class Deadline:
    """Ends what the thread reads and writes when the time is over.

    Args:
        seconds: From the beginning of the block.

    Attributes:
        is_over: Whether the time ran out within the block.
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
        """Takes note of a new socket."""
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
    plain = getattr(to, "socket", to)  # within a proxy's TLS
    with contextlib.suppress(OSError, TypeError):  # it may be closed already
        socket.socket.shutdown(plain, socket.SHUT_RDWR)  # that of TLS would wait for a farewell


class DeadlineAdapter(HTTPAdapter):
    """One whose connections tell the deadline of their thread about their sockets."""

    def init_poolmanager(self, *arguments, **options) -> None:
        """Makes the manager of connections."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments, **options):
        """Returns the manager of connections through a proxy."""
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def _telling(pool: type) -> type:
    class Connection(pool.ConnectionCls):
        def connect(self) -> None:
            super().connect()
            _here.socket = self.sock
            if getattr(_here, "deadline", None) is not None:
                _here.deadline.connected(self.sock)

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


_POOLS = {"http": _telling(HTTPConnectionPool), "https": _telling(HTTPSConnectionPool)}
