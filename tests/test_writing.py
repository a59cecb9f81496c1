"""Files that appear whole, and JSON that is JSON."""

import json
import math
import re
from pathlib import Path

import pytest

from keras_vit.writing import write_json


def test_json_comes_back(tmp_path: Path):
    content = {"a": [1, 2.5, None, True], "b": {"c": "text"}}
    write_json(tmp_path / "x.json", content)
    assert json.loads((tmp_path / "x.json").read_text()) == content


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_named_and_nothing_is_written(tmp_path: Path, number: float):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=re.escape("is not written: a.b.1, c is NaN or infinite")):
        write_json(path, {"a": {"b": [0.5, number]}, "c": number, "d": 1.0})
    assert path.read_text() == "{}" and list(tmp_path.iterdir()) == [path]
