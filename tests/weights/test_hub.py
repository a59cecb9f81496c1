"""Repositories of the Hugging Face Hub, from a server on 127.0.0.1 that answers as the hub does."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install huggingface_hub")

import huggingface_hub  # noqa: E402
from huggingface_hub import constants  # noqa: E402

from keras_vit.weights import download, files, hub  # noqa: E402

pytestmark = pytest.mark.once

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ARRAYS = {"layernorm.weight": np.ones(4, "float32")}
WEIGHTS = safetensors.numpy.save(ARRAYS)
CONFIG = json.dumps({"num_attention_heads": 2}).encode()


class Hub(ThreadingHTTPServer):
    """Serves `repositories`: {owner/name: {file: content}} at the revisions `main` and COMMIT."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.gated, self.requests, self.tokens = {}, set(), [], []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, *, with_body: bool):
        owner, name, _, revision, file = self.path.strip("/").split("/", 4)
        repository = f"{owner}/{name}"
        self.server.requests.append((self.command, file, revision))
        self.server.tokens.append(self.headers.get("Authorization"))
        found = self.server.repositories.get(repository)
        if found is None:
            return self.fail(401, "RepoNotFound")
        if repository in self.server.gated and not self.headers.get("Authorization"):
            return self.fail(401, "GatedRepo")
        if revision not in ("main", COMMIT):
            return self.fail(404, "RevisionNotFound")
        if file not in found:
            return self.fail(404, "EntryNotFound", {"X-Repo-Commit": COMMIT})
        content = found[file]
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)
        return None

    def fail(self, code: int, reason: str, headers=None):
        self.send_response(code)
        self.send_header("X-Error-Code", reason)
        self.send_header("X-Error-Message", reason)
        for header in (headers or {}).items():
            self.send_header(*header)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # it asks the real hub
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.repositories["me/vit"] = {"model.safetensors": WEIGHTS, "config.json": CONFIG}
    yield server
    server.shutdown()
    server.server_close()


def check(folder: Path) -> None:
    found = files.read(folder)
    np.testing.assert_array_equal(found.arrays["layernorm.weight"], ARRAYS["layernorm.weight"])
    assert found.metadata == {"num_heads": 2}


def download_alone(name: str) -> Path:
    """Downloads one file of me/vit into the cache, as another program would."""
    endpoint = os.environ["HF_ENDPOINT"]
    return Path(huggingface_hub.hf_hub_download("me/vit", name, endpoint=endpoint))


@pytest.mark.parametrize("address", ["hf://me/vit", "hf://me/vit@main", f"hf://me/vit@{COMMIT}"])
def test_weights_and_descriptions_come_from_one_commit(server, address):
    check(download.fetch(address))
    assert {revision for _, _, revision in server.requests[2:]} == {COMMIT}


def test_a_second_call_downloads_nothing(server):
    first = hub.fetch("hf://me/vit")
    before = len(server.requests)
    assert hub.fetch("hf://me/vit") == first
    assert all(command == "HEAD" for command, *_ in server.requests[before:])


def test_repositories_of_transformers_4_on_tensorflow(server):
    golden = Path(__file__).parents[1] / "golden" / "transformers_h5" / "vit_in_shards"
    server.repositories["me/tf"] = {path.name: path.read_bytes() for path in golden.iterdir()}
    found = files.read(hub.fetch("hf://me/tf"))
    assert found.arrays["classifier.weight"].shape == (3, 16)
    assert found.metadata["num_heads"] == 2


def test_one_form_of_the_weights_is_downloaded(server):
    server.repositories["me/vit"]["pytorch_model.bin"] = b"never asked for"
    check(hub.fetch("hf://me/vit"))
    assert "pytorch_model.bin" not in {file for _, file, _ in server.requests}


def test_weights_in_several_files(server):
    index = {"weight_map": {"layernorm.weight": "model-1.safetensors"}}
    server.repositories["me/vit"] = {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": WEIGHTS,
        "config.json": CONFIG,
    }
    check(hub.fetch("hf://me/vit"))
    del server.repositories["me/vit"]["model-1.safetensors"]
    server.repositories["you/vit"] = server.repositories["me/vit"]
    with pytest.raises(ValueError, match="lists the file model-1.safetensors and does not have it"):
        hub.fetch("hf://you/vit")


