"""EXIF orientation of a photo, read from the bytes of its file.

Pillow is not used, so that TensorFlow's operations (`keras_vit.data.turning`) can follow exactly the
same rules, also for damaged files. In a JPEG, the orientation is in the first segment "Exif" among
the application segments before the tables, within the first 4 kB; in a PNG, in the first chunk
eXIf. In both, it is the first entry of the first directory with the tag 0x0112, a 16-bit number,
within the first 4 kB of EXIF. All other files count as upright.

Source: CIPA DC-008 (Exif 2.32), 4.5-4.6; PNG (third edition), 11.3.4.5; TIFF 6.0, section 2.
"""

import numpy as np

UPRIGHT = 1
MAX_HEAD = 4096  # bytes of a JPEG; by the standard, EXIF is the first segment or follows JFIF
MAX_SEGMENTS = 64  # segments in these bytes
MAX_CHUNKS = 4096  # chunks of a PNG; programs write one per 8 kB, or one for the whole picture
# Bytes of EXIF. The first directory is at the start; previews and maker notes follow.
MAX_BLOCK = 4096
_TAG, _SHORT = 0x0112, 3
_ENTRY = 6  # words: tag, type, two words of the count, two words of the value
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n"


def orientation(file: bytes) -> int:
    """Returns the EXIF orientation of a JPEG or a PNG, 1 (upright) to 8; 1 for any other file.

    Example:
        >>> orientation(b"not a photo")
        1
    """
    if file.startswith(b"\xff\xd8\xff"):
        return orientation_in(_find_in_jpeg(file)) if b"Exif\0\0" in file[:MAX_HEAD] else UPRIGHT
    return orientation_in(_find_in_png(file)) if file.startswith(_PNG_BEGINS) else UPRIGHT


def orientation_in(block: bytes) -> int:
    """Returns the orientation in an EXIF block: a TIFF header and directories, perhaps after "Exif".

    Example:
        >>> orientation_in(b"MM\\0*\\0\\0\\0\\x08\\0\\x01\\x01\\x12\\0\\x03\\0\\0\\0\\x01\\0\\x06\\0\\0")
        6
    """
    block = block[:MAX_BLOCK].removeprefix(b"Exif\0\0")
    if block[:4] not in (b"II*\0", b"MM\0*"):
        return UPRIGHT
    order = "<" if block[:1] == b"I" else ">"
    words = np.frombuffer(block[: len(block) // 2 * 2], f"{order}u2").astype(int)
    start = int.from_bytes(block[4:8], "little" if order == "<" else "big")
    if len(words) < 4 or start % 2 or start // 2 >= len(words):
        return UPRIGHT
    start //= 2
    count = min(words[start], (len(words) - start - 1) // _ENTRY)
    for tag, kind, _, _, value, _ in (
        words[start + 1 :][: _ENTRY * count].reshape(-1, _ENTRY).tolist()
    ):
        if tag == _TAG:
            return value if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def _find_in_jpeg(file: bytes) -> bytes:
    place = 2
    for _ in range(MAX_SEGMENTS):
        # Any number of fill bytes may precede a marker.
        if file[place : place + 2] == b"\xff\xff":
            place += 1
            continue
        marker, length = file[place : place + 2], int.from_bytes(file[place + 2 : place + 4], "big")
        if (
            len(marker) < 2
            or marker[0] != 0xFF
            or not (0xE0 <= marker[1] <= 0xEF or marker[1] == 0xFE)
            or length < 2
        ):
            return b""
        if marker[1] == 0xE1 and file[place + 4 : place + 10] == b"Exif\0\0":
            return file[place + 10 : place + 2 + length]
        place += 2 + length
    return b""


def _find_in_png(file: bytes) -> bytes:
    place = len(_PNG_BEGINS)
    for _ in range(MAX_CHUNKS):
        length, kind = int.from_bytes(file[place : place + 4], "big"), file[place + 4 : place + 8]
        if len(kind) < 4 or kind == b"IEND":
            return b""
        if kind == b"eXIf":
            return file[place + 8 : place + 8 + min(length, MAX_BLOCK)]
        place += 12 + length
    return b""


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undoes the rotation and mirroring of an orientation, as a view of the same pixels.

    Args:
        pixels: (H, W, ...).
        orientation: 1 to 8.

    Example:
        >>> upright(np.array([[1, 2], [3, 4]]), 6).tolist()
        [[3, 1], [4, 2]]
    """
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels
