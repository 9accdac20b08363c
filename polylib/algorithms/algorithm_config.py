"""AlgorithmConfig: the one place where an algorithm's settings are kept, checked and explained.

Every key is a row of a table (`common_options.py`, `<algorithm>/config.py`), so that the grouped methods, `from_dict`,
`update_from_dict`, attributes and the command line share names, defaults and checks.
"""

from __future__ import annotations

import copy
import importlib.util
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from polylib.algorithms.common_options import COMMON_OPTIONS, CONFLICTS, GROUPS, MODEL_OPTIONS
from polylib.algorithms.options import Option, is_search_space
from polylib.errors import ConfigError, ConfigTypeError, FrameworkError, NotBuiltError, UnknownKeyError, did_you_mean

if TYPE_CHECKING:
    from polylib.algorithms.algorithm import Algorithm

Self = TypeVar("Self", bound="AlgorithmConfig")

# The packages a framework needs before a policy can be built.
FRAMEWORK_PACKAGES = {"tf": ("tensorflow", "keras"), "tf2": ("tensorflow", "keras"), "torch": ("torch",)}


class _NotGiven:
    """The default of arguments for which None is a value."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = _NotGiven()


def _given(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not NOT_GIVEN}


def index_options(options: tuple[Option, ...]) -> dict[str, Option]:
    """Options by every name they are accepted under."""
    return {name: option for option in options for name in (option.name, *option.aliases)}


_MODEL_INDEX = index_options(MODEL_OPTIONS)


def check_value(option: Option, value: Any, label: str) -> Any:
    """The value to store for `option`.

    Args:
        option: the key's row.
        value: what was passed; a Tune search space passes as it is.
        label: the key as the user wrote it, for the message.

    Raises:
        ConfigError: naming the key, what was passed and what was expected.
    """
    if is_search_space(value):
        for item in grid_values(value, label):
            check_value(option, item, label)
        return value
    try:
        return option.check(value)
    except ConfigError:
        raise
    except TypeError as error:
        got = f"got {value!r} ({type(value).__name__})"
        raise ConfigTypeError(f"config key {label!r}: {got}, expected {error}") from None
    except ValueError as error:
        raise ConfigError(f"config key {label!r}: got {value!r}, expected {error}") from None


def grid_values(space: Any, label: str) -> list[Any]:
    """The values of a grid search; [] for other search spaces, whose values aren't known before.

    Raises:
        ConfigTypeError: naming the key, if the grid is no list of values.
    """
    if not isinstance(space, Mapping):
        return []
    values = space["grid_search"]
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
        raise ConfigTypeError(f"config key {label!r}: got {dict(space)!r}, expected {{'grid_search': [value, ...]}}")
    return list(values)


#: What became of keys of older RLlibs, where no likeness of names tells.
_SUCCESSORS = {
    "buffer_size": "replay_buffer_config.capacity",
    "learning_starts": "num_steps_sampled_before_learning_starts",
    "prioritized_replay": "replay_buffer_config.type",
    "timesteps_per_iteration": "min_sample_timesteps_per_iteration",
}


def _meant(name: str, index: Mapping[str, Option]) -> str:
    """` Did you mean 'x'?` for the key that was most probably meant, or an empty string."""
    successor = _SUCCESSORS.get(name, "")
    if successor.partition(".")[0] in index:
        return f" Did you mean {successor!r}?"
    return did_you_mean(name, index)


def refuse_if_not_built(option: Option, value: Any, label: str) -> None:
    """Raises `NotBuiltError` if a key without a feature is set off its default."""
    if not option.built and value != option.default:
        raise NotBuiltError(
            f"config key {label!r}: this version of polylib has only its default, {option.default!r}; got {value!r}"
        )


class AlgorithmConfig:
    """Settings of an algorithm, set by grouped methods that can be chained.

    Example:
        >>> from polylib.algorithms.ppo import PPOConfig
        >>> config = PPOConfig().environment("CartPole-v1").framework("torch").training(lr=1e-3)
        >>> config.lr
        0.001

    Attributes:
        algo_name: the algorithm's registered name.
        supported_frameworks: frameworks that have a backend for it.
        reads_files: whether it can learn from recorded experience (`input`).
        options: rows of the algorithm's own keys.
        defaults: the algorithm's own defaults for common keys.
        sources: where each set key's value came from (`"code"`, `"--config"`, ...).
    """

    algo_name: ClassVar[str] = ""
    supported_frameworks: ClassVar[tuple[str, ...]] = ("tf", "tf2", "torch")
    reads_files: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}

    _values: dict[str, Any]
    _index: dict[str, Option]
    _frozen: bool

    def __init__(self) -> None:
        own = {option.name for option in self.options}
        rows = tuple(option for option in COMMON_OPTIONS if option.name not in own) + self.options
        values = {option.name: copy.deepcopy(option.default) for option in rows}
        values.update(copy.deepcopy(self.defaults))
        values["model"] = _model_defaults()
        self.__dict__.update(_values=values, _index=index_options(rows), _frozen=False, sources={})
        self.sources: dict[str, str] = self.__dict__["sources"]

    # --- reading

    def _option(self, name: str) -> Option:
        try:
            return self._index[name]
        except KeyError:
            raise UnknownKeyError(
                f"unknown config key {name!r} for {self.algo_name or type(self).__name__}."
                + _meant(name, self._index)
            ) from None

    def __getattr__(self, name: str) -> Any:
        index = self.__dict__.get("_index", {})
        if name in index:
            return self._values[index[name].name]
        raise AttributeError(
            f"{type(self).__name__} has no attribute or config key {name!r}." + _meant(name, index)
        )

    def __getitem__(self, name: str) -> Any:
        return self._values[self._option(name).name]

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def get(self, name: str, default: Any = None) -> Any:
        """The value of key `name`, or `default` if there is no such key."""
        return self[name] if name in self._index else default

    def to_dict(self) -> dict[str, Any]:
        """All keys under their canonical names; nested dicts are copies."""
        return {key: _copy_plain(value) for key, value in self._values.items()}

    def explain(self) -> list[tuple[str, Any, str]]:
        """`(key, value, source)` of every key, by group; `model` is spread out as `model.fcnet_hiddens`, ..."""
        rows: list[tuple[str, Any, str]] = []
        for group in GROUPS:
            names = {option.name for option in self._index.values() if option.group == group}
            for name in sorted(names):
                if name == "model" and not is_search_space(self._values["model"]):
                    rows += [
                        (f"model.{key}", value, self.sources.get(f"model.{key}", "default"))
                        for key, value in sorted(self._values["model"].items())
                    ]
                else:
                    rows.append((name, self._values[name], self.sources.get(name, "default")))
        return rows

    # --- writing

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._index:
            self._set({name: value}, "code")
        elif name in self.__dict__ or hasattr(type(self), name):
            self.__dict__[name] = value
        else:
            self._option(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._set({name: value}, "code")

    def update_from_dict(self: Self, values: Mapping[str, Any], source: str = "code") -> Self:
        """Sets keys from a dict, as strictly as the grouped methods.

        Args:
            values: keys and values; `model` may hold some of its keys only.
            source: where they come from, for `explain()` and `--print-config`.

        Raises:
            ConfigError: naming the key; nothing is set then.
        """
        if not isinstance(values, Mapping):
            raise ConfigTypeError(f"a config must be a dict, got {type(values).__name__}: {values!r}")
        return self._set(values, source)

    @classmethod
    def from_dict(cls: type[Self], values: Mapping[str, Any]) -> Self:
        """A config with the algorithm's defaults and `values` over them (see `update_from_dict`)."""
        return cls().update_from_dict(values)

    def _set(self: Self, values: Mapping[str, Any], source: str, group: str | None = None) -> Self:
        if self._frozen:
            raise ConfigError(
                "this config belongs to an algorithm that was already built; change a copy: "
                "config.copy(copy_frozen=False)"
            )
        checked: dict[str, tuple[Option, str, Any]] = {}
        for label, value in values.items():
            option = self._option(label)
            if group is not None and option.group != group:
                raise UnknownKeyError(f"config key {label!r} is set by .{option.group}(), not by .{group}()")
            new = self._merged_model(value) if option.name == "model" else check_value(option, value, label)
            if option.name == "exploration_config":
                new = self._merged_exploration(new)
            if option.name in checked and checked[option.name][2] != new:
                raise ConfigError(f"config keys {checked[option.name][1]!r} and {label!r} are the same key: set one")
            checked[option.name] = (option, label, new)
        candidate = {name: item[2] for name, item in checked.items()}
        for first, second, why in CONFLICTS:
            if candidate.get(first, self._values.get(first)) and candidate.get(second, self._values.get(second)):
                raise ConfigError(f"config keys {first!r} and {second!r} exclude each other: {why}")
        for option, label, value in checked.values():
            refuse_if_not_built(option, value, label)
        for name, value in candidate.items():
            if name == "model" and not is_search_space(value):
                old = self._values["model"]
                changed = [key for key, item in value.items() if key not in old or item != old[key]]
                self.sources.update({f"model.{key}": source for key in changed})
            self._values[name] = value
            self.sources[name] = source
        return self

    def _merged_model(self, values: Any) -> dict[str, Any]:
        if is_search_space(values):
            for item in grid_values(values, "model"):
                self._merged_model(item)
            return values
        if not isinstance(values, Mapping):
            raise ConfigTypeError(f"config key 'model': got {values!r} ({type(values).__name__}), expected a dict")
        base = self._values["model"]
        merged = _copy_plain(_model_defaults() if is_search_space(base) else base)
        for key, value in values.items():
            option = _MODEL_INDEX.get(key)
            if option is None:
                raise UnknownKeyError(f"unknown config key 'model.{key}'." + did_you_mean(key, _MODEL_INDEX))
            merged[option.name] = check_value(option, value, f"model.{key}")
            refuse_if_not_built(option, merged[option.name], f"model.{key}")
        return merged

    def _merged_exploration(self, values: Any) -> Any:
        """Over the keys that are set, if the type stays what it is: each type has keys of its own."""
        old = self._values["exploration_config"]
        if is_search_space(values) or is_search_space(old) or values.get("type", old.get("type")) != old.get("type"):
            return values
        return {**old, **values}

    # --- the grouped methods: each takes the keys of its group as keyword arguments

    def training(self: Self, **keys: Any) -> Self:
        """Settings of learning."""
        return self._set(keys, "code", "training")

    def environment(self: Self, env: Any = NOT_GIVEN, **keys: Any) -> Self:
        """Settings of the environment; `env` may be passed by position."""
        return self._set({**_given(env=env), **keys}, "code", "environment")

    def framework(self: Self, framework: Any = NOT_GIVEN, **keys: Any) -> Self:
        """Settings of the deep learning framework; `framework` may be passed by position."""
        return self._set({**_given(framework=framework), **keys}, "code", "framework")

    def rollouts(self: Self, **keys: Any) -> Self:
        """Settings of rollout workers."""
        return self._set(keys, "code", "rollouts")

    def env_runners(self: Self, **keys: Any) -> Self:
        """The newer name of `rollouts`."""
        return self.rollouts(**keys)

    def evaluation(self: Self, **keys: Any) -> Self:
        """Settings of evaluation during training."""
        return self._set(keys, "code", "evaluation")

    def exploration(self: Self, **keys: Any) -> Self:
        """Settings of exploration."""
        return self._set(keys, "code", "exploration")

    def offline_data(self: Self, **keys: Any) -> Self:
        """Settings of episode traces, in and out."""
        return self._set(keys, "code", "offline_data")

    def multi_agent(self: Self, **keys: Any) -> Self:
        """Settings of multi-agent training."""
        return self._set(keys, "code", "multi_agent")

    def reporting(self: Self, **keys: Any) -> Self:
        """Settings of results."""
        return self._set(keys, "code", "reporting")

    def checkpointing(self: Self, **keys: Any) -> Self:
        """Settings of checkpoints."""
        return self._set(keys, "code", "checkpointing")

    def debugging(self: Self, **keys: Any) -> Self:
        """Settings for debugging: seed and logs."""
        return self._set(keys, "code", "debugging")

    def callbacks(self: Self, callbacks_class: Any = NOT_GIVEN, **keys: Any) -> Self:
        """Settings of callbacks; the class may be passed by position."""
        return self._set({**_given(callbacks_class=callbacks_class), **keys}, "code", "callbacks")

    def resources(self: Self, **keys: Any) -> Self:
        """Settings of CPUs, GPUs and their placement."""
        return self._set(keys, "code", "resources")

    def experimental(self: Self, **keys: Any) -> Self:
        """Settings that may change."""
        return self._set(keys, "code", "experimental")

    # --- what follows from the values

    @property
    def framework_str(self) -> str:
        """The framework that runs: `"tf"`, `"tf2"` or `"torch"`."""
        return self.resolve_framework()[0]

    def resolve_framework(self) -> tuple[str, bool]:
        """`(framework, traced)` of this config, without importing any framework.

        Raises:
            FrameworkError: if the framework isn't installed or the algorithm has no backend for it.
        """
        framework = self["framework"]
        if framework is None:
            installed = [name for name in ("tf2", "torch") if name in self.supported_frameworks and is_installed(name)]
            if not installed:
                raise FrameworkError(
                    f"{self.algo_name} needs TensorFlow or torch and neither is installed: "
                    "pip install 'polylib[tf]' or pip install 'polylib[torch]'"
                )
            framework = installed[0]
        if framework not in self.supported_frameworks:
            raise FrameworkError(
                f"{self.algo_name} has no {framework!r} backend; it runs with framework "
                + " or ".join(repr(name) for name in self.supported_frameworks)
            )
        if not is_installed(framework):
            extra = "torch" if framework == "torch" else "tf"
            missing = " and ".join(p for p in FRAMEWORK_PACKAGES[framework] if importlib.util.find_spec(p) is None)
            raise FrameworkError(
                f"framework {framework!r} needs {missing}, not installed here: pip install 'polylib[{extra}]'"
            )
        return framework, framework == "tf2" and bool(self["eager_tracing"])

    def get_rollout_fragment_length(self, num_envs: int | None = None) -> int:
        """Steps per environment and sample call; `"auto"` fills `train_batch_size` in one round of all workers.

        Args:
            num_envs: environments of a worker, where a user's vector environment has its own number of them.
        """
        length = self["rollout_fragment_length"]
        if length != "auto":
            return int(length)
        streams = max(1, self["num_workers"]) * (num_envs or self["num_envs_per_worker"])
        return max(1, -(-self["train_batch_size"] // streams))

    def validate(self) -> None:
        """Checks keys against each other, and that nothing is left for Tune to fill in.

        Raises:
            ConfigError: naming the keys.
        """
        model = self._values["model"]
        nested = {} if is_search_space(model) else {f"model.{key}": value for key, value in model.items()}
        for key, value in {**self._values, **nested}.items():
            if is_search_space(value):
                raise ConfigError(f"config key {key!r} is a Tune search space: run it with tune.Tuner, not build()")
        if self["input"] != "sampler" and not self.reads_files:
            from polylib.algorithms.registry import names_that_read_files

            raise ConfigError(
                f"config key 'input': {self.algo_name} learns from what its own policy has just done, and can't learn "
                f"from recorded experience; these can: {', '.join(names_that_read_files())}"
            )
        framework, traced = self["framework"], self["eager_tracing"]
        if self["tf_xla"] and (framework == "torch" or (framework == "tf2" and not traced)):
            raise ConfigError("config key 'tf_xla': XLA compiles framework 'tf', or 'tf2' with eager_tracing=True")
        if self["torch_compile_learner"] and framework in ("tf", "tf2"):
            raise ConfigError(f"config key 'torch_compile_learner': it is for framework 'torch', this is {framework!r}")
        # Dicts such as `model` may have been changed in place, past the checks.
        type(self)()._set(self.to_dict(), "code")

    def freeze(self) -> None:
        """Makes further changes an error: the config of a built algorithm says what it runs with."""
        self.__dict__["_frozen"] = True

    def __reduce__(self) -> tuple[Any, ...]:
        # The table of options holds functions that plain pickle refuses.
        return _unpickled, (type(self), self._values, self.sources, self._frozen)

    def copy(self: Self, copy_frozen: bool = False) -> Self:
        """A copy that shares nothing mutable; it can be changed unless `copy_frozen`."""
        new = type(self)()
        new._values.update(self.to_dict())
        new.sources.update(self.sources)
        if copy_frozen and self._frozen:
            new.freeze()
        return new

    def build(self, env: Any = None) -> Algorithm:
        """The algorithm, ready to `train()`.

        Args:
            env: overrides the config's environment.
        """
        from polylib.algorithms.registry import get_algorithm_class

        if not self.algo_name:
            raise ConfigError("AlgorithmConfig has no algorithm: use an algorithm's own config, such as PPOConfig()")
        return get_algorithm_class(self.algo_name)(config=self, env=env)

    def __repr__(self) -> str:
        set_keys = {key: self[key] for key in self.sources if key in self._index}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in set_keys.items())})"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _document_groups(cls)


