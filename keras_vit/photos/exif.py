"""How a camera was held, as a photo notes it: EXIF orientation, read from the bytes of a file.

It is read here rather than by Pillow, so that TensorFlow's operations (`keras_vit.data.turning`)
can follow the same rules to the letter, on damaged files too. They are those of well-formed files:
of a JPEG, the first segment "Exif" among the application segments that precede the tables, in its
first 4 kB; of a PNG, the first chunk eXIf; in either, the first entry of the first directory with
the tag 0x0112, a number of 16 bits, in the first 4 kB of EXIF. Whatever departs from that is an
upright photo.

Source: CIPA DC-008 (Exif 2.32), 4.5-4.6; PNG (third edition), 11.3.4.5; TIFF 6.0, section 2.
"""

import numpy as np

UPRIGHT = 1
MAX_HEAD = 4096  # bytes of a JPEG; EXIF is to be the first segment, or the one behind JFIF
MAX_SEGMENTS = 64  # in these
MAX_CHUNKS = 4096  # of a PNG; writers make one of each 8 kB, or of the whole picture
# bytes of EXIF; the first directory stands at the beginning, previews and notes of makers behind
MAX_BLOCK = 4096
_TAG, _SHORT = 0x0112, 3
_ENTRY = 6  # words: tag, type, two of the count, two of the value
_PNG_BEGINS = b"\x89PNG\r\n\x1a\n"


def orientation(file: bytes) -> int:
    """Returns the EXIF orientation of a JPEG or a PNG, 1 (upright) to 8; 1 of any other file.

    Example:
        >>> orientation(b"not a photo")
        1
    """
    if file.startswith(b"\xff\xd8\xff"):
        return orientation_in(_of_jpeg(file)) if b"Exif\0\0" in file[:MAX_HEAD] else UPRIGHT
    return orientation_in(_of_png(file)) if file.startswith(_PNG_BEGINS) else UPRIGHT


def orientation_in(block: bytes) -> int:
    """Returns the orientation that a block of EXIF says: a TIFF header and its directories, with or
    without "Exif".

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


def _of_jpeg(file: bytes) -> bytes:
    place = 2
    for _ in range(MAX_SEGMENTS):
        # a marker may be preceded by any number of these
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


def _of_png(file: bytes) -> bytes:
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
    """Undoes the turning and mirroring of an orientation; a view of the same pixels.

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
