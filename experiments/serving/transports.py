"""Connections to the server by gRPC and REST, without retries.

A transport has the methods `ask(files, timeout_s) -> answers` and `close()`. It is thread-safe.
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
    # The default of 4 MB is enough for labels, but not for a large batch of features.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Use all addresses of a host name in turn, not only the first that answers.
    ("grpc.lb_policy_name", "round_robin"),
    # Detect within 40 s during a request that the server disappeared (power failure, firewall). With
    # more frequent pings, or pings without a request, servers close the connection: "too many
    # pings".
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # By default, gRPC waits up to two minutes after a failed connection, longer than a restart.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
# The server also returns RESOURCE_EXHAUSTED and UNAVAILABLE if its batching queue is full.
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_PASSING_HTTP = (429, 502, 503, 504)


class Transport(Protocol):
    """A connection to the server."""

    def ask(self, files: Sequence[bytes], timeout_s: float) -> list[Answer]:
        """Sends one request with some files; raises `Passing` or `Refused`."""
        ...

    def close(self) -> None:
        """Closes all connections; pending requests fail."""
        ...


class GrpcTransport:
    """The PredictionService of a server.

    Args:
        server: `host:port`, or a gRPC name such as `dns:///host:port`.
        model: Name of the model in `models.config`.
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
        """Sends one request with some files; raises `Passing` or `Refused`."""
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
        """Closes the connection; pending requests fail."""
        self._channel.close()


class RestTransport:
    """The REST interface of a server, which sends a third more bytes than gRPC.

    Args:
        server: `http://host:port` or `https://host`, followed by the path of a proxy, if any.
        model: Name of the model in `models.config`.
        label: A version label, or "".
    """

    def __init__(self, server: str, *, model: str, label: str = ""):
        version = f"/labels/{quote(label, safe='')}" if label else ""
        self._url = f"{server.rstrip('/')}/v1/models/{quote(model, safe='')}{version}:predict"
        self._sessions = threading.local()  # sessions are not thread-safe

    def ask(self, files: Sequence[bytes], timeout_s: float) -> list[Answer]:
        """Sends one request with some files; raises `Passing` or `Refused`."""
        coded = [{"b64": base64.b64encode(file).decode("ascii")} for file in files]
        body = {"signature_name": "serving_default", "inputs": {"image_bytes": coded}}
        late = f"Timeout: no complete answer within {timeout_s:g} s"
        with Deadline(timeout_s) as deadline:
            try:
                response = self._get_session().post(self._url, json=body, timeout=timeout_s)
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
        if deadline.is_over:  # a truncated answer may look complete
            raise Passing(late)
        if response.status_code != 200:
            words = f"HTTP {response.status_code}: {_read_error(response)}"
            raise (Passing if response.status_code in _PASSING_HTTP else Refused)(words)
        return from_columns(_read_outputs(response), len(files))

    def close(self) -> None:
        """Does nothing: pending requests end by their timeout, or with the process."""

    def _get_session(self) -> requests.Session:
        if not hasattr(self._sessions, "session"):
            session = requests.Session()
            # Replace the adapters of these prefixes: the longest matching prefix is used.
            for scheme in ("http://", "https://"):
                session.mount(scheme, DeadlineAdapter(pool_connections=1, pool_maxsize=1))
            self._sessions.session = session
        return self._sessions.session


def make_transport(server: str, *, model: str, label: str = "") -> Transport:
    """Returns REST for `http://` and `https://`, else gRPC."""
    kind = RestTransport if server.startswith(("http://", "https://")) else GrpcTransport
    return kind(server, model=model, label=label)


def _read_outputs(response: requests.Response) -> dict[str, list]:
    try:
        outputs = response.json()["outputs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(
            f"This is not an answer of TensorFlow Serving: {response.text[:200]!r}."
        ) from error
    if not isinstance(outputs, dict):  # a single output has no name
        raise Refused("The model has a single output, so it was exported without a head.")
    return outputs


def _read_error(response: requests.Response) -> str:
    try:
        words = str(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        words = response.text[:200]
    return " ".join(words.split())
