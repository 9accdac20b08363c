"""Preprocessors: one observation of any supported space as one array, as RLlib's users know them.

    prep = get_preprocessor(env.observation_space)(env.observation_space)
    array = prep.transform(obs)

They are for people and their code. Policies take observations as they are: images stay images, and the parts of a
Dict or Tuple stay apart until the network joins them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError, EnvError
from polylib.models.spaces import leaves

#: Frames and memory of Atari games.
ATARI_SHAPE, ATARI_RAM_SHAPE = (210, 160, 3), (128,)

# Above and below are score and border.
_ATARI_ROWS = slice(25, -25)
_OPTIONS = {"dim": 84, "grayscale": False, "zero_mean": True}

_WRAPPERS = {
    gym.spaces.Text: "a fixed number of numbers, for example an embedding or one code per character",
    gym.spaces.Sequence: "an array of fixed length, padded, with a mask beside it in a Dict",
    gym.spaces.Graph: "a Dict of arrays of fixed size (nodes, edges, a mask)",
}


class Preprocessor:
    """Turns observations of one space into arrays of one shape.

    Args:
        obs_space: of the observations.
        options: a model config; the keys that a preprocessor doesn't know are ignored.
        name: of the observation, for messages.

    Attributes:
        obs_space: as given.
        shape: of the arrays.
    """

    def __init__(self, obs_space: gym.Space[Any], options: Mapping[str, Any] | None = None, name: str = "obs"):
        self.obs_space, self.options, self.name = obs_space, dict(options or {}), name
        self.shape: tuple[int, ...] = self._init_shape()

    @property
    def size(self) -> int:
        """Numbers per array."""
        return int(np.prod(self.shape))

    @functools.cached_property
    def observation_space(self) -> gym.Space[Any]:
        """The space of the arrays; its `original_space` is `obs_space`."""
        low, high = self._bounds()
        space: Any = gym.spaces.Box(
            np.broadcast_to(low, self.shape).astype(np.float32), np.broadcast_to(high, self.shape).astype(np.float32)
        )
        space.original_space = self.obs_space
        return space

    def transform(self, observation: Any) -> np.ndarray:
        """One observation as an array, float32 [*shape].

        Raises:
            BatchError: (a ValueError) if the observation is not in the space, saying why.
        """
        raise NotImplementedError

    def write(self, observation: Any, array: np.ndarray, offset: int) -> None:
        """Writes `transform`'s result, flattened, to `array[offset : offset + size]`."""
        array[offset : offset + self.size] = self.transform(observation).reshape(-1)

    def check_shape(self, observation: Any) -> None:
        """Raises BatchError (a ValueError) if the observation is not in the space, saying why."""
        self.transform(observation)

    def _init_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def _bounds(self) -> tuple[Any, Any]:
        """The least and the greatest that `transform` returns."""
        raise NotImplementedError

    def _array(self, observation: Any, shape: tuple[int, ...], low: Any, high: Any) -> np.ndarray:
        """The observation as an array of numbers of that shape within the bounds, in the space's dtype."""
        space = self.obs_space
        try:
            array = np.asarray(observation)
        except ValueError:  # rows of unequal length
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise self._error(f"{_short(observation)} is no array of numbers")
        if array.shape != shape:
            raise self._error(f"its shape is {list(array.shape)}, expected {list(shape)}")
        if array.dtype.kind == "f":
            if np.isnan(array).any():
                raise self._error("it holds NaN")
            if space.dtype is not None and space.dtype.kind != "f" and (array != np.floor(array)).any():
                raise self._error(f"it holds numbers that are not whole: {_short(observation)}")
        if space.dtype is not None and space.dtype.kind == "f":
            # 0.7 is above float32's 0.7: compared in the space's own precision.
            with np.errstate(over="ignore"):
                array = array.astype(space.dtype, copy=False)
        outside = (array < low) | (array > high)
        if outside.any():
            first = np.unravel_index(np.argmax(outside), shape)
            place = f" at {[int(i) for i in first]}" if shape else ""
            least, most = (np.broadcast_to(bound, shape)[first] for bound in (low, high))
            raise self._error(f"{array[first]}{place} lies outside [{least}, {most}]")
        return array.astype(space.dtype, copy=False)

    def _error(self, what: str) -> BatchError:
        return BatchError(f"observation {self.name!r} is not in its space {_short(self.obs_space)}: {what}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.obs_space}, shape={self.shape})"


class NoPreprocessor(Preprocessor):
    """For a Box: its observations as they are, in the space's shape and dtype."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """`obs_space` itself."""
        return self.obs_space

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`; the dtype is the space's."""
        space: Any = self.obs_space
        return self._array(observation, space.shape, space.low, space.high)

    def _init_shape(self) -> tuple[int, ...]:
        return tuple(self.obs_space.shape or ())

    def _bounds(self) -> tuple[Any, Any]:
        space: Any = self.obs_space
        with np.errstate(over="ignore"):
            return space.low.astype(np.float32), space.high.astype(np.float32)


class OneHotPreprocessor(Preprocessor):
    """For Discrete and MultiDiscrete: a one among zeros per number, counted from the space's `start`.

    `Discrete(3, start=5)`: 6 gives [0, 1, 0]. `MultiDiscrete([2, 3])`: [1, 0] gives [0, 1, 1, 0, 0]; of more
    dimensions, the components follow each other with the last index running fastest.
    """

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`."""
        shape = () if isinstance(self.obs_space, gym.spaces.Discrete) else self.obs_space.shape or ()
        start, high = self._start.reshape(shape), (self._start + self._counts - 1).reshape(shape)
        choice = self._array(observation, shape, start, high).reshape(-1)
        array = np.zeros(self.shape, np.float32)
        array[self._offsets + (choice - self._start)] = 1
        return array

    def _init_shape(self) -> tuple[int, ...]:
        space: Any = self.obs_space
        counts = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        self._counts = np.asarray(counts, np.int64).reshape(-1)
        start = np.asarray(getattr(space, "start", 0), np.int64).reshape(-1)
        self._start = np.broadcast_to(start, self._counts.shape)
        self._offsets = np.cumsum(self._counts) - self._counts
        return (int(self._counts.sum()),)

    def _bounds(self) -> tuple[Any, Any]:
        return 0, 1


class MultiBinaryPreprocessor(Preprocessor):
    """For MultiBinary: its zeros and ones as float32, in the space's shape."""

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`."""
        return self._array(observation, self.shape, 0, 1).astype(np.float32)

    def _init_shape(self) -> tuple[int, ...]:
        return tuple(self.obs_space.shape or ())

    def _bounds(self) -> tuple[Any, Any]:
        return 0, 1


class GenericPixelPreprocessor(Preprocessor):
    """For Atari frames, uint8 [210, 160, 3]: the square middle, scaled down.

    The 25 rows at the top and at the bottom are left out, the remaining [160, 160, 3] are averaged by area to
    [dim, dim, 3], or [dim, dim, 1] in grey, the mean of the three colours.

    The options are those of RLlib's model config:
        dim: pixels per side, 84.
        grayscale: one channel in place of three, False.
        zero_mean: numbers in [-1, 1), `(x - 128) / 128`, and not in [0, 1], `x / 255`; True.

    OpenCV does the scaling where it is installed, NumPy elsewhere, to the same numbers.
    """

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`."""
        frame: np.ndarray = self._array(observation, ATARI_SHAPE, 0, 255)[_ATARI_ROWS].astype(np.float32)
        if self._grayscale:
            # Before scaling, since there is less to do then; the order makes no difference to means.
            frame = (frame[..., :1] + frame[..., 1:2] + frame[..., 2:]) / 3
        frame = self._resize(frame, self._dim)
        return (frame - 128) / 128 if self._zero_mean else frame / 255

    def _init_shape(self) -> tuple[int, ...]:
        options = {**_OPTIONS, **{key: self.options[key] for key in _OPTIONS if key in self.options}}
        dim = options["dim"]
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise ConfigError(f"config key 'dim' of the model is {dim!r}, expected a whole number of pixels > 0")
        self._dim, self._resize = int(dim), _resizer()
        self._grayscale, self._zero_mean = bool(options["grayscale"]), bool(options["zero_mean"])
        return (self._dim, self._dim, 1 if self._grayscale else 3)

    def _bounds(self) -> tuple[Any, Any]:
        return (-1, 127 / 128) if self._zero_mean else (0, 1)


class AtariRamPreprocessor(Preprocessor):
    """For an Atari game's memory, uint8 [128]: `(x - 128) / 128`, in [-1, 1)."""

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`."""
        return (self._array(observation, ATARI_RAM_SHAPE, 0, 255).astype(np.float32) - 128) / 128

    def _init_shape(self) -> tuple[int, ...]:
        return ATARI_RAM_SHAPE

    def _bounds(self) -> tuple[Any, Any]:
        return -1, 127 / 128


class _FlatteningPreprocessor(Preprocessor):
    """The parts, each preprocessed and flattened, one after the other in the space's order.

    Attributes:
        preprocessors: of the parts.
    """

    preprocessors: list[Preprocessor]

    def transform(self, observation: Any) -> np.ndarray:
        """See `Preprocessor`."""
        array = np.empty(self.shape, np.float32)
        self.write(observation, array, 0)
        return array

    def write(self, observation: Any, array: np.ndarray, offset: int) -> None:
        """See `Preprocessor`."""
        for preprocessor, part in zip(self.preprocessors, self._parts(observation), strict=True):
            preprocessor.write(part, array, offset)
            offset += preprocessor.size

    def _init_shape(self) -> tuple[int, ...]:
        self.preprocessors = [
            get_preprocessor(part)(part, self.options, f"{self.name}/{key}") for key, part in self._spaces().items()
        ]
        return (sum(preprocessor.size for preprocessor in self.preprocessors),)

    def _bounds(self) -> tuple[Any, Any]:
        bounds = [
            [np.broadcast_to(bound, part.shape).astype(np.float32).reshape(-1) for bound in part._bounds()]
            for part in self.preprocessors
        ]
        return np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds])

    def _spaces(self) -> dict[Any, gym.Space[Any]]:
        raise NotImplementedError

    def _parts(self, observation: Any) -> Sequence[Any]:
        raise NotImplementedError


class TupleFlatteningPreprocessor(_FlatteningPreprocessor):
    """For a Tuple: its parts, each preprocessed and flattened, one after the other."""

    def _spaces(self) -> dict[Any, gym.Space[Any]]:
        space: Any = self.obs_space
        return dict(enumerate(space.spaces))

    def _parts(self, observation: Any) -> Sequence[Any]:
        count = len(self.preprocessors)
        if not isinstance(observation, tuple | list | np.ndarray):
            raise self._error(f"it is {_short(observation)}, expected a tuple of {count} parts")
        if len(observation) != count:
            raise self._error(f"it has {len(observation)} parts, expected {count}")
        return list(observation)


class DictFlatteningPreprocessor(_FlatteningPreprocessor):
    """For a Dict: its parts, each preprocessed and flattened, one after the other in the order of the space's keys."""

    def _spaces(self) -> dict[Any, gym.Space[Any]]:
        space: Any = self.obs_space
        return dict(space.spaces)

    def _parts(self, observation: Any) -> Sequence[Any]:
        space: Any = self.obs_space
        expected = ", ".join(repr(key) for key in space.spaces)
        if not isinstance(observation, Mapping):
            raise self._error(f"it is {_short(observation)}, expected a dict with {expected}")
        for key in space.spaces:
            if key not in observation:
                raise self._error(f"it has no part {key!r}, expected {expected}")
        for key in observation:
            if key not in space.spaces:
                raise self._error(f"it has an unknown part {key!r}, expected {expected}")
        return [observation[key] for key in space.spaces]


def get_preprocessor(space: gym.Space[Any]) -> type[Preprocessor]:
    """The class that preprocesses observations of a space: `get_preprocessor(space)(space).transform(obs)`.

    Frames and memory of Atari games are known by shape and dtype (uint8): a float vector of 128 is none.

    Raises:
        EnvError: if observations of this space have no fixed size, naming the space and the way round.
    """
    for name, part in leaves(space).items():
        if not isinstance(
            part, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
        ):
            raise EnvError(_refusal(name, part))
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return OneHotPreprocessor
    if isinstance(space, gym.spaces.MultiBinary):
        return MultiBinaryPreprocessor
    if isinstance(space, gym.spaces.Dict):
        return DictFlatteningPreprocessor
    if isinstance(space, gym.spaces.Tuple):
        return TupleFlatteningPreprocessor
    if space.dtype == np.uint8:
        if space.shape == ATARI_SHAPE:
            return GenericPixelPreprocessor
        if space.shape == ATARI_RAM_SHAPE:
            return AtariRamPreprocessor
    return NoPreprocessor


def restore(space: gym.Space[Any], rows: Any) -> Any:
    """Observations as a space has them, of vectors that its preprocessor made of them: one-hot and flattened ones.

    Args:
        space: of observations.
        rows: `[B, size]`, what `get_preprocessor(space)(space).transform` returns, row by row.

    Returns:
        `[B, *obs_shape]`, nested as `space` is.

    Raises:
        BatchError: if the width is another one.
    """
    rows, size = np.asarray(rows), get_preprocessor(space)(space).size
    if rows.ndim != 2 or rows.shape[1] != size:
        raise BatchError(f"observations {list(rows.shape)} aren't those of {space}, nor preprocessed ones, [B, {size}]")
    return _restored(get_preprocessor(space)(space), rows)


def _restored(preprocessor: Preprocessor, rows: np.ndarray) -> Any:
    space: Any = preprocessor.obs_space
    if isinstance(preprocessor, _FlatteningPreprocessor):
        ends = np.cumsum([part.size for part in preprocessor.preprocessors])[:-1]
        parts = [_restored(p, x) for p, x in zip(preprocessor.preprocessors, np.split(rows, ends, 1), strict=True)]
        return dict(zip(space.spaces, parts, strict=True)) if isinstance(space, gym.spaces.Dict) else tuple(parts)
    if isinstance(preprocessor, OneHotPreprocessor):
        ends = np.cumsum(preprocessor._counts)[:-1]
        classes = np.stack([x.argmax(1) for x in np.split(rows, ends, 1)], 1) + preprocessor._start
        return classes.reshape(len(rows), *(space.shape or ()))
    if isinstance(preprocessor, GenericPixelPreprocessor | AtariRamPreprocessor):
        raise BatchError(f"preprocessed frames can't be turned back into {space}: pass the observation itself")
    return rows.reshape(len(rows), *preprocessor.shape)


def _refusal(name: str, space: gym.Space[Any]) -> str:
    into = next((text for kind, text in _WRAPPERS.items() if isinstance(space, kind)), "a Box, Discrete or Dict")
    return (
        f"observation space of {name!r} is {type(space).__name__}, which networks can't take: wrap the environment in "
        f"a gymnasium.ObservationWrapper that makes {into} of it; the space is {_short(space)}"
    )


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 120 else f"{text[:117]}..."


# --- scaling


def _resizer() -> Callable[[np.ndarray, int], np.ndarray]:
    try:
        import cv2
    except ImportError:  # not installed, or a library that it needs isn't
        return resize_by_numpy

    def resize_by_cv2(image: np.ndarray, dim: int) -> np.ndarray:
        # OpenCV drops a last axis of one.
        return cv2.resize(image, (dim, dim), interpolation=cv2.INTER_AREA).reshape(dim, dim, image.shape[2])

    return resize_by_cv2


def resize_by_numpy(image: np.ndarray, dim: int) -> np.ndarray:
    """Scales an image by averaging areas.

    Args:
        image: float32 [height, width, channels].
        dim: new height and width.

    Returns:
        float32 [dim, dim, channels].
    """
    # No matrix product: waking the threads of BLAS for these sizes can take longer than the work.
    for axis in (0, 1):
        taps = _area_taps(image.shape[axis], dim)
        shape = (-1, 1, 1) if axis == 0 else (-1, 1)
        image = sum(image.take(pixels, axis) * shares.reshape(shape) for pixels, shares in taps)
    return image


@functools.lru_cache(maxsize=16)
def _area_taps(old: int, new: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of old pixels and their shares, each [new]: summed over pairs, old pixel times share is the new pixel."""
    edges = np.arange(new + 1) * old / new
    first = np.floor(edges[:-1]).astype(np.int64)
    taps = []
    for i in range(math.ceil(old / new) + 1):
        pixels = first + i
        overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
        taps.append((np.minimum(pixels, old - 1), (np.maximum(overlap, 0) * (new / old)).astype(np.float32)))
    return taps
