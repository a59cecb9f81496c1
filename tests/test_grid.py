import math

import numpy as np
import pytest
import scipy.ndimage

from keras_vit import grid


@pytest.mark.parametrize(
    ("image_size", "patch_size", "num_halvings", "expected"),
    [
        ((224, 224), 16, 0, (14, 14)),
        ((224, 384), 16, 0, (14, 24)),
        ((384, 384), 1, 5, (12, 12)),
        ((224, 224), 8, 2, (7, 7)),
        ((200, 225), 1, 4, (13, 15)),
    ],
)
def test_patch_grid(image_size, patch_size, num_halvings, expected):
    assert grid.patch_grid(image_size, patch_size, num_halvings) == expected


@pytest.mark.parametrize(
    ("image_size", "patch_size", "num_halvings", "message"),
    [
        ((384, 384), 14, 0, r"multiple of 14 .*Use \(378, 378\) or \(392, 392\)"),
        ((224, 230), 16, 0, r"Use \(224, 224\) or \(224, 240\)"),
        ((8, 32), 16, 0, r"Use \(16, 32\)"),
        ((100, 128), 8, 2, r"multiple of 32 .*Use \(96, 128\) or \(128, 128\)"),
    ],
)
def test_sizes_that_do_not_divide_name_their_neighbours(
    image_size, patch_size, num_halvings, message
):
    with pytest.raises(ValueError, match=message):
        grid.patch_grid(image_size, patch_size, num_halvings)


@pytest.mark.parametrize("image_size", [(0, 32), (32, 0), (-16, 32)])
def test_an_image_without_pixels_has_no_patches(image_size):
    with pytest.raises(
        ValueError, match=r"multiple of 16 pixels along each axis.*Use \(16, 32\)|Use \(32, 16\)"
    ):
        grid.patch_grid(image_size, 16)


def test_square_grid():
    assert grid.square_grid(576) == (24, 24)
    with pytest.raises(ValueError, match="197 rows.*checkpoint_grid"):
        grid.square_grid(197)


@pytest.mark.parametrize("method", grid.INTERPOLATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (7, 4)])
def test_the_same_grid_is_the_identity(method, shape):
    for old, matrix in zip(shape, grid.interpolation_matrices(shape, shape, method), strict=True):
        np.testing.assert_allclose(matrix, np.eye(old), atol=1e-12)


@pytest.mark.parametrize("method", grid.INTERPOLATIONS)
def test_an_axis_of_the_same_length_is_kept_by_all_but_the_offset(method):
    down, _ = grid.interpolation_matrices((7, 7), (7, 9), method)
    assert np.allclose(down, np.eye(7), atol=1e-12) == (method != "bicubic_offset")


@pytest.mark.parametrize("method", grid.INTERPOLATIONS)
@pytest.mark.parametrize(("old", "new"), [(7, 12), (14, 24), (24, 14), (3, 1), (1, 4)])
def test_constants_stay_constant(method, old, new):
    matrix = grid.interpolation_matrix(old, new, method)
    assert matrix.shape == (new, old)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((7, 7), (12, 20)), ((24, 10), (14, 14))]
)
def test_bilinear_equals_the_published_routine(old, new):
    table = np.random.default_rng(0).standard_normal((1, 1 + old[0] * old[1], 5)).astype("float32")
    resized = grid.resize_positions(table, old, new)
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    expected = scipy.ndimage.zoom(table[0, 1:].reshape(*old, 5), zoom, order=1)
    assert resized.dtype == np.float32
    np.testing.assert_array_equal(resized[0, 0], table[0, 0])
    np.testing.assert_allclose(resized[0, 1:], expected.reshape(-1, 5), atol=1e-6)


def test_half_pixel_by_hand():
    expected = [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]
    np.testing.assert_allclose(grid.interpolation_matrix(2, 4, "bilinear_half_pixel"), expected)


def test_bicubic_by_hand():
    """Keys's kernel, a = -3/4, at 7/4, 3/4, 1/4, 5/4 pixels; a tap beyond the border reads it."""
    near, next_to, far, farthest = 0.87890625, 0.26171875, -0.10546875, -0.03515625
    matrix = grid.interpolation_matrix(4, 8, "bicubic")
    np.testing.assert_allclose(matrix[0], [farthest + next_to + near, far, 0, 0])
    np.testing.assert_allclose(matrix[1], [far + near, next_to, farthest, 0])
    np.testing.assert_allclose(matrix[2], [farthest + next_to, near, far, 0])


def test_antialiased_bicubic_by_hand():
    """Keys's kernel, a = -1/2, at 1/4, 3/4, 5/4, 7/4 pixels; cut at the border and normalized."""
    first = np.array([0.8671875, -0.0703125, 0.0, 0.0])
    np.testing.assert_allclose(
        grid.interpolation_matrix(4, 8, "bicubic_antialias")[0], first / first.sum()
    )
    second = np.array([0.8671875, 0.2265625, -0.0234375, 0.0])
    np.testing.assert_allclose(
        grid.interpolation_matrix(4, 8, "bicubic_antialias")[1], second / second.sum()
    )


# PyTorch 2.13.0, `interpolate(table, size=(2, 5), mode="bicubic")` and the same with
# scale_factor=(2.1 / 3, 5.1 / 4), in float64.
PYTORCH_TABLE = [[0, 1, 0, 0], [0, 0, 0, 2], [4, 0, 0, 0]]
PYTORCH_FIGURES = {
    "bicubic": [
        [-0.1961543, 0.60368555, 0.42333984, 0.06076758, 0.55523633],
        [3.28383105, 0.83393262, -0.35998535, 0.14991504, 0.55523633],
    ],
    "bicubic_offset": [
        [-0.16733517, 0.62040852, 0.49550997, 0.01143904, 0.44361536],
        [2.81075132, 0.75261424, -0.37368797, 0.1846484, 0.82119992],
    ],
}


