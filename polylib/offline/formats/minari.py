"""Minari data sets (the Farama Foundation's format), in and out, through the package minari."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tree

from polylib.errors import FrameworkError
from polylib.models.spaces import leaves, unflatten
from polylib.offline.episodes import Episode
from polylib.offline.errors import TraceFileError, TraceFormatError
from polylib.offline.formats.pieces import PieceReader
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

PREFIX = "minari:"
# Episodes handed over at a time: whole data sets need not fit into memory.
_CHUNK = 100


def minari() -> Any:
    """The package minari, with what its HDF5 storage needs.

    Raises:
        FrameworkError: It isn't installed.
    """
    try:
        import minari
        from minari.dataset._storages import get_storage_keys
    except ImportError as e:
        raise FrameworkError(f"Minari data sets need the package minari: pip install 'polylib[minari]' ({e})") from e
    if "hdf5" not in get_storage_keys():
        raise FrameworkError("Minari data sets need the packages h5py and pillow: pip install 'polylib[minari]'")
    return minari


def is_minari_folder(path: Path) -> bool:
    """Whether a folder is a Minari data set, or holds one in `data`."""
    for folder in (path, path / "data"):
        try:
            if "minari_version" in json.loads((folder / "metadata.json").read_text()):
                return True
        except (OSError, ValueError):
            continue
    return False


class MinariReader(PieceReader):
    """Reads the episodes of a Minari data set, one batch for each.

    Args:
        source: `minari:ID` of a local data set, or its folder. Nothing is downloaded (`minari download ID` does).
        **kwargs: As for `PieceReader`; the spaces are the data set's if none are given.

    Raises:
        TraceFileError: There is no such data set, or it can't be read.
        FrameworkError: minari isn't installed.
    """

    def __init__(self, source: str | Path, *args: Any, **kwargs: Any) -> None:
        package, name = minari(), str(source)
        try:
            if name.startswith(PREFIX):
                name = name.removeprefix(PREFIX)
                self.dataset = package.load_dataset(name, download=False)
            else:
                folder = Path(name).expanduser()
                self.dataset = package.MinariDataset(folder if (folder / "metadata.json").exists() else folder / "data")
        except Exception as e:  # whatever minari raises: FileNotFoundError, ValueError, KeyError, AssertionError
            known = ", ".join(sorted(package.list_local_datasets())[:10])
            raise TraceFileError(
                f"the Minari data set {name!r} can't be read: {type(e).__name__}: {e}. On this machine there are: "
                f"{known or 'none'}"
            ) from None
        self.name = name
        kwargs["observation_space"] = kwargs.get("observation_space") or self.dataset.observation_space
        kwargs["action_space"] = kwargs.get("action_space") or self.dataset.action_space
        super().__init__(*args, **kwargs)

    def _count(self) -> int:
        return len(self.dataset.episode_indices)

    def _where(self, index: int) -> str:
        return f"Minari data set {self.name!r}, episode {index}"

    def _read(self, index: int) -> SampleBatch:
        try:
            episode = self.dataset[index]
        except Exception as e:  # of h5py, PIL, pyarrow
            raise ValueError(f"it can't be read: {type(e).__name__}: {e}") from None
        rows = len(episode.rewards)
        batch = SampleBatch()
        batch[c.OBS] = tree.map_structure(lambda x: np.asarray(x)[:-1], episode.observations)
        batch[c.NEXT_OBS] = tree.map_structure(lambda x: np.asarray(x)[1:], episode.observations)
        batch[c.ACTIONS] = tree.map_structure(np.asarray, episode.actions)
        batch[c.REWARDS] = np.asarray(episode.rewards, np.float32)
        batch[c.TERMINATEDS] = np.asarray(episode.terminations, np.bool_)
        batch[c.TRUNCATEDS] = np.asarray(episode.truncations, np.bool_)
        batch[c.EPS_ID] = np.full(rows, int(episode.id), np.int64)
        batch[c.T] = np.arange(rows, dtype=np.int32)
        if episode.infos:
            batch[c.INFOS] = _rows_of(episode.infos, rows)
        return batch


def _rows_of(infos: dict[str, Any], rows: int) -> np.ndarray:
    """A dict for each step, of infos that stand as arrays with one entry more: the reset's, which isn't a step's."""
    column = np.empty(rows, np.object_)

    def entry(part: Any, row: int) -> Any:
        if isinstance(part, dict):
            return {key: entry(value, row) for key, value in part.items()}
        value = part[row]
        return value.item() if isinstance(value, np.generic) else value

    for row in range(rows):
        column[row] = entry(infos, row + 1)
    return column


def write_minari(
    episodes: Iterable[Episode],
    dataset_id: str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    **metadata: Any,
) -> tuple[int, int]:
    """Makes a Minari data set of whole episodes; arrays are stored as they are, images too.

    Args:
        episodes: Those that lack steps or an end are left out.
        dataset_id: `[namespace/][env/]name-v0`.
        observation_space: Of the observations.
        action_space: Of the actions.
        **metadata: As for `minari.create_dataset_from_buffers`: `env`, `algorithm_name`, `author`, ...

    Returns:
        How many episodes were written, and how many left out.

    Raises:
        TraceFileError: There is such a data set already, the id is wrong, or it can't be written.
        TraceFormatError: No episode is whole.
        FrameworkError: minari isn't installed.
    """
    package = minari()
    from minari.data_collector.episode_buffer import EpisodeBuffer

    dataset: Any = None
    written = left_out = 0
    for chunk in _chunks(episodes):
        buffers = []
        for episode in chunk:
            if episode.whole:
                buffers.append(EpisodeBuffer(id=written, **_buffer(episode, observation_space, action_space)))
                written += 1
            else:
                left_out += 1
        if not buffers:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of every field of the metadata that is empty
                if dataset is None:
                    dataset = package.create_dataset_from_buffers(
                        dataset_id,
                        buffers,
                        observation_space=observation_space,
                        action_space=action_space,
                        jpeg_encoding=False,
                        **metadata,
                    )
                else:
                    dataset.update_dataset_from_buffer(buffers)
        except Exception as e:  # whatever minari and h5py raise
            raise TraceFileError(
                f"the Minari data set {dataset_id!r} can't be written: {type(e).__name__}: {e}"
            ) from None
    if dataset is None:
        raise TraceFormatError(f"no episode is whole, from its first step to its end ({left_out} were left out)")
    return written, left_out


def _chunks(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    chunk: list[Episode] = []
    for episode in episodes:
        chunk.append(episode)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    yield chunk


def _buffer(episode: Episode, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Any]:
    columns = episode.columns
    for name in (c.REWARDS, *leaves(observation_space, c.OBS), *leaves(action_space, c.ACTIONS)):
        if name not in columns:
            raise TraceFormatError(f"episode {episode.key.label}: it has no column {name!r}")
    rows = len(episode)
    observations = {}
    for name in leaves(observation_space, c.OBS):
        after = columns.get(c.NEXT_OBS + name.removeprefix(c.OBS))
        # What a terminal step led to is of no account where it wasn't recorded.
        last = columns[name][-1:] if after is None else after[-1:]
        observations[name] = np.concatenate([columns[name], last])
    actions = {name: columns[name] for name in leaves(action_space, c.ACTIONS)}
    end = np.arange(rows) == rows - 1
    return {
        "observations": unflatten(observation_space, observations, c.OBS),
        "actions": unflatten(action_space, actions, c.ACTIONS),
        "rewards": columns[c.REWARDS],
        "terminations": end & (episode.end == "terminated"),
        "truncations": end & (episode.end == "truncated"),
    }
