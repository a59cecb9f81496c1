"""Metadata of a `.tflite` file: class names, range of the pixels, origin.

A file follows two conventions. A buffer named TFLITE_METADATA contains a FlatBuffer of TensorFlow's
schema "M001", which the image classifiers of Android and iOS read. A zip archive after the graph
contains `labels.txt` and `keras_vit.json`. Runtimes ignore it, and any zip program opens the file.

Source: tensorflow/tflite-support 0.4.4, tensorflow_lite_support/metadata/metadata_schema.fbs. Field
numbers are positions in its tables.
"""

import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.metadata import FILE, as_json
from keras_vit.extras import absent
from keras_vit.writing import to_one_line

LABELS_FILE = "labels.txt"
_BUFFER_NAME = "TFLITE_METADATA"
_IDENTIFIER = b"M001"
_PARSER_VERSION = "1.0.0"  # the first version with all fields used here
# Members of the schema's unions and enumerations.
_IMAGE_PROPERTIES, _NORMALIZATION_OPTIONS, _RGB, _TENSOR_AXIS_LABELS = 2, 1, 1, 2

Add = Callable[[int], None]
_NEEDS = "A .tflite file needs more packages"


def with_metadata(content: bytes, facts: Mapping[str, Any], labels: Sequence[str]) -> bytes:
    """Adds metadata to the content of a `.tflite` file.

    Args:
        content: Content of a `.tflite` file with one input and one output.
        facts: Metadata that JSON can store, with "model", "input": {"image_size", "range", "dtype"}
            and "output": {"name"}; see `keras_vit.export.metadata.describe`. "licence" is also
            written to the field of the schema. Of absolute paths, only the names are written: the
            file leaves this machine.
        labels: Class names, without line breaks; empty if the model has none.

    Raises:
        ImportError: If flatbuffers or ai_edge_litert is absent.
    """
    facts = _without_folders(facts)
    described = _add_buffer(content, _encode_metadata(facts, labels))
    files = {FILE: as_json(facts)}
    if labels:
        files[LABELS_FILE] = "".join(f"{label}\n" for label in labels).encode()
    archive = io.BytesIO(described)
    with zipfile.ZipFile(archive, "a") as zipped:  # "a": after the existing content
        for name, text in files.items():
            zipped.writestr(name, text)
    return archive.getvalue()


def _without_folders(facts: Any) -> Any:
    """Returns metadata in which absolute paths are replaced by the names of their files."""
    if isinstance(facts, Mapping):
        return {name: _without_folders(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_without_folders(value) for value in facts]
    return Path(facts).name if isinstance(facts, str) and os.path.isabs(facts) else facts


def _add_buffer(content: bytes, metadata: bytes) -> bytes:
    try:
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema
    except ImportError as error:
        raise absent("tflite", _NEEDS, error) from error
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    for held in model.buffers:
        # ai-edge-quantizer puts large buffers after the graph, at offsets that change here: move
        # them into the graph.
        if held.offset > 1:
            held.data = np.frombuffer(content, np.uint8, held.size, held.offset)
            held.offset = held.size = 0
    entry = schema.MetadataT()
    entry.name, entry.buffer = _BUFFER_NAME, len(model.buffers)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(metadata, np.uint8)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(content) + len(metadata))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _encode_metadata(facts: Mapping[str, Any], labels: Sequence[str]) -> bytes:
    """Encodes ModelMetadata with one subgraph, which has one input and one output."""
    tables = _Tables()
    subgraph = tables.table(
        {
            2: tables.offset(tables.vector([_add_input(tables, facts["input"])])),
            3: tables.offset(tables.vector([_add_output(tables, facts["output"]["name"], labels)])),
        }
    )
    words = {
        0: facts["model"],
        1: _describe(facts["input"]),
        5: facts.get("licence"),
        7: _PARSER_VERSION,
    }
    fields = {
        number: tables.offset(tables.text(to_one_line(str(word))))
        for number, word in words.items()
        if word
    }
    return tables.finished(tables.table({**fields, 3: tables.offset(tables.vector([subgraph]))}))


