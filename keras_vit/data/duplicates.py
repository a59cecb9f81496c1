"""Finds, reports and drops training images that are also in a test set.

The search has three steps, each on the results of the previous one:
    1. Hash: the signs of 63 low frequencies of each image, and of its mirror image. Each image is
       read once, in parallel, and 8 bytes of it are stored.
    2. Candidates: pairs of hashes that differ in few bits, without comparing all pairs.
    3. Pixels: small copies of the candidates are compared in colour, to keep similar but different
       images.

The search finds copies that were re-encoded, resized, mirrored, or slightly brightened or tinted.
It does not find copies that were cropped, shifted or rotated, because the hash depends on the whole
frame.

Source: the pre-training data of arXiv:2010.11929 (section 4.1) do not contain the test images; the
    steps are ours. The hash is pHash (Zauner 2010), with signs as bits; the search is multi-index
    hashing (arXiv:1307.2982).
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import Source
from keras_vit.data.transforms import decode

# Copies of photographs (JPEG quality 30, half and double size, brighter) differed from their
# originals in at most 5 bits; nearly all copies of images of 32 pixels in at most 8. Unrelated
# images differ in about 32 bits.
MAX_DISTANCE = 8
# Copies of photographs were above 0.97. Of CIFAR-10's training and test images, all pairs at or
# above this value showed the same photograph; the most similar different images were at 0.933.
MIN_SIMILARITY = 0.94

_HASH_SIDE, _FREQUENCIES, _THUMBNAIL_SIDE, _PICTURE_SIDE = 32, 8, 16, 96
# Rounding to whole grey levels changes a coefficient by less than this. Smaller coefficients count
# as 0, so that hashes of uniform images are equal.
_FAINTEST = 1.0
_NOISE = 4.0  # variance, in squared grey levels, that rounding and compression may add
_COLOUR_WEIGHT = 0.02
_BANDS, _BAND_BITS = 4, 16
# With a larger distance the search compares a large part of all pairs, and finds random matches.
_LARGEST_DISTANCE = 15
_MAX_CANDIDATES = 64  # per training image: thousands of uniform images may share a hash
_BATCH_SIZE, _PAIRS_AT_ONCE, _PROBES_AT_ONCE = 256, 2**13, 2**20


class DuplicatePair(NamedTuple):
    """A training image and a test image that match.

    `distance` is in bits of the hash, `similarity` is that of the pixels.
    """

    train_index: int
    test_index: int
    distance: int
    similarity: float
    mirrored: bool
    train_place: str
    test_place: str


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """The result of `find_duplicates`.

    Attributes:
        pairs: Pairs, sorted by training index, then by test index.
        unreadable: Names of the images of both sources that could not be read and compared.
        num_crowded: Number of training images with so many candidates that only the nearest 64 were
            compared by pixels.
    """

    train_name: str
    test_name: str
    num_train: int
    num_test: int
    max_distance: int
    min_similarity: float
    pairs: tuple[DuplicatePair, ...]
    unreadable: tuple[str, ...]
    num_crowded: int

    @property
    def train_indices(self) -> tuple[int, ...]:
        """The indices of the training examples to drop, in ascending order."""
        return tuple(sorted({pair.train_index for pair in self.pairs}))

    def doubtful_first(self) -> list[DuplicatePair]:
        """Returns the pairs with the least similar first, since wrong matches would be there."""
        return sorted(self.pairs, key=lambda pair: (pair.similarity, pair))

    def markdown(self, limit: int = 50) -> str:
        """Returns a report in Markdown: totals, the least similar pairs, and unreadable images.

        Each list has at most `limit` entries.
        """
        matched = (
            (len(self.train_indices), self.num_train),
            (len({pair[1] for pair in self.pairs}), self.num_test),
        )
        shares = [f"{count:,} of {total:,} ({count / total:.2%})" for count, total in matched]
        lines = [
            f"# Images of {self.test_name} in {self.train_name}\n",
            f"{shares[0]} training images match {shares[1]} test images: {len(self.pairs):,} "
            f"pairs, at most {self.max_distance} bits apart, similarity at least "
            f"{self.min_similarity:g}.",
        ]
        if self.num_crowded:
            lines.append(
                f"For {self.num_crowded:,} training images only the nearest {_MAX_CANDIDATES} "
                "candidates were compared."
            )
        if self.pairs:
            lines += [
                "\n| # | training image | test image | bits | similarity | mirrored |",
                "|--:|---|---|--:|--:|---|",
            ]
        lines += [
            _format_row(number, pair)
            for number, pair in enumerate(self.doubtful_first()[:limit], start=1)
        ]
        if len(self.pairs) > limit:
            lines.append(f"\n{len(self.pairs) - limit:,} more pairs, all at least as similar.")
        if self.unreadable:
            lines.append(
                f"\n{len(self.unreadable):,} images could not be read and were not compared:\n"
            )
        lines += [f"- {place}" for place in self.unreadable[:limit]]
        return "\n".join([*lines, ""])

    def write_contact_sheet(
        self, path: str | os.PathLike, train: Source, test: Source, limit: int = 50
    ) -> None:
        """Writes a picture of the pairs as a PNG file.

        The pairs are in the order of the table, five per line. The training image is on the left,
        the test image on the right, mirrored back if the match is mirrored. Images are resized to
        squares, as in the search.

        Raises:
            ValueError: If there are no pairs, or the report is about other sources.
        """
        self.check_sources(train, test)
        shown = self.doubtful_first()[:limit]
        if not shown:
            raise ValueError(
                f"There is no pair to draw: the report has {len(self.pairs)} pairs, and "
                f"limit={limit}."
            )
        indices = np.array([pair[:2] for pair in shown]).T
        lefts, rights = (
            _make_thumbnails(*one, _PICTURE_SIDE)
            for one in zip((train, test), indices, strict=True)
        )
        tiles = [lefts, _mirror(rights, np.array([pair.mirrored for pair in shown]))]
        sheet = _tile(np.concatenate(tiles, axis=2).round().astype(np.uint8))
        tf.io.write_file(os.path.expanduser(path), tf.io.encode_png(sheet))

    def check_sources(self, *sources: Source) -> None:
        """Raises ValueError unless the report is about these sources.

        Args:
            *sources: The training source, and optionally the test source.
        """
        searched = [(self.train_name, self.num_train), (self.test_name, self.num_test)][
            : len(sources)
        ]
        given = [(source.name, source.num_examples) for source in sources]
        if given != searched:
            raise ValueError(
                f"The report is about {searched} (name, examples). Received: {given}. Pass the "
                "sources that were searched."
            )


def find_duplicates(
    train: Source,
    test: Source,
    *,
    max_distance: int = MAX_DISTANCE,
    min_similarity: float = MIN_SIMILARITY,
    progress: bool = True,
) -> DuplicateReport:
    """Finds the training images that match a test image, by hash and by pixels.

    Args:
        train: The training images.
        test: The test images.
        max_distance: Largest number of differing bits, of 63; 0 to 15.
        min_similarity: Smallest similarity of the pixels, between 0 and 1.
        progress: Whether to show progress bars on standard error.

    Raises:
        ValueError: If a source is empty, or a setting out of range.

    Example:
        >>> noise = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
        >>> images = Source(name="noise", class_names=("noise",), num_examples=3, locate="noise[{}]".format,
        ...                 read=lambda index: (tf.constant(noise)[index], index))
        >>> find_duplicates(images, images, progress=False).train_indices
        (0, 1, 2)
    """
    _check(train, test, max_distance, min_similarity)
    train_groups, test_groups = (
        _hash_source(train, progress),
        _hash_source(test, progress, num_views=2),
    )
    candidates, num_crowded = _find_candidates(train_groups, test_groups, max_distance)
    return DuplicateReport(
        train_name=train.name,
        test_name=test.name,
        num_train=train.num_examples,
        num_test=test.num_examples,
        max_distance=max_distance,
        min_similarity=min_similarity,
        pairs=tuple(_verify(train, test, candidates, min_similarity)),
        unreadable=train_groups.unreadable + test_groups.unreadable,
        num_crowded=num_crowded,
    )


def drop_duplicates(train: Source, report: DuplicateReport) -> Source:
    """Returns the training source without the duplicates of a report.

    Raises:
        ValueError: If the report is about another source.

    Example:
        >>> drop_duplicates(train, find_duplicates(train, test))  # doctest: +SKIP
    """
    report.check_sources(train)
    return train.without(report.train_indices)


def _check(train: Source, test: Source, max_distance: int, min_similarity: float) -> None:
    wrong = [
        f"{source.name} has no examples" for source in (train, test) if source.num_examples < 1
    ]
    if max_distance not in range(_LARGEST_DISTANCE + 1):
        wrong.append(
            f"max_distance={max_distance}, expected an integer from 0 to {_LARGEST_DISTANCE}"
        )
    if not 0 < min_similarity < 1:
        wrong.append(f"min_similarity={min_similarity}, expected a number between 0 and 1")
    if wrong:
        raise ValueError(f"Cannot look for duplicates: {'; '.join(wrong)}.")


# --- step 1: hashes


def _hash_source(source: Source, progress: bool, num_views: int = 1) -> "_Groups":
    """Groups the images by their hashes, and with two views also by those of
    their mirror images.
    """
    from tqdm import tqdm

    found = np.zeros((num_views, source.num_examples), np.uint64)
    readable = np.zeros(source.num_examples, bool)
    # Errors are ignored: an image whose index is missing afterwards is unreadable. Each image
    # carries its index, so a slow file does not delay the others.
    images = _make_small_images(
        source, tf.data.Dataset.range(source.num_examples), _HASH_SIDE, deterministic=False
    )
    batches = images.ignore_errors().batch(_BATCH_SIZE).prefetch(2)
    with tqdm(
        desc=source.name, total=source.num_examples, unit="image", disable=not progress
    ) as bar:
        for indices, batch in batches.as_numpy_iterator():
            found[:, indices] = _hash(batch)[:num_views]
            readable[indices] = True
            bar.update(len(indices))
    return _Groups(source, found, readable)


def _make_small_images(
    source: Source, indices: tf.data.Dataset, side: int, deterministic: bool = True
) -> tf.data.Dataset:
    """Returns (index, image) pairs, with images float32 (side, side, 3) from 0 to 255."""

    @tf.autograph.experimental.do_not_convert
    def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = decode(source.read(index)[0], tf.constant([0, 0]))
        # The area method averages all pixels, so a copy of another size has the same small image.
        return index, tf.image.resize(
            tf.ensure_shape(image, (None, None, 3)), (side, side), method="area"
        )

    return indices.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=deterministic)


def _hash(images: np.ndarray) -> np.ndarray:
    """Returns the hashes of images (B, 32, 32, 3) and of their mirror images, uint64 (2, B)."""
    frequencies, positions = np.arange(_FREQUENCIES), np.arange(_HASH_SIDE) + 0.5
    # The cosine transform (type II), scaled so that noise keeps its variance.
    waves = np.cos(np.pi * np.outer(frequencies, positions) / _HASH_SIDE) * np.sqrt(2 / _HASH_SIDE)
    coefficients = waves @ (images @ np.array([0.299, 0.587, 0.114])) @ waves.T  # of grey images
    # Mirroring changes the sign of the cosines of odd frequency.
    both = np.stack([coefficients, coefficients * np.where(frequencies % 2, -1, 1)])
    bits = both.reshape(2, -1, _FREQUENCIES**2) > _FAINTEST
    bits[..., 0] = False  # the mean: brightness does not identify an image
    return np.packbits(bits, axis=-1).view(np.uint64)[..., 0]


# --- step 2: candidates


def near_hashes(
    hashes: np.ndarray, others: np.ndarray, max_distance: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (positions in `hashes`, positions in `others`, distances) of all pairs of hashes
    within a Hamming distance of 0 to 15 bits.

    The result is exact, without comparing all pairs: one of four bands of 16 bits has at most a
    quarter of the differing bits, so only hashes with such a band are compared. At 8 bits, this is
    one in 350 of all pairs of random hashes.

    Example:
        >>> near_hashes(np.array([0, 255], np.uint64), np.array([7], np.uint64), 3)
        (array([0]), array([0]), array([3]))
    """
    found = [np.empty(0, np.int64)]
    for band in range(_BANDS):
        # Not all four bands can exceed their share, so the last ones need a smaller distance.
        reach = max_distance // _BANDS - (band > max_distance % _BANDS)
        shift = np.uint64(band * _BAND_BITS)
        keys, other_keys = (
            (values >> shift).astype(np.int64) % 2**_BAND_BITS for values in (hashes, others)
        )
        order = np.argsort(keys, kind="stable")
        starts = np.searchsorted(keys[order], np.arange(2**_BAND_BITS + 1))
        flips = (
            bits
            for count in range(reach + 1)
            for bits in itertools.combinations(range(_BAND_BITS), count)
        )
        for mask in (sum(1 << bit for bit in bits) for bits in flips):
            for rows, columns in _find_equal_keys(order, starts, other_keys ^ mask):
                near = _compute_distances(hashes[rows], others[columns]) <= max_distance
                found.append(rows[near] * len(others) + columns[near])
    rows, columns = np.divmod(np.unique(np.concatenate(found)), max(len(others), 1))
    return rows, columns, _compute_distances(hashes[rows], others[columns])


