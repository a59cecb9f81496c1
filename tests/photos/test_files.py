"""Which files are photos: one rule, and a reason for everything else."""

import errno
import os
import socket
from pathlib import Path

import pytest

from keras_vit.photos import FORMATS, is_ignored, is_photo, walk


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def found(root: Path) -> tuple[list[str], dict[str, str]]:
    photos, left_out = walk(root)
    return (
        [path.relative_to(root).as_posix() for path in photos],
        {left.path.relative_to(root).as_posix(): left.reason for left in left_out},
    )


def test_photos_of_all_formats_are_found_at_any_depth_in_the_order_of_their_names(tmp_path: Path):
    suffixes = [suffix for suffixes in FORMATS.values() for suffix in suffixes]
    make(
        tmp_path,
        *(f"a/{'b/' * depth}x{suffix.upper()}" for depth, suffix in enumerate(suffixes)),
        "a.jpg",
        "a b/1.png",
    )
    photos, left_out = found(tmp_path)
    assert len(photos) == len(suffixes) + 2 and left_out == {}
    assert [Path(name) for name in photos] == sorted(map(Path, photos))


def test_every_usual_suffix_of_a_format_is_known():
    """Those that Pillow knows, except that of animated PNG."""
    Image = pytest.importorskip("PIL.Image")
    pillow = {"JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"}
    suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in pillow}
    assert [suffix for suffix in suffixes - {".apng"} if not is_photo(f"x{suffix}")] == []


def test_what_systems_leave_behind_is_neither_read_nor_counted(tmp_path: Path):
    make(
        tmp_path,
        "._1.jpg",
        ".DS_Store",
        "Thumbs.db",
        "THUMBS.DB",
        "desktop.ini",
        "__MACOSX/1.jpg",
        ".git/2.jpg",
        "1.jpg",
    )
    assert found(tmp_path) == (["1.jpg"], {})
    assert (
        is_ignored("__MACOSX")
        and not is_ignored("macosx.jpg")
        and is_photo("A.JFIF")
        and not is_photo("jpg")
    )


def test_a_folder_with_the_name_of_a_photo_is_a_folder(tmp_path: Path):
    make(tmp_path, "x.jpg/y.png", "x.jpg/z.jpg/1.gif")
    assert found(tmp_path) == (["x.jpg/y.png", "x.jpg/z.jpg/1.gif"], {})


def test_everything_else_is_named_with_its_reason(tmp_path: Path):
    make(tmp_path, "notes.TXT", "README", "a/b.svg", "ok.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "broken.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "round.jpg").symlink_to("round.jpg")
    photos, reasons = found(tmp_path)
    assert photos == ["ok.jpg"]
    assert reasons.pop("round.jpg").startswith("a broken link: ")
    assert reasons == {
        "README": "no suffix",
        "a/b.svg": "not a photo by its suffix, .svg",
        "broken.jpg": "a broken link: No such file or directory",
        "notes.TXT": "not a photo by its suffix, .txt",
        "pipe.jpg": "neither a file nor a folder",
    }


def test_links_are_followed_once_and_loops_end(tmp_path: Path):
    make(tmp_path, "root/b/1.jpg", "outside/2.jpg", "outside/deep/3.png")
    root = tmp_path / "root"
    (root / "a").symlink_to("b")  # it is read where it lies, though its name comes later
    (root / "c").symlink_to(tmp_path / "outside")
    (root / "d").symlink_to(tmp_path / "outside" / "deep")
    (root / "b" / "up").symlink_to(root)
    (root / "link.jpg").symlink_to("b/1.jpg")
    again = "a folder that was already read under another path"
    photos, reasons = found(root)
    assert photos == ["b/1.jpg", "c/2.jpg", "c/deep/3.png", "link.jpg"]
    assert reasons == {"a": again, "b/up": again, "d": again}


def test_names_may_be_anything(tmp_path: Path):
    names = [
        "a\nb.jpg",
        "tab\t.png",
        "é 猫.gif",
        "-v.bmp",
        "x" * 200 + ".webp",
        os.fsdecode(b"\xff\xfe.jpg"),
    ]
    make(tmp_path, *names)
    assert sorted(found(tmp_path)[0]) == sorted(names)


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, "closed/1.jpg", "2.jpg")
    scandir = os.scandir

    def refuse(path):  # for root too, who may read every folder
        if os.path.basename(path) == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert found(tmp_path) == (
            ["2.jpg"],
            {"closed": "the folder cannot be read: Permission denied"},
        )


def test_a_socket_is_no_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # addresses of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.jpg")
        assert walk(".").left_out == [(Path("s.jpg"), "neither a file nor a folder")]
