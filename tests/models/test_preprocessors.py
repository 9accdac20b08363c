"""Preprocessors: what each space becomes, by hand; images against sums by hand and OpenCV; refusals."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from polylib.errors import BatchError, ConfigError, EnvError
from polylib.models import preprocessors
from polylib.models.preprocessors import (
    AtariRamPreprocessor,
    DictFlatteningPreprocessor,
    GenericPixelPreprocessor,
    MultiBinaryPreprocessor,
    NoPreprocessor,
    OneHotPreprocessor,
    Preprocessor,
    TupleFlatteningPreprocessor,
    get_preprocessor,
    resize_by_numpy,
)

S = gym.spaces
F32 = np.float32
ATARI = S.Box(0, 255, (210, 160, 3), np.uint8)
RAM = S.Box(0, 255, (128,), np.uint8)


def prep_of(space, options=None) -> Preprocessor:
    return get_preprocessor(space)(space, options)


@pytest.fixture(params=["numpy", "cv2"])
def resizer(request, monkeypatch):
    """Scaling by NumPy alone, and by OpenCV where it is installed."""
    if request.param == "cv2":
        pytest.importorskip("cv2")
    else:
        monkeypatch.setitem(sys.modules, "cv2", None)
    return request.param


# --- which class

KINDS = {
    "discrete": (S.Discrete(3), OneHotPreprocessor, (3,)),
    "multi_discrete": (S.MultiDiscrete([[2, 3], [4, 2]]), OneHotPreprocessor, (11,)),
    "multi_binary": (S.MultiBinary([2, 3]), MultiBinaryPreprocessor, (2, 3)),
    "box": (S.Box(-1, 1, (2, 3)), NoPreprocessor, (2, 3)),
    "scalar": (S.Box(-1, 1, ()), NoPreprocessor, ()),
    "image": (S.Box(0, 255, (64, 64, 3), np.uint8), NoPreprocessor, (64, 64, 3)),
    "atari": (ATARI, GenericPixelPreprocessor, (84, 84, 3)),
    "ram": (RAM, AtariRamPreprocessor, (128,)),
    # Only bytes are Atari's: other boxes of these shapes mean something else.
    "float_frame": (S.Box(0, 1, (210, 160, 3)), NoPreprocessor, (210, 160, 3)),
    "float_128": (S.Box(-np.inf, np.inf, (128,)), NoPreprocessor, (128,)),
    "tuple": (S.Tuple([S.Discrete(3), S.Box(-1, 1, (2, 2))]), TupleFlatteningPreprocessor, (7,)),
    "dict": (S.Dict(a=S.Dict(b=S.MultiBinary(2)), c=ATARI), DictFlatteningPreprocessor, (2 + 84 * 84 * 3,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_class_and_shape(kind):
    space, expected, shape = KINDS[kind]
    assert get_preprocessor(space) is expected
    prep = prep_of(space)
    assert prep.shape == shape and prep.size == int(np.prod(shape)) and prep.obs_space is space
    space.seed(0)
    for _ in range(3):
        obs = space.sample()
        array = prep.transform(obs)
        assert array.shape == shape
        assert array in prep.observation_space
        assert array.dtype == (space.dtype if expected is NoPreprocessor else F32)
        written = np.full(prep.size + 3, 9, F32)
        prep.write(obs, written, 2)
        np.testing.assert_array_equal(written[2:-1], array.reshape(-1))
        assert written[[0, 1, -1]].tolist() == [9, 9, 9]
        prep.check_shape(obs)


def test_the_space_of_the_arrays_leads_back():
    space = S.Dict(a=S.Discrete(2), b=S.Box(-3, 5, (2,)))
    made = prep_of(space).observation_space
    assert made.original_space is space
    assert made.low.tolist() == [0, 0, -3, -3] and made.high.tolist() == [1, 1, 5, 5]
    assert prep_of(space["b"]).observation_space is space["b"]


# --- numbers by hand


def test_one_hot_by_hand():
    assert prep_of(S.Discrete(3)).transform(1).tolist() == [0, 1, 0]
    # counted from start: 5, 6, 7
    shifted = prep_of(S.Discrete(3, start=5))
    assert shifted.transform(5).tolist() == [1, 0, 0]
    assert shifted.transform(np.int64(7)).tolist() == [0, 0, 1]
    assert prep_of(S.Discrete(2, start=-1)).transform(np.array(-1)).tolist() == [1, 0]
    # [2, 3]: the second of two, the first of three
    assert prep_of(S.MultiDiscrete([2, 3])).transform([1, 0]).tolist() == [0, 1, 1, 0, 0]
    # start [5, 7]: 5 is the first of two, 9 the last of three
    assert prep_of(S.MultiDiscrete([2, 3], start=[5, 7])).transform([5, 9]).tolist() == [1, 0, 0, 0, 1]
    # rows one after the other: 2 | 3 | 4 | 2 choices, taken 1, 2, 3, 0
    square = prep_of(S.MultiDiscrete([[2, 3], [4, 2]])).transform(np.array([[1, 2], [3, 0]]))
    assert square.tolist() == [0, 1] + [0, 0, 1] + [0, 0, 0, 1] + [1, 0]


def test_multi_binary_by_hand():
    array = prep_of(S.MultiBinary(3)).transform([1, 0, 1])
    assert array.tolist() == [1, 0, 1] and array.dtype == F32


def test_box_keeps_its_dtype():
    obs = np.array([1, 255], np.uint8)
    assert prep_of(S.Box(0, 255, (2,), np.uint8)).transform(obs).dtype == np.uint8
    # a float64 that rounds to the bound counts as being within: 0.7 > float32(0.7)
    array = prep_of(S.Box(F32(0), F32(0.7), (1,))).transform([0.7])
    assert array.dtype == F32 and array.tolist() == [F32(0.7)]


def test_flattening_by_hand():
    """Order is the space's, whatever the observation's."""
    space = S.Dict(
        first=S.Discrete(2, start=1), second=S.Tuple([S.Box(-9, 9, (2, 2)), S.MultiBinary(1)]), third=S.Discrete(3)
    )
    obs = {"third": 1, "second": (np.array([[1, 2], [3, 4]], F32), [1]), "first": 2}
    assert prep_of(space).transform(obs).tolist() == [0, 1] + [1, 2, 3, 4] + [1] + [0, 1, 0]
    parts = prep_of(space).preprocessors
    assert [type(part) for part in parts] == [OneHotPreprocessor, TupleFlatteningPreprocessor, OneHotPreprocessor]


def test_options_reach_the_parts():
    space = S.Tuple([ATARI, S.Discrete(2)])
    assert prep_of(space, {"dim": 10, "grayscale": True}).shape == (10 * 10 + 2,)


def test_ram_by_hand():
    ram = np.zeros(128, np.uint8)
    ram[1], ram[2] = 128, 255
    # (0 - 128) / 128, (128 - 128) / 128, (255 - 128) / 128
    assert prep_of(RAM).transform(ram)[:3].tolist() == [-1, 0, 127 / 128]


# --- pixels


def test_pixels_by_hand(resizer):
    """A frame whose middle consists of four even quarters, to 2 x 2 pixels: each is its quarter's colour."""
    frame = np.full((210, 160, 3), 255, np.uint8)  # the border, left out
    # rows 25..184: the halves are 25..104 and 105..184
    frame[25:105, :80], frame[25:105, 80:] = (0, 30, 60), (128, 128, 128)
    frame[105:185, :80], frame[105:185, 80:] = (255, 0, 0), (64, 192, 2)
    colour = prep_of(ATARI, {"dim": 2, "zero_mean": False}).transform(frame) * 255
    expected = [[[0, 30, 60], [128, 128, 128]], [[255, 0, 0], [64, 192, 2]]]
    np.testing.assert_allclose(colour, expected, atol=1e-3)
    # grey is the mean of the three: 30, 128, 85, 86
    grey = prep_of(ATARI, {"dim": 2, "grayscale": True}).transform(frame)
    assert grey.shape == (2, 2, 1) and grey.dtype == F32
    np.testing.assert_allclose(grey[..., 0] * 128 + 128, [[30, 128], [85, 86]], atol=1e-3)


