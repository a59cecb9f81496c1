"""What a `.tflite` file carries: read back with zipfile, and by a reader of FlatBuffers that is
written out here.
"""

import io
import json
import struct
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_vit.export.tflite_metadata import with_metadata

pytestmark = pytest.mark.tensorflow

TAKEN = {"image_size": [4, 6], "range": [-1, 1], "dtype": "float32"}
FACTS = {"model": "tiny", "licence": "Apache-2.0", "input": TAKEN, "output": {"name": "logits"}}
LABELS = ["cat", "Bär", "a, b | c"]
IMAGES = np.random.default_rng(0).uniform(-1, 1, (1, 4, 6, 3)).astype("float32")


@pytest.fixture(scope="module")
def bare() -> bytes:
    """A file of the colour that is greatest: the mean of each channel."""
    mean = tf.function(lambda images: {"logits": tf.reduce_mean(images, [1, 2])})
    traced = mean.get_concrete_function(tf.TensorSpec((None, 4, 6, 3), tf.float32, "images"))
    return tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module()).convert()


def answer(content: bytes) -> np.ndarray:
    interpreter = Interpreter(model_content=content)
    return interpreter.get_signature_runner()(images=IMAGES)["logits"]


def test_the_zip_archive_holds_labels_and_facts(bare: bytes):
    with zipfile.ZipFile(io.BytesIO(with_metadata(bare, FACTS, LABELS))) as zipped:
        assert zipped.testzip() is None
        assert zipped.read("labels.txt").decode().splitlines() == LABELS
        assert json.loads(zipped.read("keras_vit.json")) == FACTS
        assert sorted(zipped.namelist()) == ["keras_vit.json", "labels.txt"]


def test_a_described_file_gives_what_it_gave(bare: bytes):
    assert not zipfile.is_zipfile(io.BytesIO(bare))
    np.testing.assert_array_equal(answer(with_metadata(bare, FACTS, LABELS)), answer(bare))
    np.testing.assert_allclose(answer(bare), IMAGES.mean((1, 2)), atol=1e-6)


def test_other_metadata_stays(bare: bytes):
    before, after = buffers(bare), buffers(with_metadata(bare, FACTS, LABELS))
    assert "min_runtime_version" in before and "TFLITE_METADATA" not in before
    assert after.keys() == before.keys() | {"TFLITE_METADATA"}
    assert all(after[name] == content for name, content in before.items())


def test_without_classes_there_are_no_labels(bare: bytes):
    content = with_metadata(bare, {**FACTS, "output": {"name": "features"}}, [])
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        assert zipped.namelist() == ["keras_vit.json"]
    output = Table.root(buffers(content)["TFLITE_METADATA"]).tables(3)[0].tables(3)[0]
    assert output.text(0) == "features" and not output.has(6)


# Places of the fields in tables of metadata_schema.fbs, counted once more: ModelMetadata (name,
# description, version, subgraph_metadata, author, license, associated_files, min_parser_version),
# SubGraphMetadata (name, description, input_tensor_metadata, output_tensor_metadata),
# TensorMetadata (name, description, dimension_names, content, process_units, stats,
# associated_files). A union takes two places: its kind, and its table.


def test_the_schema_of_tensorflow_is_followed(bare: bytes):
    buffer = buffers(with_metadata(bare, FACTS, LABELS))["TFLITE_METADATA"]
    assert buffer[4:8] == b"M001"
    model = Table.root(buffer)
    assert (model.text(0), model.text(5), model.text(7)) == ("tiny", "Apache-2.0", "1.0.0")
    assert "RGB images of 4 x 6 pixels, float32 from -1 to 1" in model.text(1)
    (subgraph,) = model.tables(3)
    (taken,), (given,) = subgraph.tables(2), subgraph.tables(3)
    (file,) = given.tables(6)
    assert (taken.text(0), given.text(0), file.text(0)) == ("images", "logits", "labels.txt")
    assert file.number(2, "<b") == 2  # TENSOR_AXIS_LABELS