def _find_equal_keys(
    order: np.ndarray, starts: np.ndarray, probes: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (rows, columns), in chunks, where the key of the row equals the probe
    of the column.
    """
    counts = starts[probes + 1] - starts[probes]
    edges = np.searchsorted(
        np.cumsum(counts), np.arange(_PROBES_AT_ONCE, counts.sum(), _PROBES_AT_ONCE)
    )
    for columns in np.split(np.arange(len(probes)), edges):
        yield (
            order[_make_ranges(starts[probes[columns]], counts[columns])],
            np.repeat(columns, counts[columns]),
        )


def _make_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenates the ranges of `counts[i]` numbers from `starts[i]` on."""
    return np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)


def _compute_distances(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the Hamming distances. Bits are summed in fields of 2, 4, then 8 bits in parallel."""
    bits = hashes ^ others
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + (
        (bits >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((bits * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


class _Groups:
    """Images grouped by hash: group g is `order[starts[g] : starts[g] + sizes[g]]`.

    The mirror image of image i of n has the number i + n. Unreadable images are in no group.
    """

    def __init__(self, source: Source, hashes: np.ndarray, readable: np.ndarray) -> None:
        self.num_images = source.num_examples
        self.unreadable = tuple(
            source.locate(index) for index in np.flatnonzero(~readable).tolist()
        )
        members = np.flatnonzero(np.tile(readable, len(hashes)))
        self.order = members[np.argsort(hashes.ravel()[members], kind="stable")]
        ordered = hashes.ravel()[self.order]
        self.hashes, self.starts, self.sizes = np.unique(
            ordered, return_index=True, return_counts=True
        )


def _find_candidates(train: _Groups, test: _Groups, max_distance: int) -> tuple[np.ndarray, int]:
    """Returns candidate pairs, int64 (4, pairs), and the number of crowded training images.

    The rows are: training index (ascending), test index, whether mirrored, distance. Thousands of
    uniform images, or of one logo, in both sources would make millions of redundant pairs, so each
    training image gets at most its 64 nearest.
    """
    rows, columns, distances = near_hashes(train.hashes, test.hashes, max_distance)
    nearest = np.lexsort((distances, rows))
    rows, columns, distances = rows[nearest], columns[nearest], distances[nearest]
    before = np.cumsum(test.sizes[columns]) - test.sizes[columns]
    before -= before[np.searchsorted(rows, rows)]  # counted from the first of this training hash
    taken = np.clip(_MAX_CANDIDATES - before, 0, test.sizes[columns])
    crowded = np.unique(rows[taken < test.sizes[columns]])
    # Expand pairs of groups to pairs of images: first the test images, then the training images.
    tests = test.order[_make_ranges(test.starts[columns], taken)]
    rows, distances = np.repeat(rows, taken), np.repeat(distances, taken)
    copies = train.sizes[rows]
    trains = train.order[_make_ranges(train.starts[rows], copies)]
    mirrored, tests = np.divmod(np.repeat(tests, copies), test.num_images)
    pairs = np.stack([trains, tests, mirrored, np.repeat(distances, copies)])
    return pairs[:, np.argsort(trains, kind="stable")], int(train.sizes[crowded].sum())


# --- step 3: pixels


def similarities(images: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the similarity of pairs of small images: 1 if equal, about 0 if unrelated.

    It is the correlation of the pixels of (B, H, W, 3), from 0 to 255, relative to the mean colour.
    (Relative to the mean grey, any two objects in a blue sky would be similar.) A correlation does
    not depend on brightness, so a difference of the mean colours lowers the result: 30 grey levels
    by 0.01 in a photograph, and by nearly 1 if both images are uniform.

    Example:
        >>> black, white = np.zeros((1, 16, 16, 3)), np.full((1, 16, 16, 3), 255.0)
        >>> similarities(np.concatenate([black, white]), np.concatenate([black, black])).round(2)
        array([1., 0.])
    """
    images, others = (
        values.reshape(len(values), -1, 3).astype(np.float64) for values in (images, others)
    )
    means, other_means = images.mean(axis=1, keepdims=True), others.mean(axis=1, keepdims=True)
    images, others = images - means, others - other_means
    covariance = (images * others).mean(axis=(1, 2)) + _NOISE
    variances = ((images**2).mean(axis=(1, 2)) + _NOISE) * ((others**2).mean(axis=(1, 2)) + _NOISE)
    colour = ((means - other_means) ** 2).mean(axis=(1, 2))
    return covariance / (np.sqrt(variances) + _COLOUR_WEIGHT * colour)


def _verify(
    train: Source, test: Source, candidates: np.ndarray, min_similarity: float
) -> list[DuplicatePair]:
    """Returns the candidates with similar pixels.

    If a pair matches as it is and mirrored, the more similar match is returned.
    """
    best: dict[tuple[int, ...], DuplicatePair] = {}
    for begin in range(0, candidates.shape[1], _PAIRS_AT_ONCE):
        chosen = candidates[:, begin : begin + _PAIRS_AT_ONCE]
        lefts, rights = (
            _make_thumbnails(train, chosen[0]),
            _mirror(_make_thumbnails(test, chosen[1]), chosen[2]),
        )
        similarity = similarities(lefts, rights)
        alike = similarity >= min_similarity
        for (row, column, mirrored, distance), value in zip(
            chosen.T[alike].tolist(), similarity[alike], strict=True
        ):
            places = train.locate(row), test.locate(column)
            pair = DuplicatePair(row, column, distance, float(value), bool(mirrored), *places)
            best[row, column] = max(
                best.get((row, column), pair), pair, key=lambda one: one.similarity
            )
    return [best[key] for key in sorted(best)]


def _mirror(images: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    return np.where(mirrored.astype(bool)[:, None, None, None], images[:, :, ::-1], images)


def _make_thumbnails(
    source: Source, indices: np.ndarray, side: int = _THUMBNAIL_SIDE
) -> np.ndarray:
    """Returns small images, float32 (len(indices), side, side, 3). Each image is read once."""
    different, positions = np.unique(indices, return_inverse=True)
    small = _make_small_images(source, tf.data.Dataset.from_tensor_slices(different), side).batch(
        _BATCH_SIZE
    )
    return np.concatenate([images for _, images in small.as_numpy_iterator()])[positions]


def _tile(tiles: np.ndarray, num_columns: int = 5, margin: int = 4) -> np.ndarray:
    """Arranges tiles in rows on a white image."""
    num_rows = -(-len(tiles) // num_columns)
    room = ((0, num_rows * num_columns - len(tiles)), (0, margin), (0, margin), (0, 0))
    grid = np.pad(~tiles, room).reshape(
        num_rows, num_columns, *(side + margin for side in tiles.shape[1:3]), 3
    )
    return ~np.concatenate(np.concatenate(grid, axis=1), axis=1)


def _format_row(number: int, pair: DuplicatePair) -> str:
    places = [place.replace("|", "\\|") for place in (pair.train_place, pair.test_place)]
    figures = [str(pair.distance), f"{pair.similarity:.3f}", "yes" if pair.mirrored else ""]
    return f"| {number} | {' | '.join(places + figures)} |"