def test_scaling_by_hand(resizer):
    """Three pixels to two: each new one covers one and a half. Two to three: each covers two thirds."""
    resize = preprocessors._resizer()
    assert (resize is resize_by_numpy) == (resizer == "numpy")
    # along the columns 0, 30, 90: (0 + 30 / 2) / 1.5 = 10 and (30 / 2 + 90) / 1.5 = 70; rows are alike
    image = np.tile(F32([0, 30, 90])[None, :, None], (3, 1, 1))
    np.testing.assert_allclose(resize(image, 2)[..., 0], [[10, 70], [10, 70]], atol=1e-4)
    # the same along the rows, in one of two channels
    image = np.concatenate([image.transpose(1, 0, 2), np.zeros((3, 3, 1), F32)], axis=2)
    np.testing.assert_allclose(resize(image, 2)[..., 0], [[10, 10], [70, 70]], atol=1e-4)
    assert not resize(image, 2)[..., 1].any()
    # 0, 60 to three: 0, half of each, 60
    image = np.tile(F32([0, 60])[None, :, None], (2, 1, 1))
    np.testing.assert_allclose(resize(image, 3)[0, :, 0], [0, 30, 60], atol=1e-4)


@pytest.mark.parametrize("dim", [1, 7, 42, 80, 84, 96, 160, 200, 333])
@pytest.mark.parametrize("channels", [1, 3])
def test_scaling_is_the_mean_over_areas(dim, channels):
    """Against a sum over the pixels that each new one overlaps, written out."""
    image = np.random.default_rng(dim).uniform(0, 255, (160, 160, channels)).astype(F32)
    share = np.zeros((dim, 160))
    for new in range(dim):
        for old in range(160):
            share[new, old] = max(0, min((new + 1) * 160 / dim, old + 1) - max(new * 160 / dim, old)) * dim / 160
    expected = np.einsum("io,jp,opc->ijc", share, share, image, optimize=True)
    scaled = resize_by_numpy(image, dim)
    assert scaled.dtype == F32
    np.testing.assert_allclose(scaled, expected, atol=2e-4)


