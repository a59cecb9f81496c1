"""What a piece of code does to files, in order: for tests that what is kept is on the disk before
it takes its name.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def record(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Returns a list that grows by ("synced", file), ("synced folder", folder) and ("renamed", new
    name), names alone.

    A file counts as synced only with all that was written to it: not if Python still holds a part
        of it back.
    """
    events: list[tuple[str, str]] = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        kind = (
            "synced folder"
            if path.is_dir()
            else "synced"
            if path.stat().st_size
            else "synced empty"
        )
        events.append((kind, path.name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, _noted(getattr(os, name), events))
    return events


def _noted(rename: Callable, events: list[tuple[str, str]]) -> Callable:
    def renamed(source, target):
        events.append(("renamed", Path(target).name))
        return rename(source, target)

    return renamed
