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
@pytest.mark.parametrize("old", [1, 2, 7])
def test_the_same_length_is_the_identity(method, old):
    np.testing.assert_allclose(grid.interpolation_matrix(old, old, method), np.eye(old), atol=1e-12)


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
    """Keys's kernel, a = -1/2, at 1/4, 3/4, 5/4, 7/4 pixels; cut at the border and normalized."""
    first = np.array([0.8671875, -0.0703125, 0.0, 0.0])
    np.testing.assert_allclose(
        grid.interpolation_matrix(4, 8, "bicubic_antialias")[0], first / first.sum()
    )
    second = np.array([0.8671875, 0.2265625, -0.0234375, 0.0])
    np.testing.assert_allclose(
        grid.interpolation_matrix(4, 8, "bicubic_antialias")[1], second / second.sum()
    )


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
