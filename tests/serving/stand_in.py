"""A server with the interfaces of TensorFlow Serving, as a process that can be killed: for clients,
not for users.

    python stand_in.py --model_config_file=models.config --port=8500 --rest_api_port=8501

It reads the same `models.config`, with version policies and labels, looks for new versions every
second, and answers from the exported SavedModel. gRPC is the servicer that tensorflow-serving-api
generates; REST follows the server's documented JSON. It has no batching, no metrics and none of the
server's own code: what it shows is that client, requests and exports fit together, not how the
server behaves.

Images can ask for trouble, by a comment in the JPEG: `stand-in:slow` sleeps first, `stand-in:busy`
is turned away, and `-once` behind either does so the first time only.
"""

import argparse
import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

_HTTP = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500}
_TROUBLE = re.compile(rb"stand-in:(slow|busy)(-once)?")
_WHERE = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict)?")
_SLEEP_S = 3.0


class Failure(Exception):
    """What a caller is told, with the name of a gRPC status."""

    def __init__(self, code: str, words: str):
        super().__init__(words)
        self.code = code


class Models:
    """The versions of models that are served now."""

    def __init__(self, config_file: Path):
        self._config_file = config_file
        self._configs: dict[str, ModelConfig] = {}
        self._loaded: dict[tuple[str, int], Mapping] = {}

    def refresh(self) -> None:
        """Reads the config again, loads what is new, and forgets what is not wanted any more."""
        config = text_format.Parse(
            self._config_file.read_text(encoding="utf-8"), ModelServerConfig()
        )
        configs = {model.name: model for model in config.model_config_list.config}
        wanted = {
            (name, version) for name, model in configs.items() for version in _versions(model)
        }
        for name, version in wanted - self._loaded.keys():
            loaded = tf.saved_model.load(f"{configs[name].base_path}/{version}")
            self._loaded = {**self._loaded, (name, version): loaded.signatures}
        self._configs = configs
        self._loaded = {
            key: signatures for key, signatures in self._loaded.items() if key in wanted
        }

    def signatures(self, name: str, *, version: int = 0, label: str = "") -> Mapping:
        """The signatures of a version: that of a label, that of a number, or the newest."""
        served = sorted(number for model, number in self._loaded if model == name)
        if label:
            labels = self._configs[name].version_labels if name in self._configs else {}
            if label not in labels:
                raise Failure("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
            version = labels[label]
        if not served or (version and version not in served):
            raise Failure(
                "NOT_FOUND",
                f"Servable not found for request: {name}, version {version or 'latest'}",
            )
        return self._loaded[name, version or served[-1]]

    def statuses(self, name: str) -> list[dict]:
        """What is said of the versions of a model."""
        self.signatures(name)
        fine = {"error_code": "OK", "error_message": ""}
        served = sorted((number for model, number in self._loaded if model == name), reverse=True)
        return [{"version": str(number), "state": "AVAILABLE", "status": fine} for number in served]


class Desk:
    """Answers requests of both interfaces, and counts them."""

    def __init__(self, models: Models):
        self.models = models
        self._lock = threading.Lock()
        self._counts = Counter(requests=0, now=0, most_at_once=0)
        self._troubled: set[bytes] = set()

    def predict(
        self, signatures: Mapping, name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Runs a signature, as a session would."""
        if name not in signatures:
            raise Failure("INVALID_ARGUMENT", f'Serving signature key "{name}" not found.')
        _, expected = signatures[name].structured_input_signature
        if set(expected) != set(inputs):
            raise Failure(
                "INVALID_ARGUMENT",
                f"input size does not match signature: {set(inputs)}, {set(expected)}",
            )
        with self._counted():
            self._trouble(inputs)
            try:
                tensors = {
                    key: tf.constant(value, expected[key].dtype) for key, value in inputs.items()
                }
                return {key: tensor.numpy() for key, tensor in signatures[name](**tensors).items()}
            except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
                raise Failure("INVALID_ARGUMENT", str(error)) from error

    def statistics(self) -> dict[str, int]:
        """How many requests came, and how many there were at once at most."""
        with self._lock:
            return dict(self._counts)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._counts.update(requests=1, now=1)
            self._counts["most_at_once"] = max(self._counts["most_at_once"], self._counts["now"])
        try:
            yield
        finally:
            with self._lock:
                self._counts["now"] -= 1

    def _trouble(self, inputs: Mapping[str, np.ndarray]) -> None:
        for file in np.ravel(inputs.get("image_bytes", ())):
            found, key = _TROUBLE.search(file[:300]), hashlib.sha256(file).digest()
            with self._lock:
                if not found or (found[2] and key in self._troubled):
                    continue
                self._troubled.add(key)
            if found[1] == b"busy":
                raise Failure("RESOURCE_EXHAUSTED", "The stand-in was asked to be busy.")
            time.sleep(_SLEEP_S)


class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC interface."""

    def __init__(self, desk: Desk):
        self._desk, self._count = desk, 0

    def Predict(self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext):
        """Answers one request; numbers come in either of the two forms that the server knows."""
        spec = request.model_spec
        try:
            found = self._desk.models.signatures(
                spec.name, version=spec.version.value, label=spec.version_label
            )
            inputs = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
            outputs = self._desk.predict(found, spec.signature_name or "serving_default", inputs)
        except Failure as failure:
            context.abort(getattr(grpc.StatusCode, failure.code), str(failure))
        self._count += 1
        response = predict_pb2.PredictResponse()
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(_proto(value, as_content=self._count % 2 == 0))
        return response


class Handler(BaseHTTPRequestHandler):
    """The REST interface."""

    protocol_version = "HTTP/1.1"
    desk: Desk

    def do_GET(self) -> None:  # noqa: N802
        """Status of a model, and what this stand-in has counted."""
        if self.path == "/stand_in/statistics":
            return self._send(200, self.desk.statistics())
        self._answer(lambda where, models: {"model_version_status": models.statuses(where[1])})

    def do_POST(self) -> None:  # noqa: N802
        """Predictions."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(lambda where, models: self._predict(where, models, body))

    def _answer(self, work) -> None:
        where = _WHERE.fullmatch(self.path)
        if not where:
            return self._send(400, {"error": f"Malformed request: {self.command} {self.path}"})
        try:
            self._send(200, work(where, self.desk.models))
        except Failure as failure:
            self._send(_HTTP[failure.code], {"error": str(failure)})

    def _predict(self, where: re.Match, models: Models, body: bytes) -> dict:
        signatures = models.signatures(where[1], version=int(where[2] or 0), label=where[3] or "")
        try:
            asked = json.loads(body)
            name = asked.get("signature_name", "serving_default")
            (only,) = (
                signatures[name].structured_input_signature[1] if name in signatures else ("",)
            )
            in_rows = "instances" in asked
            inputs = {only: asked["instances"]} if in_rows else asked["inputs"]
            arrays = {
                key: np.array([_decoded(value) for value in values])
                for key, values in inputs.items()
            }
        except (ValueError, KeyError, AttributeError, TypeError, binascii.Error) as error:
            raise Failure("INVALID_ARGUMENT", f"JSON Parse error: {error}") from error
        arrays = {
            key: value.astype(object) if value.dtype.kind == "S" else value
            for key, value in arrays.items()
        }
        outputs = {
            key: _plain(value) for key, value in self.desk.predict(signatures, name, arrays).items()
        }
        if not in_rows:
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        return {
            "predictions": [
                dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
            ]
        }

    def _send(self, code: int, content: dict) -> None:
        body = json.dumps(content, indent=1).encode()
        # the caller may have given up
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Says nothing."""


class HttpServer(ThreadingHTTPServer):
    """One with room for many who connect at once."""

    request_queue_size = 256
    daemon_threads = True


def _versions(model: ModelConfig) -> list[int]:
    base = Path(model.base_path)
    there = (
        sorted(int(path.name) for path in base.iterdir() if path.name.isdigit())
        if base.is_dir()
        else []
    )
    policy = model.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "specific":
        return [version for version in policy.specific.versions if version in there]
    return there if kind == "all" else there[-max(1, policy.latest.num_versions) :]


def _proto(value: np.ndarray, *, as_content: bool) -> TensorProto:
    proto = tf.make_tensor_proto(value)
    if as_content or value.dtype == object or not value.size:
        return proto
    field = {"f": proto.float_val, "i": proto.int_val}[value.dtype.kind]
    proto.ClearField("tensor_content")
    del field[:]
    field.extend(value.ravel().tolist())
    return proto


def _decoded(value):
    return base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value


def _plain(value: np.ndarray) -> list:
    return (
        np.vectorize(bytes.decode, otypes=[object])(value).tolist()
        if value.dtype == object
        else value.tolist()
    )


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_config_file", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rest_api_port", type=int, required=True)
    options = parser.parse_args()
    models = Models(options.model_config_file)
    models.refresh()  # like the server, it does not listen before everything is loaded
    desk = Handler.desk = Desk(models)
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Servicer(desk), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    server.start()
    threading.Thread(
        target=HttpServer(("127.0.0.1", options.rest_api_port), Handler).serve_forever
    ).start()
    while True:
        time.sleep(1)
        models.refresh()


if __name__ == "__main__":
    main()
