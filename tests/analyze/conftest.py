"""Figures as objects, where what is written in them matters and not how it looks."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would have been drawn; their files are empty."""
    found: list[Any] = []

    def keep(figure: Any, path: Path, **_: Any) -> None:
        found.append(figure)
        path.touch()

    monkeypatch.setattr(pytest.importorskip("matplotlib.figure").Figure, "savefig", keep)
    return found