def _unpickled(cls: type[Self], values: dict[str, Any], sources: dict[str, str], frozen: bool) -> Self:
    config = cls()
    config._values.update(values)
    config.sources.update(sources)
    if frozen:
        config.freeze()
    return config


def _model_defaults() -> dict[str, Any]:
    return {option.name: copy.deepcopy(option.default) for option in MODEL_OPTIONS}


def is_installed(framework: str) -> bool:
    """Whether the packages of a framework can be found; imports nothing."""
    try:
        return all(importlib.util.find_spec(package) is not None for package in FRAMEWORK_PACKAGES[framework])
    except (ImportError, ValueError):
        return False


def _copy_plain(value: Any) -> Any:
    """Copies dicts and lists; everything else (spaces, classes, functions) is shared."""
    if isinstance(value, dict):
        return {key: _copy_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_plain(item) for item in value]
    return value


def _document_groups(cls: type[AlgorithmConfig]) -> None:
    """Lists each group's keys in the docstring of the method that sets them, so that `help()` shows them."""
    own = {option.name for option in cls.options}
    rows = [option for option in COMMON_OPTIONS if option.name not in own] + list(cls.options)
    for group in GROUPS:
        base: Callable[..., Any] = getattr(AlgorithmConfig, group)
        lines = [
            f"    {option.name}: {option.doc} Default {cls.defaults.get(option.name, option.default)!r}."
            + ("" if option.built else " (Only the default in this version.)")
            for option in rows
            if option.group == group
        ]
        text = f"{(base.__doc__ or '').splitlines()[0]}\n\nArgs:\n" + "\n".join(lines)
        setattr(cls, group, _clone(base, text))


def _clone(function: Any, doc: str) -> Any:
    """A function with the same code and another docstring."""
    clone = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    clone.__annotations__ = dict(function.__annotations__)
    clone.__doc__ = doc
    return clone
