"""Two ways to the server: gRPC and REST. Both ask once, and say which kind of failure it was.

A way is an object with `ask(files, timeout_s) -> answers` and `close()`. It may be used by many
threads at once.
"""

import base64
import threading
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

import grpc
import requests
from answers import Answer, Passing, Refused, from_columns
from deadlines import Deadline, DeadlineAdapter
from tensor_protos import PredictRequest, PredictResponse, columns_of, predict_request

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_CHANNEL = [
    # gRPC takes 4 MB by default: enough for labels, too little for a large batch of features.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A host name with several addresses is several servers: all of them are used, not the first
    # that answers.
    ("grpc.lb_policy_name", "round_robin"),
    # A peer that vanished without a word (a machine without power, a firewall) is noticed within 40
    # s while a request is on its way. Pinging more often, or without one, makes servers hang up:
    # "too many pings".
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # After a failed connection gRPC waits for up to two minutes by default: longer than a restart
    # takes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
# RESOURCE_EXHAUSTED and UNAVAILABLE are also what the server says when its batching queue is full.
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_PASSING_HTTP = (429, 502, 503, 504)


class Transport(Protocol):
    """A way to the server."""

    def ask(self, files: Sequence[bytes], timeout_s: float) -> list[Answer]:
        """Asks once about some files; raises `Passing` or `Refused`."""
        ...

    def close(self) -> None:
        """Gives up all connections; what is on its way fails."""
        ...


class GrpcTransport:
    """The PredictionService of a server.

    Args:
        server: `host:port`, or a name as gRPC writes it, such as `dns:///host:port`.
        model: Its name in `models.config`.
        label: A version label, or "".
    """

    def __init__(self, server: str, *, model: str, label: str = ""):
        self._model, self._label = model, label
        self._channel = grpc.insecure_channel(
            server if "://" in server else f"dns:///{server}", options=_CHANNEL
        )
        self._predict: Callable = self._channel.unary_unary(
            _METHOD,
            request_serializer=PredictRequest.SerializeToString,
            response_deserializer=PredictResponse.FromString,
        )

    def ask(self, files: Sequence[bytes], timeout_s: float) -> list[Answer]:
        """Asks once about some files; raises `Passing` or `Refused`."""
        try:
            response = self._predict(
                predict_request(self._model, self._label, files), timeout=timeout_s
            )
        except grpc.RpcError as error:
            words = f"{error.code().name}: {error.details()}"
            raise (Passing if error.code() in _PASSING else Refused)(words) from error
        try:
            columns = columns_of(response)
        except ValueError as error:
            raise Refused(str(error)) from error
        return from_columns(columns, len(files))

    def close(self) -> None:
        """Gives up the connection; what is on its way fails."""
        self._channel.close()


class RestTransport:
    """The REST interface of a server: a third more bytes than gRPC, and no need of it.

    Args:
        server: `http://host:port` or `https://host`, with a path in front of `/v1` if a proxy wants
            one.
        model: Its name in `models.config`.
        label: A version label, or "".
    """

    def __init__(self, server: str, *, model: str, label: str = ""):
        version = f"/labels/{quote(label, safe='')}" if label else ""
        self._url = f"{server.rstrip('/')}/v1/models/{quote(model, safe='')}{version}:predict"
        self._sessions = threading.local()  # a session is made for one thread

    def ask(self, files: Sequence[bytes], timeout_s: float) -> list[Answer]:
        """Asks once about some files; raises `Passing` or `Refused`."""
        coded = [{"b64": base64.b64encode(file).decode("ascii")} for file in files]
        body = {"signature_name": "serving_default", "inputs": {"image_bytes": coded}}
        late = f"Timeout: no whole answer within {timeout_s:g} s"
        with Deadline(timeout_s) as deadline:
            try:
                response = self._session().post(self._url, json=body, timeout=timeout_s)
            except (
                requests.ConnectionError,
                requests.Timeout,
                requests.exceptions.ChunkedEncodingError,
            ) as error:
                is_late = (
                    deadline.is_over
                    or isinstance(error, requests.Timeout)
                    or "timed out" in str(error)
                )
                raise Passing(late if is_late else f"{type(error).__name__}: {error}") from error
            except requests.RequestException as error:
                raise Refused(f"{type(error).__name__}: {error}") from error
        if deadline.is_over:  # what was cut off may look like an answer
            raise Passing(late)
        if response.status_code != 200:
            words = f"HTTP {response.status_code}: {_error(response)}"
            raise (Passing if response.status_code in _PASSING_HTTP else Refused)(words)
        return from_columns(_outputs(response), len(files))

    def close(self) -> None:
        """Does nothing: what is on its way ends by its timeout, or with the process."""

    def _session(self) -> requests.Session:
        if not hasattr(self._sessions, "session"):
            session = requests.Session()
            # the longest prefix counts, and these are mounted already
            for scheme in ("http://", "https://"):
                session.mount(scheme, DeadlineAdapter(pool_connections=1, pool_maxsize=1))
            self._sessions.session = session
        return self._sessions.session


def make_transport(server: str, *, model: str, label: str = "") -> Transport:
    """Returns REST for `http://` and `https://`, else gRPC."""
    kind = RestTransport if server.startswith(("http://", "https://")) else GrpcTransport
    return kind(server, model=model, label=label)


def _outputs(response: requests.Response) -> dict[str, list]:
    try:
        outputs = response.json()["outputs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(
            f"This is no answer of TensorFlow Serving: {response.text[:200]!r}."
        ) from error
    if not isinstance(outputs, dict):  # a single output comes without its name
        raise Refused("The model gives a single output; it is none that was exported with a head.")
    return outputs


def _error(response: requests.Response) -> str:
    try:
        words = str(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        words = response.text[:200]
    return " ".join(words.split())
