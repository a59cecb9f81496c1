"""Models of one block: a second one would be traced, converted and judged like the first."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from keras_vit.variants import ViTVariant


@pytest.fixture
def tiny_vit(tiny_vit: "ViTVariant") -> "ViTVariant":
    return replace(tiny_vit, depth=1)
