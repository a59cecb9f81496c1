"""Data sets on the disk: found in any version that will do, read record by record, refused with the
way out.
"""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

from keras_vit.data import prepared  # noqa: E402

pytestmark = pytest.mark.tensorflow


class Marks(tfds.core.GeneratorBasedBuilder):
    """Ten numbers in the training set, and three in the test set."""

    VERSION = tfds.core.Version("2.0.0")
    SUPPORTED_VERSIONS = [tfds.core.Version("2.1.0")]

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict({"number": tfds.features.Scalar(np.int64)})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 10), "test": self._generate_examples(10, 13)}

    def _generate_examples(self, first, last):
        for number in range(first, last):
            yield number, {"number": number}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Marks 2.1.0 in three files, though the library would prepare 2.0.0."""
    path = tmp_path_factory.mktemp("tfds")
    in_three = tfds.download.DownloadConfig(num_shards=3)
    Marks(data_dir=path, version="2.1.0").download_and_prepare(
        file_format="tfrecord", download_config=in_three
    )
    return path


def test_a_version_with_stars_finds_what_is_on_the_disk(folder, tmp_path):
    assert prepared.is_prepared("marks:2.*.*", folder) and prepared.is_prepared(
        "marks:2.1.0", folder
    )
    assert not prepared.is_prepared("marks", folder)  # the library's own: 2.0.0
    assert not prepared.is_prepared("marks:2.*.*", tmp_path)
    assert str(prepared.prepare("marks:2.*.*", folder).info.version) == "2.1.0"


def test_what_is_not_there_is_prepared(tmp_path):
    assert str(prepared.prepare("marks:2.*.*", tmp_path).info.version) == "2.0.0"
    assert prepared.is_prepared("marks", tmp_path)


def test_what_is_known_of_a_data_set_is_not_taken_for_the_data(tmp_path, monkeypatch):
    """Older versions of the library fetch sizes and splits of a data set that is not there."""

    def no_network(self, **_):
        raise OSError("no network")

    known = prepared.prepare("marks", tmp_path / "there").data_path
    monkeypatch.setattr(
        tfds.core.DatasetInfo,
        "initialize_from_bucket",
        lambda self: self.read_from_directory(known),
    )
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", no_network)
    here = tmp_path / "here"
    assert tfds.builder("marks", data_dir=here).info.splits
    assert not prepared.is_prepared("marks", here)
    with pytest.raises(
        ValueError,
        match="marks is not in .* cannot be prepared here: OSError: no network. Prepare it",
    ):
        prepared.prepare("marks", here)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("marcs:2.*.*", "has no 'marcs:2.*.*'. Did you mean marks"),
        ("marks:7.*.*", "has no 'marks:7.*.*': .*only: 2.0.0, 2.1.0"),
        (
            "eurosat/infrared:2.*.*",
            "has no 'eurosat/infrared:2.*.*': .*BuilderConfig infrared not found",
        ),
    ],
)
def test_what_there_is_not_is_said(name, message, tmp_path):
    for function in (prepared.prepare, prepared.is_prepared):
        with pytest.raises(ValueError, match=message.replace("*.*'", r"\*\.\*'")):
            function(name, tmp_path)


def test_another_format_is_refused(tmp_path):
    pytest.importorskip("array_record")
    Marks(data_dir=tmp_path).download_and_prepare(file_format="array_record")
    assert prepared.is_prepared("marks", tmp_path)
    with pytest.raises(
        ValueError, match="marks was prepared as array_record in .*. Expected TFRecords"
    ):
        prepared.prepare("marks", tmp_path)


@pytest.mark.parametrize("split", ["train", "test", "train[2:9]", "train[:1]+test[1:]"])
def test_records_are_those_that_tensorflow_reads(split, folder):
    builder = prepared.prepare("marks:2.*.*", folder)
    found = prepared.records(builder, split)
    read = found.reader()
    ours = [bytes(read(tf.constant(index, tf.int64)).numpy()) for index in range(len(found))]
    train, test = (
        [
            *tf.data.TFRecordDataset(
                sorted(map(str, folder.rglob(f"*-{part}.tfrecord-*")))
            ).as_numpy_iterator()
        ]
        for part in ("train", "test")
    )
    assert len(train) == 10 and len(test) == 3
    assert ours == {"train": train, "test": test, "train[2:9]": train[2:9]}.get(
        split, train[:1] + test[1:]
    )


def test_a_place_is_a_file_and_a_byte(folder):
    found = prepared.records(prepared.prepare("marks:2.*.*", folder), "train")
    assert found.locate(0).endswith("-00000-of-00003 at byte 12")
    assert found.locate(9).startswith(f"{folder}") and "-00002-of-00003 at byte " in found.locate(9)
    assert len({found.locate(index) for index in range(10)}) == 10


def test_a_split_that_there_is_not_is_said_with_the_sizes_of_the_others(folder):
    builder = prepared.prepare("marks:2.*.*", folder)
    for split in ("validation", "train[:11]"):
        with pytest.raises(
            ValueError, match=rf"has no split '{split[:5]}.*Splits: train \(10\), test \(3\)"
        ):
            prepared.records(builder, split)
    with pytest.raises(ValueError, match="marks/2.1.0 train.3:3. has no examples"):
        prepared.records(builder, "train[3:3]")