def _describe(taken: Mapping[str, Any]) -> str:
    (height, width), (least, greatest) = taken["image_size"], taken["range"]
    return (
        f"Classifies RGB images of {height} x {width} pixels, {taken['dtype']} from {least} to "
        f"{greatest}. For details, open this file as a zip archive and read {FILE}."
    )


def _add_input(tables: "_Tables", taken: Mapping[str, Any]) -> int:
    """Adds TensorMetadata of the images, and returns its offset."""
    # The graph takes `(pixel - mean) / std`, for pixels from 0 to 255.
    least, greatest = taken["range"]
    std = 255 / (greatest - least)
    mean = -least * std
    height, width = taken["image_size"]
    size = tables.table({0: tables.uint32(width), 1: tables.uint32(height)})
    image = tables.table({0: tables.int8(_RGB), 1: tables.offset(size)})
    content = tables.table({0: tables.uint8(_IMAGE_PROPERTIES), 1: tables.offset(image)})
    options = tables.table(
        {0: tables.offset(tables.floats([mean])), 1: tables.offset(tables.floats([std]))}
    )
    unit = tables.table({0: tables.uint8(_NORMALIZATION_OPTIONS), 1: tables.offset(options)})
    stats = tables.table(
        {0: tables.offset(tables.floats([greatest])), 1: tables.offset(tables.floats([least]))}
    )
    name = tables.text("images")
    fields = {0: name, 3: content, 4: tables.vector([unit]), 5: stats}
    return tables.table({number: tables.offset(at) for number, at in fields.items()})


def _add_output(tables: "_Tables", name: str, labels: Sequence[str]) -> int:
    """Adds TensorMetadata of the output, and returns its offset."""
    fields = {0: tables.text(name)}
    if labels:
        file_name = tables.text(LABELS_FILE)
        # The labels name the indices of the last axis.
        file = tables.table({0: tables.offset(file_name), 2: tables.int8(_TENSOR_AXIS_LABELS)})
        fields[6] = tables.vector([file])
    return tables.table({number: tables.offset(at) for number, at in fields.items()})


class _Tables:
    """A FlatBuffer under construction. Add children before their parents."""

    def __init__(self):
        try:
            import flatbuffers
        except ImportError as error:
            raise absent("tflite", _NEEDS, error) from error
        self._builder = flatbuffers.Builder(1024)

    def text(self, text: str) -> int:
        return self._builder.CreateString(text)

    def floats(self, values: Sequence[float]) -> int:
        return self._builder.CreateNumpyVector(np.array(values, np.float32))

    def vector(self, tables: Sequence[int]) -> int:
        self._builder.StartVector(4, len(tables), 4)  # an offset has 4 bytes
        for table in reversed(tables):
            self._builder.PrependUOffsetTRelative(table)
        return self._builder.EndVector()

    def table(self, fields: Mapping[int, Add]) -> int:
        """Adds a table and returns its offset; `fields` maps field numbers to functions that add."""
        self._builder.StartObject(max(fields) + 1)
        for number, add in fields.items():
            add(number)
        return self._builder.EndObject()

    def offset(self, at: int) -> Add:
        return lambda number: self._builder.PrependUOffsetTRelativeSlot(number, at, 0)

    def uint32(self, value: int) -> Add:
        return lambda number: self._builder.PrependUint32Slot(number, value, 0)

    def uint8(self, value: int) -> Add:
        return lambda number: self._builder.PrependUint8Slot(number, value, 0)

    def int8(self, value: int) -> Add:
        return lambda number: self._builder.PrependInt8Slot(number, value, 0)

    def finished(self, root: int) -> bytes:
        self._builder.Finish(root, file_identifier=_IDENTIFIER)
        return bytes(self._builder.Output())