@pytest.mark.parametrize(("least", "mean", "std"), [(-1, 127.5, 127.5), (0, 0.0, 1.0)])
def test_pixels_less_the_mean_over_std_are_what_the_file_takes(
    bare: bytes, least: int, mean: float, std: float
):
    greatest = 1 if least else 255
    facts = {**FACTS, "input": {**TAKEN, "range": [least, greatest]}}
    model = Table.root(buffers(with_metadata(bare, facts, LABELS))["TFLITE_METADATA"])
    taken = model.tables(3)[0].tables(2)[0]
    (unit,), stats, content = taken.tables(4), taken.table(5), taken.table(3)
    assert unit.number(0, "<B") == 1  # NormalizationOptions
    assert (unit.table(1).floats(0), unit.table(1).floats(1)) == ([mean], [std])
    assert ([0 - mean], [255 - mean]) == ([least * std], [greatest * std])
    assert (stats.floats(0), stats.floats(1)) == ([greatest], [least])
    assert content.number(0, "<B") == 2  # ImageProperties
    image = content.table(1)
    assert image.number(0, "<b") == 1  # RGB
    # width, then height
    assert (image.table(1).number(0, "<I"), image.table(1).number(1, "<I")) == (6, 4)


def test_what_is_missing_is_named_with_what_to_install(bare: bytes, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match="pip install .*ai-edge-litert"):
        with_metadata(bare, FACTS, LABELS)


class Table:
    """A table of a FlatBuffer, read by the rules of flatbuffers.dev/internals."""

    def __init__(self, buffer: bytes, at: int):
        self.buffer, self.at = buffer, at

    @classmethod
    def root(cls, buffer: bytes) -> "Table":
        return cls(buffer, struct.unpack_from("<I", buffer)[0])

    def _place(self, field: int) -> int:
        places = self.at - struct.unpack_from("<i", self.buffer, self.at)[0]
        size = struct.unpack_from("<H", self.buffer, places)[0]
        at = 4 + 2 * field
        return struct.unpack_from("<H", self.buffer, places + at)[0] if at < size else 0

    def has(self, field: int) -> bool:
        return self._place(field) > 0

    def number(self, field: int, kind: str) -> int:
        assert self.has(field)
        return struct.unpack_from(kind, self.buffer, self.at + self._place(field))[0]

    def _target(self, field: int) -> int:
        return self.at + self._place(field) + self.number(field, "<I")

    def _vector(self, field: int) -> tuple[int, int]:
        at = self._target(field)
        return at + 4, struct.unpack_from("<I", self.buffer, at)[0]

    def content(self, field: int) -> bytes:
        if not self.has(field):
            return b""
        at, length = self._vector(field)
        return self.buffer[at : at + length]

    def text(self, field: int) -> str:
        return self.content(field).decode()

    def floats(self, field: int) -> list[float]:
        at, length = self._vector(field)
        return list(struct.unpack_from(f"<{length}f", self.buffer, at))

    def table(self, field: int) -> "Table":
        return Table(self.buffer, self._target(field))

    def tables(self, field: int) -> list["Table"]:
        at, length = self._vector(field)
        places = [at + 4 * index for index in range(length)]
        return [
            Table(self.buffer, place + struct.unpack_from("<I", self.buffer, place)[0])
            for place in places
        ]


def buffers(content: bytes) -> dict[str, bytes]:
    """The named buffers of a `.tflite` file: Model has its buffers in place 4 and its metadata in
    place 6.
    """
    model = Table.root(content)
    held = model.tables(4)
    return {entry.text(0): held[entry.number(1, "<I")].content(0) for entry in model.tables(6)}


def test_a_path_that_is_no_utf_8_is_written_as_an_escape(bare: bytes):
    facts = {**FACTS, "model": "mine\udce9.keras"}
    with zipfile.ZipFile(io.BytesIO(with_metadata(bare, facts, LABELS))) as zipped:
        assert json.loads(zipped.read("keras_vit.json")) == facts


def test_no_folder_of_the_machine_goes_to_the_phone(bare: bytes):
    facts = {
        **FACTS,
        "model": "/home/me/secret plans/mine.keras",
        "judged": {"images": "/home/me/photos", "left_out": ["/home/me/photos/x.jpg: truncated"]},
        "judged_on": "/home/me/photos",
    }
    content = with_metadata(bare, facts, LABELS)
    assert b"/home" not in content and b"secret plans" not in content
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        assert zipped.testzip() is None
        packed = b"".join(zipped.read(name) for name in zipped.namelist())
        found = json.loads(zipped.read("keras_vit.json"))
    assert b"/home" not in packed
    assert (found["model"], found["judged_on"]) == ("mine.keras", "photos")
    assert found["judged"] == {"images": "photos", "left_out": ["x.jpg: truncated"]}
