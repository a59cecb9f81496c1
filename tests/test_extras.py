"""What errors say about packages that are not installed."""

from importlib import metadata

import pytest

from keras_vit import extras

pytestmark = pytest.mark.once

FIXTURE = [
    "numpy>=1.26",
    'a>=1; extra == "one"',
    'keras-vit[one,two]; extra == "all"',
    'b; extra == "two"',
]


def test_the_packages_of_an_extra_are_named_and_those_of_extras_in_it(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: FIXTURE)
    assert extras.install("one") == 'pip install "a>=1"'
    assert extras.install("all") == 'pip install "a>=1" "b"'


def test_without_an_installation_the_clone_is_named(monkeypatch):
    def not_found(name: str):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_found)
    assert extras.install("onnx") == 'pip install ".[onnx]" in a clone of the package'


def test_every_extra_has_packages_and_none_is_this_package():
    for extra in metadata.metadata("keras-vit").get_all("Provides-Extra"):
        command = extras.install(extra)
        assert command.startswith('pip install "') and "keras-vit" not in command


def test_an_error_names_the_part_the_command_and_the_reason():
    error = extras.absent(
        "openvino", "OpenVINO is not installed", ImportError("No module named 'openvino'")
    )
    assert str(error).startswith('OpenVINO is not installed: pip install "openvino')
    assert str(error).endswith("(No module named 'openvino')")