def test_without_a_connection_the_cache_is_used(server, monkeypatch):
    folder = hub.fetch("hf://me/vit")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch("hf://me/vit") == folder
    check(folder)
    with pytest.raises(ConnectionError, match="hf://you/vit cannot be downloaded, and the cache"):
        hub.fetch("hf://you/vit")


def test_without_a_connection_any_form_of_the_weights_in_the_cache_is_used(server, monkeypatch):
    """Other programs do not ask for safetensors first, so the cache does not say there are none."""
    names = ("pytorch_model.bin", *hub._DESCRIPTIONS)
    server.repositories["me/vit"] = dict.fromkeys(names, CONFIG)
    folders = {download_alone(name).parent for name in names}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert {hub.fetch("hf://me/vit")} == folders


@pytest.mark.parametrize("kind", ["transformers", "timm"])
def test_without_a_connection_the_copy_of_a_whole_repository_is_used(kind, server, monkeypatch):
    """`hf download` caches all files of a repository, and does not record which it does not have."""
    content = {"model.safetensors": WEIGHTS, "config.json": CONFIG}
    if kind == "timm":  # its config has the pixels
        content["config.json"] = json.dumps({"pretrained_cfg": {"mean": [0.5] * 3}}).encode()
    else:
        content["preprocessor_config.json"] = b"{}"
    server.repositories["me/vit"] = content
    folders = {download_alone(name).parent for name in content}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert {hub.fetch("hf://me/vit")} == folders


def test_a_description_that_was_not_downloaded_is_not_taken_for_absent(server, monkeypatch):
    """Without it the number of heads would be guessed."""
    folder = hub.fetch("hf://me/vit")
    (folder / "config.json").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="the cache has no config.json"):
        hub.fetch("hf://me/vit")


@pytest.mark.parametrize(
    ("weights", "missing"),
    [
        ("model.safetensors", "preprocessor_config.json"),
        ("open_clip_model.safetensors", "open_clip_config.json"),
    ],
)
def test_a_description_that_no_other_one_replaces_is_not_taken_for_absent(
    weights, missing, server, monkeypatch
):
    server.repositories["me/vit"] = dict.fromkeys([weights, *hub._DESCRIPTIONS], CONFIG)
    for name in {weights, *hub._DESCRIPTIONS} - {missing}:
        download_alone(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=f"the cache has no {missing}"):
        hub.fetch("hf://me/vit")


def test_a_repository_without_descriptions_is_whole(server, monkeypatch):
    del server.repositories["me/vit"]["config.json"]
    folder = hub.fetch("hf://me/vit")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch("hf://me/vit") == folder


def test_a_gated_repository_opens_with_a_token(server, monkeypatch):
    server.gated.add("me/vit")
    with pytest.raises(
        PermissionError, match="hf://me/vit is gated: .* `hf auth login`, or set HF"
    ):
        hub.fetch("hf://me/vit")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    check(hub.fetch("hf://me/vit"))
    assert server.tokens[-1] == "Bearer hf_secret"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://you/vit", "There is no repository 'you/vit', or it is private"),
        ("hf://me/vit@v2", "The repository 'me/vit' has no revision 'v2'"),
        ("hf://me/empty", "has no weights that can be read: none of model.safetensors, "),
        ("hf://vit", "Not the address of a repository: 'hf://vit'"),
        ("hf://me/vit/model.safetensors", "Expected hf://owner/name or hf://owner/name@revision"),
        ("hf://me/vit@", "Not the address"),
    ],
)
def test_what_is_not_there_is_said(server, address, message):
    server.repositories["me/empty"] = {"config.json": CONFIG}
    with pytest.raises(ValueError, match=message):
        hub.fetch(address)


def test_a_hub_that_cannot_be_reached(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match="hf://me/vit cannot be downloaded"):
        hub.fetch("hf://me/vit")


def test_the_package_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="hf://me/vit needs huggingface_hub: pip install"):
        hub.fetch("hf://me/vit")