@pytest.mark.parametrize("dim", [1, 7, 42, 84, 160, 200])
@pytest.mark.parametrize("grayscale", [True, False])
def test_opencv_gives_the_same(monkeypatch, dim, grayscale):
    pytest.importorskip("cv2")
    frame = np.random.default_rng(dim).integers(0, 256, (210, 160, 3), np.uint8)
    options = {"dim": dim, "grayscale": grayscale}
    with_cv2 = prep_of(ATARI, options).transform(frame)
    monkeypatch.setitem(sys.modules, "cv2", None)
    np.testing.assert_allclose(prep_of(ATARI, options).transform(frame), with_cv2, atol=1e-6)


def test_opencv_is_asked_for_areas(monkeypatch):
    """Also where it isn't installed: the call that is made, and the axis that OpenCV drops put back."""
    calls = []

    def resize(image, size, interpolation):
        calls.append((image.shape, image.dtype, size, interpolation))
        return resize_by_numpy(image, size[0]).squeeze()

    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA="area"))
    prep = prep_of(ATARI, {"dim": 42, "grayscale": True})
    assert prep.transform(np.zeros((210, 160, 3), np.uint8)).shape == (42, 42, 1)
    assert calls == [((160, 160, 1), F32, (42, 42), "area")]


@pytest.mark.parametrize("dim", [0, -1, 84.0, "84", True, None])
def test_a_wrong_dim(dim):
    with pytest.raises(ConfigError, match=r"'dim' of the model is .*, expected a whole number of pixels > 0"):
        prep_of(ATARI, {"dim": dim})


# --- what is refused