@pytest.mark.parametrize(("method", "expected"), PYTORCH_FIGURES.items())
def test_bicubic_equals_figures_of_pytorch(method, expected):
    table = np.array(PYTORCH_TABLE, "float64").reshape(1, 12, 1)
    resized = grid.resize_positions(table, (3, 4), (2, 5), method)
    np.testing.assert_allclose(resized.reshape(2, 5), expected, atol=1e-8)


def _cubic(distance, a=-0.75):
    """Keys's kernel, expanded."""
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a


def _resize_one_by_one(cells, new, offset):
    """Sums 16 cells for each new cell, in two dimensions at once, as PyTorch's C++ code does."""
    rows, columns, width = cells.shape
    resized = np.zeros((*new, width))
    for i, j in np.ndindex(*new):
        y = (i + 0.5) * rows / (new[0] + offset) - 0.5
        x = (j + 0.5) * columns / (new[1] + offset) - 0.5
        for row, column in np.ndindex(4, 4):
            row, column = math.floor(y) - 1 + row, math.floor(x) - 1 + column
            weight = _cubic(abs(y - row)) * _cubic(abs(x - column))
            inside = min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)
            resized[i, j] += weight * cells[inside]
    return resized


SIZES = [
    ((4, 4), (9, 9)),
    ((9, 9), (4, 4)),
    ((7, 7), (5, 12)),
    ((5, 8), (5, 3)),
    ((3, 5), (8, 5)),
    ((2, 1), (1, 6)),
    ((1, 1), (3, 2)),
    ((14, 14), (24, 16)),
    ((37, 37), (16, 16)),
    ((16, 16), (37, 50)),
]


@pytest.mark.parametrize(("method", "offset"), [("bicubic", 0.0), ("bicubic_offset", 0.1)])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_bicubic_equals_a_sum_cell_by_cell(method, offset, old, new):
    table = np.random.default_rng(0).standard_normal((1, 2 + old[0] * old[1], 3))
    resized = grid.resize_positions(table, old, new, method)
    expected = _resize_one_by_one(table[0, 2:].reshape(*old, 3), new, offset)
    np.testing.assert_allclose(resized[0, 2:], expected.reshape(-1, 3), atol=1e-10)


@pytest.mark.parametrize("method", grid.INTERPOLATIONS)
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_every_rule_is_one_of_pytorch(method, old, new):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options = {
        "bilinear": {"mode": "bilinear", "align_corners": True, "size": new},
        "bilinear_half_pixel": {"mode": "bilinear", "size": new},
        "bicubic": {"mode": "bicubic", "size": new},
        "bicubic_offset": {
            "mode": "bicubic",
            "scale_factor": ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1]),
        },
        "bicubic_antialias": {"mode": "bicubic", "antialias": True, "size": new},
    }[method]
    table = np.random.default_rng(0).standard_normal((1, old[0] * old[1], 3))
    cells = torch.from_numpy(table.reshape(1, *old, 3)).permute(0, 3, 1, 2)
    theirs = torch.nn.functional.interpolate(cells, **options).permute(0, 2, 3, 1)
    assert tuple(theirs.shape[1:3]) == new
    resized = grid.resize_positions(table, old, new, method)
    np.testing.assert_allclose(resized, theirs.reshape(1, -1, 3).numpy(), atol=1e-12)


def test_rows_of_prefix_tokens_are_untouched():
    table = np.random.default_rng(0).standard_normal((1, 3 + 4, 2))
    np.testing.assert_array_equal(grid.resize_positions(table, (2, 2), (3, 5))[:, :3], table[:, :3])


def test_the_same_number_of_patches_in_another_grid_is_resized():
    table = np.random.default_rng(0).standard_normal((1, 36, 2))
    resized = grid.resize_positions(table, (6, 6), (4, 9))
    assert resized.shape == table.shape
    assert not np.allclose(resized, table)


def test_a_table_smaller_than_its_grid_is_an_error():
    with pytest.raises(ValueError, match="cannot hold a grid"):
        grid.resize_positions(np.zeros((1, 5, 2)), (3, 3), (4, 4))


def test_an_unknown_method_lists_the_valid_ones():
    with pytest.raises(ValueError, match="bicubic_antialias.*'nearest'"):
        grid.interpolation_matrix(2, 3, "nearest")


@pytest.mark.parametrize(("shape", "width"), [((14, 14), 768), ((3, 5), 16)])
def test_sine_cosine_positions_are_those_of_a_plain_loop(shape, width):
    table = grid.sincos_positions(shape, width)
    assert table.shape == (1, shape[0] * shape[1], width) and table.dtype == np.float32
    count = width // 4
    for place in (0, 1, shape[1], shape[0] * shape[1] - 1):
        row, column = divmod(place, shape[1])
        expected = [
            function(position / 10_000 ** (index / count))
            for position in (column, row)
            for function in (math.sin, math.cos)
            for index in range(count)
        ]
        np.testing.assert_allclose(table[0, place], expected, atol=1e-6)
    with pytest.raises(ValueError, match="multiple of 4 for sine-cosine positions. Received: 18"):
        grid.sincos_positions(shape, 18)


def test_joined_patches_are_the_image_they_were_cut_from():
    image = np.random.default_rng(0).standard_normal((2, 4, 6, 3))
    patches = [
        image[:, row : row + 2, column : column + 2]
        for row in range(0, 4, 2)
        for column in range(0, 6, 2)
    ]
    np.testing.assert_array_equal(grid.join_patches(np.stack(patches, axis=1), (2, 3)), image)
