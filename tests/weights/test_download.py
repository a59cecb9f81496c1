"""Downloads from a real HTTP server on 127.0.0.1 that behaves, breaks off, stalls, refuses and lies
on demand.
"""

import dataclasses
import errno
import hashlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from warm import HUNG_SECONDS

from keras_vit.weights import catalog, download, files
from keras_vit.weights.download import cache_path, fetch, https_url
from keras_vit.weights.secrets import join_command, without_secrets


def npz_bytes(value: float = 1.0) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, kernel=np.full(1000, value, "float32"))
    return stream.getvalue()


CONTENT = npz_bytes()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` under every path, in the way that `mode` says; counts the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.mode, self.requests = CONTENT, "whole", []
        self.together = threading.Barrier(2, timeout=HUNG_SECONDS)
        self.release = threading.Event()
        self.encodings = []

    def url(self, path="weights/model.npz"):
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requests.append(self.path)
        self.server.encodings.append(self.headers["Accept-Encoding"])
        getattr(self, self.server.mode)(self.server.content)

    def head(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def whole(self, content):
        self.head(200, Content_Length=len(content))
        self.wfile.write(content)

    def truncated(self, content):
        self.head(200, Content_Length=len(content))
        self.wfile.write(content[:-500])

    def without_length(self, content):
        self.head(200)
        self.wfile.write(content)

    def truncated_without_length(self, content):
        self.head(200)
        self.wfile.write(content[:-500])

    def slow(self, content):
        self.head(200, Content_Length=len(content))
        for start in range(0, len(content), 1000):
            self.wfile.write(content[start : start + 1000])
            time.sleep(0.01)

    def stalled(self, content):
        self.head(200, Content_Length=len(content))
        self.wfile.write(content[:100])
        self.wfile.flush()
        self.server.release.wait(HUNG_SECONDS)

    def two_at_a_time(self, content):
        self.head(200, Content_Length=len(content))
        self.wfile.write(content[:100])
        self.wfile.flush()
        self.server.together.wait()
        self.wfile.write(content[100:])

    def missing(self, _):
        self.head(404, Content_Length=0)

    def busy(self, _):
        self.head(429, Content_Length=0)

    def broken(self, _):
        self.head(503, Content_Length=0)

    def moved(self, content):
        if self.path == "/moved.npz":
            self.whole(content)
        else:
            self.head(302, Location="/moved.npz", Content_Length=0)


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "home"


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "offline"))
    (tmp_path / "offline").mkdir()
    return tmp_path / "offline"


@pytest.fixture
def dead_url():
    """A URL on a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}/vit_models/sam/ViT-B_16.npz"


def get(source) -> Path:
    return fetch(source, progress=False)


def row(url: str, **facts) -> catalog.CatalogRow:
    """A catalog row that lies on the test's server, of just the right size."""
    facts = {"bytes": len(CONTENT), "bytes_tolerance": 0, **facts}
    return dataclasses.replace(catalog.lookup("ViT_B16", "sam"), url=url, **facts)


def everything_under(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.rglob("*") if entry.is_file())


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def put_empty(path: Path, size: int) -> Path:
    """A file of any size that takes no room: a zip archive without members, at the end of a
    hole.
    """
    put(path, b"PK")
    with open(path, "r+b") as stream:
        stream.seek(size - 22)
        stream.write(b"PK\x05\x06" + b"\0" * 18)
    return path


# --- the way it should be
# --------------------------------------------------------------------------------------------


def test_file_is_downloaded_into_the_cache(server, home):
    path = get(server.url())
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(home / "models" / "keras_vit")
    assert path.name == "model.npz"
    assert server.encodings == ["identity"]  # or the length could be that of compressed bytes


def test_second_call_asks_nobody(server):
    assert get(server.url()) == get(server.url())
    assert server.requests == ["/weights/model.npz"]


def test_hash_is_pinned_in_the_form_of_sha256sum(server):
    path = get(server.url())
    pin = path.with_name("model.npz.sha256")
    assert pin.read_text() == f"{SHA256}  model.npz\n"
    assert everything_under(path.parent) == ["model.npz", "model.npz.sha256"]


def test_a_hash_that_others_wrote_in_capitals_is_the_same(server):
    """As `certutil` and `Get-FileHash` of Windows write it."""
    pin = get(server.url()).with_name("model.npz.sha256")
    pin.write_text(f"{SHA256.upper()}  model.npz\n")
    get(server.url()).unlink()
    assert get(server.url()).read_bytes() == CONTENT


@pytest.mark.parametrize("mode", ["without_length", "slow", "moved"])
def test_unusual_but_whole_answers_are_fine(server, mode):
    server.mode = mode
    assert get(server.url()).read_bytes() == CONTENT


def test_progress_is_shown_on_request_only(server, capsys):
    fetch(server.url("one.npz"), progress=True)
    shown = capsys.readouterr()
    assert "one.npz" in shown.err and "100%" in shown.err and shown.out == ""
    fetch(server.url("two.npz"), progress=False)
    assert capsys.readouterr() == ("", "")


def test_progress_works_without_a_length(server, capsys):
    server.mode = "without_length"
    fetch(server.url("one.npz"), progress=True)
    assert "one.npz" in capsys.readouterr().err


def test_row_of_the_catalog_is_downloaded_and_checked(server):
    assert get(row(server.url(), sha256=SHA256)).read_bytes() == CONTENT


def test_cached_file_is_readable_for_others_as_the_umask_allows(server, tmp_path):
    assert get(server.url()).stat().st_mode == put(tmp_path / "usual").stat().st_mode


def test_other_kinds_of_file_are_fetched_too(server):
    server.content = b'{"hidden_act": "gelu"}'
    assert get(server.url("repo/config.json")).read_bytes() == server.content


def test_files_of_one_directory_stay_together(server):
    weights = get(server.url("repo/model.npz"))
    server.content = b"{}"
    assert get(server.url("repo/config.json")).parent == weights.parent


# --- URLs and paths
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "gs://vit_models/sam/ViT-B_16.npz",
            "https://storage.googleapis.com/vit_models/sam/ViT-B_16.npz",
        ),
        (
            "gs://vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz",
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
        ),
        (
            "gs://vit_models/imagenet21k%2Bimagenet2012/x",
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/x",
        ),
        ("https://storage.googleapis.com/a/b+c", "https://storage.googleapis.com/a/b%2Bc"),
        ("https://storage.googleapis.com/a/b%2Bc", "https://storage.googleapis.com/a/b%2Bc"),
        ("https://example.org/a+b?c=d+e", "https://example.org/a+b?c=d+e"),
    ],
)
def test_url_to_ask(url, expected):
    assert https_url(url) == expected


@pytest.mark.parametrize(
    "url",
    ["ftp://host/file", "model.npz", "/model.npz", "https://", "https://host/dir/", "gs:///x"],
)
def test_what_is_no_url_of_a_file_is_refused(url):
    with pytest.raises(
        ValueError, match=r"Not the URL of a file: .*https://, http://, gs://, file://"
    ):
        get(url)


def test_cache_path_of_the_same_name_in_other_directories_or_hosts_differs():
    urls = [
        "gs://vit_models/sam/ViT-B_16.npz",
        "gs://vit_models/imagenet21k/ViT-B_16.npz",
        "https://example.org/sam/ViT-B_16.npz",
        "https://example.org:8080/sam/ViT-B_16.npz",
        "https://example.org:9090/sam/ViT-B_16.npz",
        "https://example.org_8080/sam/ViT-B_16.npz",
        "https://example.org//sam/ViT-B_16.npz",
        "https://example.org/./sam/ViT-B_16.npz",
        "https://example.org/sam/ViT-B_16.npz?version=1",
        "https://example.org/sam/ViT-B_16.npz?version=2",
        "https://example.org/sam%2FViT-B_16.npz",
    ]
    assert len({cache_path(url) for url in urls}) == len(urls)
    assert {cache_path(url).name for url in urls[:-1]} == {"ViT-B_16.npz"}


def test_cache_path_of_google_s_files_reads_as_on_their_server(home):
    root = home / "models" / "keras_vit" / "storage.googleapis.com" / "vit_models"
    expected = root / "imagenet21k+imagenet2012" / "ViT-B_16.npz"
    assert cache_path(catalog.lookup("ViT_B16", "imagenet21k+imagenet2012").url) == expected
    assert cache_path("gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz") == expected


def test_cache_is_in_the_home_directory_by_default(monkeypatch):
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_path("gs://b/x.npz") == Path(
        "/home/me/.keras/models/keras_vit/storage.googleapis.com/b/x.npz"
    )


@pytest.mark.parametrize(
    "path", ["a/../../../../etc/x.npz", "%2e%2e/%2E%2E/x.npz", "..%2F..%2Fx.npz", "a%5C..%5Cx.npz"]
)
def test_no_url_leads_out_of_the_cache(home, path):
    found = cache_path(f"https://example.org/{path}")
    assert ".." not in found.parts
    assert found.is_relative_to(home / "models" / "keras_vit" / "example.org")


def test_password_in_a_url_is_not_part_of_the_path():
    assert "secret" not in str(cache_path("https://me:secret@example.org/x.npz"))


def test_local_file_url_is_used_in_place(tmp_path):
    path = put(tmp_path / "my model.npz")
    assert get(path.as_uri()) == path
    assert everything_under(tmp_path) == ["my model.npz"]


def test_local_file_url_of_nothing_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.npz.*does not exist"):
        get((tmp_path / "nowhere.npz").as_uri())


# --- downloads that fail
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode", ["truncated", "truncated_without_length", "missing", "broken", "busy"]
)
def test_failed_download_leaves_nothing_and_the_next_one_works(server, home, mode):
    server.mode = mode
    with pytest.raises((ConnectionError, ValueError)):
        get(server.url())
    assert everything_under(home) == []
    server.mode = "whole"
    assert get(server.url()).read_bytes() == CONTENT


def test_download_that_breaks_off_is_a_connection_error(server):
    server.mode = "truncated"
    with pytest.raises(
        ConnectionError, match=r"Cannot download http://127.*500.*To work without the network"
    ):
        get(server.url())


def test_truncation_without_a_length_is_seen_in_the_content(server):
    server.mode = "truncated_without_length"
    with pytest.raises(
        ValueError,
        match=r"model.npz did not return the expected file, and nothing was stored.*truncated",
    ):
        get(server.url())


def test_truncation_without_a_length_is_seen_by_the_catalog_s_size(server, home):
    server.mode, server.content = (
        "without_length",
        b"PK".ljust(1978, b"\0") + b"PK\x05\x06" + bytes(18),
    )
    with pytest.raises(
        ValueError, match=rf"it has 2000 bytes, but .*model has {len(CONTENT)} \(plus or minus 0\)"
    ):
        get(row(server.url("weights/model")))
    assert everything_under(home) == []


def test_stalled_server_is_a_connection_error(server, home, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT_SECONDS", 0.2)
    server.mode = "stalled"
    with pytest.raises(ConnectionError, match="[Tt]imed out"):
        get(server.url())
    assert everything_under(home) == []


def test_missing_file_on_the_server_is_a_value_error_with_the_url(server):
    server.mode = "missing"
    with pytest.raises(ValueError, match=rf"The server answered 404 to {server.url()}"):
        get(server.url())


@pytest.mark.parametrize(("mode", "status"), [("broken", 503), ("busy", 429)])
def test_server_in_trouble_is_a_connection_error(server, mode, status):
    server.mode = mode
    with pytest.raises(ConnectionError, match=rf"Cannot download http://127.*: {status} .*To work"):
        get(server.url())


def test_web_page_instead_of_the_file_is_refused(server, home):
    server.content = b"<!DOCTYPE html><html>Please log in</html>"
    with pytest.raises(ValueError, match=r"did not return the expected file.*web page"):
        get(server.url())
    assert everything_under(home) == []


def test_file_of_another_size_than_listed_is_refused(server, home):
    wrong = row(server.url(), bytes=12345, bytes_tolerance=10)
    with pytest.raises(
        ValueError, match=rf"it has {len(CONTENT)} bytes, but .* has 12345 \(plus or minus 10\)"
    ):
        get(wrong)
    assert everything_under(home) == []


def test_file_of_another_hash_than_published_is_refused(server, home):
    with pytest.raises(
        ValueError, match=rf"sha256 is {SHA256}, expected {'0' * 64} for '.*model.npz'"
    ):
        get(row(server.url(), sha256="0" * 64))
    assert everything_under(home) == []


def test_no_connection_says_which_file_to_put_where(dead_url):
    url = dead_url
    with pytest.raises(ConnectionError) as caught:
        get(row(url))
    message = str(caught.value)
    assert f"download {url} on another machine" in message
    assert f"copy it to '{cache_path(url)}'" in message
    assert (
        f"'{Path('<directory>', 'sam', 'ViT-B_16.npz')}' with the environment variable "
        f"KERAS_VIT_WEIGHTS" in message
    )


def test_no_connection_names_the_offline_directory_that_is_set(dead_url, offline):
    with pytest.raises(ConnectionError, match=f"or to '{offline}/sam/ViT-B_16.npz'"):
        get(row(dead_url))


def test_following_the_advice_works(server):
    url = server.url()
    server.mode = "broken"
    with pytest.raises(ConnectionError) as caught:
        get(url)
    put(Path(str(caught.value).split("copy it to '")[1].split("'")[0]))
    assert get(url).read_bytes() == CONTENT


def test_unwritable_cache_is_an_os_error_that_names_the_variables(server, tmp_path, monkeypatch):
    # A file where a directory should be: it stops root as well, unlike permissions.
    monkeypatch.setenv("KERAS_HOME", str(put(tmp_path / "file")))
    with pytest.raises(
        NotADirectoryError, match=r"Cannot write .*Set KERAS_HOME .* KERAS_VIT_WEIGHTS"
    ):
        get(server.url())
    assert server.requests == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_cache_without_permission_is_a_permission_error(server, home):
    home.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match=r"Cannot write .*Set KERAS_HOME"):
        get(server.url())


# --- hashes, sizes and files that are there already
# -------------------------------------------------------------------


def test_file_that_changed_after_its_first_use_is_refused(server):
    path = get(server.url())
    path.write_bytes(npz_bytes(2.0))
    found = hashlib.sha256(npz_bytes(2.0)).hexdigest()
    with pytest.raises(
        ValueError, match=rf"'{path}' was changed: .* {found}, expected {SHA256}. Delete it"
    ):
        get(server.url())


def test_deleting_the_file_downloads_it_again(server):
    path = get(server.url())
    path.unlink()
    assert get(server.url()).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_second_download_must_have_the_pinned_hash(server):
    path = get(server.url())
    path.unlink()
    server.content = npz_bytes(2.0)
    with pytest.raises(
        ValueError, match=rf"expected {SHA256} for '{path}'. If the publisher.* delete '.*sha256'"
    ):
        get(server.url())
    assert everything_under(path.parent) == ["model.npz.sha256"]


def test_published_hash_counts_more_than_the_pinned_one(server):
    get(server.url())
    with pytest.raises(ValueError, match=f"expected {'0' * 64}"):
        get(row(server.url(), sha256="0" * 64))


def test_pin_that_is_no_hash_is_refused(server):
    path = get(server.url())
    path.with_name("model.npz.sha256").write_text("")
    with pytest.raises(ValueError, match=r"model.npz.sha256' contains no sha256. Delete it"):
        get(server.url())


def test_file_put_into_the_cache_by_hand_is_used_and_pinned(server):
    path = put(cache_path(server.url()))
    assert get(server.url()) == path
    assert server.requests == []
    assert path.with_name("model.npz.sha256").read_text().startswith(SHA256)


@pytest.mark.parametrize(
    ("number", "is_said"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EROFS, False)]
)
def test_a_hash_that_cannot_be_written_is_said_unless_the_cache_is_read_only(
    server, monkeypatch, caplog, number, is_said
):
    replacing = files.replacing

    def fail(path):
        if path.suffix == ".sha256":
            raise OSError(number, os.strerror(number))
        return replacing(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "replacing", fail)
        path = get(server.url())
    assert path.read_bytes() == CONTENT
    assert everything_under(path.parent) == ["model.npz"]
    said = f"Cannot write '{path}.sha256': {os.strerror(number)}. Changes of '{path}' will not be"
    assert (said in caplog.text) == is_said
    get(server.url())
    assert path.with_name("model.npz.sha256").read_text().startswith(SHA256)


def test_half_a_file_in_the_cache_is_refused_and_not_pinned(server):
    path = put(cache_path(server.url()), CONTENT[:-500])
    with pytest.raises(ValueError, match="model.npz.*truncated"):
        get(server.url())
    assert everything_under(path.parent) == ["model.npz"]


def test_file_in_the_cache_of_another_size_than_listed_is_refused(server):
    put(cache_path(server.url()), npz_bytes() + b"\0")
    with pytest.raises(
        ValueError,
        match=rf"has {len(CONTENT) + 1} bytes, but .* has {len(CONTENT)}.*Delete it to down",
    ):
        get(row(server.url()))


def test_size_within_the_listing_s_rounding_is_accepted(server):
    assert get(row(server.url(), bytes=len(CONTENT) + 100, bytes_tolerance=100)).exists()


def test_leftovers_of_killed_processes_are_removed_but_young_ones_are_not(server):
    directory = cache_path(server.url()).parent
    old, young = (
        put(directory / ".partial-00000000-1-model.npz"),
        put(directory / ".partial-00000000-2-model.npz"),
    )
    other = put(directory / ".partial-00000000-1-other.npz")
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(other, (long_ago, long_ago))
    get(server.url())
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


# --- the offline directory
# -------------------------------------------------------------------------------------------


def test_offline_directory_comes_before_the_cache_and_the_network(server, offline):
    put(cache_path(server.url("vit_models/sam/ViT-B_16.npz")), npz_bytes(2.0))
    path = put(offline / "sam" / "ViT-B_16.npz")
    assert get(row(server.url("vit_models/sam/ViT-B_16.npz"))) == path
    assert server.requests == []


def test_offline_file_without_its_directory_is_found(offline):
    wanted = catalog.lookup("ViT_H14", "imagenet21k")
    path = put_empty(offline / "ViT-H_14.npz", wanted.bytes)
    assert get(wanted) == path


def test_offline_directory_is_never_changed(offline):
    path = put(offline / "sam" / "ViT-B_16.npz")
    before = path.stat()
    get(row("https://example.org/sam/ViT-B_16.npz"))
    assert everything_under(offline) == ["ViT-B_16.npz"]
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_offline_file_of_a_known_url_is_found(offline):
    wanted = catalog.lookup("ViT_H14", "imagenet21k")
    path = put_empty(offline / "imagenet21k" / "ViT-H_14.npz", wanted.bytes)
    assert get("gs://vit_models/imagenet21k/ViT-H_14.npz") == path


def test_offline_file_of_an_unlisted_augreg_name_is_found(offline):
    name = "S_16-i21k-30ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
    path = put(offline / f"{name}.npz")
    assert get(catalog.lookup("ViT_S16", name)) == path


def test_offline_file_of_any_other_url_lies_under_its_host(offline):
    path = put(offline / "example.org" / "repo" / "model.npz")
    put(offline / "model.npz", npz_bytes(2.0))
    assert get("https://example.org/repo/model.npz") == path


def test_offline_file_is_checked_for_its_size(offline):
    put(offline / "ViT-H_14.npz")
    with pytest.raises(
        ValueError,
        match=rf"ViT-H_14.npz' has {len(CONTENT)} bytes, but imagenet21k/ViT-H_14.npz has 26",
    ):
        get(catalog.lookup("ViT_H14", "imagenet21k"))


def test_offline_file_is_checked_against_a_hash_beside_it(offline):
    path = put(offline / "sam" / "ViT-B_16.npz")
    path.with_name("ViT-B_16.npz.sha256").write_text("0" * 64)
    with pytest.raises(ValueError, match=f"sha256 is {SHA256}, expected {'0' * 64}"):
        get(row("https://example.org/sam/ViT-B_16.npz"))


def test_offline_file_whose_size_says_it_is_another_directory_s_is_passed_over(server, offline):
    sam = catalog.lookup("ViT_B16", "sam")
    put_empty(offline / "ViT-B_16.npz", sam.bytes)
    assert get(sam) == offline / "ViT-B_16.npz"
    wanted = dataclasses.replace(
        catalog.lookup("ViT_B16", "imagenet21k"), url=server.url("imagenet21k/ViT-B_16.npz")
    )
    server.mode = "missing"
    with pytest.raises(ValueError, match="The server answered 404"):
        get(wanted)


def test_offline_file_that_could_be_two_is_refused(offline):
    wanted = catalog.lookup("ViT_L32", "imagenet21k+imagenet2012")
    put_empty(offline / "ViT-L_32.npz", wanted.bytes)
    with pytest.raises(
        ValueError,
        match=r"could be imagenet21k\+imagenet2012/ViT-L_32.npz or sam/ViT-L_32.npz. Move",
    ):
        get(wanted)
    path = put_empty(offline / "sam" / "ViT-L_32.npz", wanted.bytes)
    assert get(catalog.lookup("ViT_L32", "sam")) == path


def test_offline_directory_without_the_file_falls_back_to_the_network(server, offline):
    assert get(server.url()).read_bytes() == CONTENT
    assert everything_under(offline) == []


def test_offline_directory_that_does_not_exist_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"KERAS_VIT_WEIGHTS='.*nowhere' is not a directory"):
        get("https://example.org/model.npz")


# --- two at once
# -----------------------------------------------------------------------------------------------------


def test_two_downloads_of_one_file_at_once_do_not_harm_each_other(server):
    server.mode = "two_at_a_time"
    found = []
    threads = [threading.Thread(target=lambda: found.append(get(server.url()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 2
    assert [path.read_bytes() for path in found] == [CONTENT, CONTENT]
    assert everything_under(found[0].parent) == ["model.npz", "model.npz.sha256"]


def test_killed_process_leaves_no_file_under_the_final_name(server, home):
    # The modules are loaded from their files: the package itself would import a framework.
    server.mode = "stalled"
    code = (
        "import sys, types\n"
        "for name, path in (('keras_vit', sys.argv[1]), ('keras_vit.weights', sys.argv[1] + "
        "'/weights')):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__path__ = [path]\n"
        "from keras_vit.weights.download import fetch\n"
        "fetch(sys.argv[2], progress=False)\n"
    )
    package = str(Path(download.__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", code, package, server.url()])
    path = cache_path(server.url())
    deadline = time.monotonic() + HUNG_SECONDS
    while not list(path.parent.glob(".partial-*")) and time.monotonic() < deadline:
        assert process.poll() is None, "the download ended"
        time.sleep(0.02)
    process.kill()
    process.wait()
    server.release.set()
    assert len(list(path.parent.glob(".partial-*-model.npz"))) == 1
    assert not path.exists()
    server.mode = "whole"
    assert get(server.url()).read_bytes() == CONTENT


# --- URLs without the name of a format
# --------------------------------------------------------------------------------


PAGE = b"<!DOCTYPE html><html>Please log in</html>"


@pytest.mark.parametrize(
    "path",
    ["models/download", "models/42", "file.bin", "weights.h5", "model.npz?token=1", "get.npz.part"],
)
def test_login_page_under_any_name_is_refused_and_asked_for_again(server, home, path):
    server.content = PAGE
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match=r"did not return the expected file, and nothing was stored: .*a web page",
        ):
            get(server.url(path))
    assert everything_under(home) == []
    server.content = CONTENT
    assert get(server.url(path)).read_bytes() == CONTENT
    assert len(server.requests) == 3


def test_file_of_any_kind_of_weights_is_kept_under_any_name(server, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file["layers/x"] = np.zeros(3)
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "model.safetensors")
    for number, name in enumerate(("model.h5", "model.safetensors")):
        server.content = (tmp_path / name).read_bytes()
        assert get(server.url(f"{number}/download")).read_bytes() == server.content


@pytest.mark.parametrize("format", ["npz", "h5", "safetensors"])
@pytest.mark.parametrize("path", ["model", "model.npz"])
def test_file_without_its_last_bytes_is_not_pinned_when_no_length_was_announced(
    server, home, tmp_path, format, path
):
    file = tmp_path / f"model.{format}"
    if format == "npz":
        files.write_npz(file, {"x": np.zeros(3)}, {"gelu": "exact", "grid": [2, 8]})
    elif format == "safetensors":
        files.write_safetensors(file, {"x": np.zeros(3)}, {"gelu": "exact", "grid": [2, 8]})
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(file, "w") as stream:
            stream["layers/x"] = np.zeros(3)
    server.mode, whole = "without_length", file.read_bytes()
    for cut in (1, 2, 10, 30):
        server.content = whole[:-cut]
        with pytest.raises(ValueError, match="nothing was stored: .*truncated"):
            get(server.url(path))
    assert everything_under(home) == []
    server.content = whole
    assert get(server.url(path)).read_bytes() == whole


def test_page_that_an_older_version_kept_and_pinned_is_refused_with_its_place(server):
    path = put(cache_path(server.url("models/download")), PAGE)
    path.with_name("download.sha256").write_text(f"{hashlib.sha256(PAGE).hexdigest()}  download\n")
    with pytest.raises(
        ValueError, match=rf"a web page.*stored as '{path}'. Delete it to download it again"
    ):
        get(server.url("models/download"))


# --- passwords
# --------------------------------------------------------------------------------------------------------


SECRET = "s3cr3t"


@pytest.mark.parametrize("mode", ["missing", "broken", "truncated", "whole", "nobody"])
@pytest.mark.parametrize(
    "form", ["http://me:{secret}@{rest}/model", "http://{rest}/model?sig={secret}&download=1"]
)
def test_no_message_shows_a_password(server, dead_url, capfd, mode, form):
    server.content, server.mode = PAGE * 20, mode if mode != "nobody" else "whole"
    rest = (dead_url if mode == "nobody" else server.url("")).split("/")[2]
    with pytest.raises((ValueError, ConnectionError)) as caught:
        fetch(form.format(secret=SECRET, rest=rest), progress=True)
    shown = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    assert "***" in shown and rest.split(":")[0] in shown
    assert SECRET not in shown


def test_password_of_what_is_no_file_s_url_is_not_shown():
    for url in (
        f"ftp://me:{SECRET}@host/model",
        f"https://me:{SECRET}@host/",
        f"file://me:{SECRET}@host/none?x={SECRET}",
        f"hf://me:{SECRET}@owner/model",
    ):
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            get(url)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.org/a/b.npz", "https://example.org/a/b.npz"),
        ("https://example.org/b.npz?download=true", "https://example.org/b.npz?download=true"),
        ("'https://me:a@b@example.org/b?x=1&y=2' is", "'https://***@example.org/b?***&***' is"),
        ("gs://me@bucket/b?token", "gs://***@bucket/b?***"),
        ("gs://bucket/b?token=it's\"s)e-cret", "gs://bucket/b?***"),
        ("gs://bucket/b?token=its'.secret&ref=a", "gs://bucket/b?***&ref=a"),
        ("gs://it's/b?token=secret", "gs://it's/b?***"),
        ("('gs://bucket/b?token=its').", "('gs://bucket/b?***')."),
        ("['gs://bucket/b?token=its', 1]", "['gs://bucket/b?***', 1]"),
        ("ViT-B_16@384.npz?", "ViT-B_16@384.npz?"),
        (
            "Max retries exceeded with url: /b?token=1 (Caused by x)",
            "Max retries exceeded with url: /b?*** (Caused by x)",
        ),
    ],
)
def test_what_is_left_of_a_url(text, expected):
    assert without_secrets(text) == expected


def test_a_command_line_in_a_report_shows_no_password():
    words = ["python", "a b.py", f"--weights=https://me:{SECRET}@host/b.npz?sig={SECRET}"]
    text = join_command(words)
    assert SECRET not in text and shlex.split(text)[:2] == words[:2]
    # whoever writes the command of this process uses it
    for folder in ("keras_vit", "experiments"):
        for path in (Path(__file__).parents[2] / folder).rglob("*.py"):
            assert not re.search(r"shlex\.join\([^)]*sys\.argv", path.read_text()), path