REFUSED = {
    "text": (S.Text(5), r"space of 'obs' is Text.*wrap.*one code per character"),
    "sequence": (S.Sequence(S.Discrete(2)), r"space of 'obs' is Sequence.*wrap.*padded, with a mask"),
    "graph": (S.Graph(S.Discrete(2), None), r"space of 'obs' is Graph.*wrap.*arrays of fixed size"),
    "nested": (S.Dict(x=S.Tuple([S.Discrete(2), S.Text(3)])), r"space of 'obs/x/1' is Text"),
    "another": (S.OneOf([S.Discrete(2)]), r"space of 'obs' is OneOf.*wrap"),
    "empty": (S.Dict(), r"has no parts"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_spaces_without_a_size_are_refused(kind):
    space, message = REFUSED[kind]
    with pytest.raises(EnvError, match=message) as caught:
        get_preprocessor(space)
    assert "\n" not in str(caught.value)


NESTED = S.Dict(a=S.Discrete(3), b=S.Tuple([S.Box(-1, 1, (2, 2)), S.MultiBinary(2)]))
BOX = np.zeros((2, 2))
WRONG = {
    "shape": (S.Box(-1, 1, (3,)), [0, 0], r"'obs' is not in its space .*: its shape is \[2\], expected \[3\]"),
    "scalar": (S.Discrete(3), [1], r"its shape is \[1\], expected \[\]"),
    "below": (S.Box(-1, 1, (2, 2)), [[0, 0], [-2, 0]], r"-2.0 at \[1, 0\] lies outside \[-1.0, 1.0\]"),
    "byte": (S.Box(0, 255, (2,), np.uint8), [0, 256], r"256 at \[1\] lies outside \[0, 255\]"),
    "nan": (S.Box(-np.inf, np.inf, (2,)), [0, np.nan], r"it holds NaN"),
    "fraction": (S.Discrete(3), 1.5, r"not whole: 1.5"),
    "ragged": (S.Box(-1, 1, (2, 2)), [[1], [1, 2]], r"\[\[1\], \[1, 2\]\] is no array of numbers"),
    "none": (S.Discrete(3), None, r"None is no array of numbers"),
    "words": (S.Box(-1, 1, (2,)), ["a", "b"], r"no array of numbers"),
    "before_start": (S.Discrete(3, start=5), 4, r"4 lies outside \[5, 7\]"),
    "after": (S.Discrete(3), 3, r"3 lies outside \[0, 2\]"),
    "multi": (S.MultiDiscrete([2, 3], start=[1, 1]), [1, 4], r"4 at \[1\] lies outside \[1, 3\]"),
    "binary": (S.MultiBinary(2), [0, 2], r"2 at \[1\] lies outside \[0, 1\]"),
    "ram": (RAM, np.zeros(127, np.uint8), r"its shape is \[127\], expected \[128\]"),
    "frame": (ATARI, np.zeros((160, 210, 3), np.uint8), r"its shape is \[160, 210, 3\], expected \[210, 160, 3\]"),
    "no_dict": (NESTED, 3, r"it is 3, expected a dict with 'a', 'b'"),
    "missing": (NESTED, {"a": 1}, r"it has no part 'b', expected 'a', 'b'"),
    "unknown": (NESTED, {"a": 1, "b": (BOX, [0, 1]), "c": 1}, r"unknown part 'c', expected 'a', 'b'"),
    "no_tuple": (NESTED, {"a": 1, "b": 2}, r"'obs/b' is not in its space .*: it is 2, expected a tuple of 2 parts"),
    "short_tuple": (NESTED, {"a": 1, "b": (BOX,)}, r"'obs/b' .*: it has 1 parts, expected 2"),
    "nested": (NESTED, {"a": 1, "b": (BOX + 2, [0, 1])}, r"'obs/b/0' .*: 2.0 at \[0, 0\] lies outside \[-1.0, 1.0\]"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_observations_outside_their_space(kind):
    space, obs, message = WRONG[kind]
    prep = prep_of(space)
    for check in (prep.transform, prep.check_shape):
        with pytest.raises(BatchError, match=message) as caught:
            check(obs)
        assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
