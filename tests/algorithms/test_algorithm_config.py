"""Configs: names, aliases, checks, the same on every path in."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from fakes import ScriptEnv
from modes import has

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.common_options import COMMON_OPTIONS, GROUPS, MODEL_OPTIONS
from polylib.algorithms.options import is_search_space
from polylib.algorithms.ppo import PPOConfig
from polylib.errors import (
    ConfigError,
    ConfigTypeError,
    FrameworkError,
    NotBuiltError,
    UnknownKeyError,
)

OPTIONS = {option.name: option for option in (*COMMON_OPTIONS, *PPOConfig.options)}
UNBUILT = [option for option in OPTIONS.values() if not option.built]


# --- every way to set a key


def by_attribute(config, key, value):
    setattr(config, key, value)


def by_item(config, key, value):
    config[key] = value


def by_method(config, key, value):
    getattr(config, OPTIONS[config._option(key).name].group if key in config else "training")(**{key: value})


def by_update(config, key, value):
    config.update_from_dict({key: value})


def by_from_dict(config, key, value):
    PPOConfig.from_dict({key: value})


PATHS = [by_attribute, by_item, by_method, by_update, by_from_dict]


@pytest.fixture(params=PATHS, ids=[path.__name__ for path in PATHS])
def put(request):
    return request.param


# --- mistakes name their key


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("learning_starts", 9, UnknownKeyError, "unknown config key 'learning_starts' for PPO."),
        ("lrr", 0.1, UnknownKeyError, "unknown config key 'lrr' for PPO. Did you mean 'lr'?"),
        ("lr", -1, ConfigError, "config key 'lr': got -1, expected a number >= 0 or a schedule [[timestep, value]"),
        ("gamma", 1.5, ConfigError, "config key 'gamma': got 1.5, expected a number in [0, 1]"),
        (
            "lr",
            "0.1",
            ConfigTypeError,
            "config key 'lr': got '0.1' (str), expected a number >= 0 or a schedule [[timestep, value], ...]",
        ),
        ("lr", True, ConfigTypeError, "config key 'lr': got True (bool), expected a number >= 0"),
        ("lr", float("nan"), ConfigError, "config key 'lr': got nan, expected a number"),
        ("lr", None, ConfigTypeError, "config key 'lr': got None (NoneType)"),
        ("lr", [[0, 1e-3], [0, 1e-4]], ConfigError, "config key 'lr': got [[0, 0.001], [0, 0.0001]], expected"),
        ("lr", [[0, 1e-3], [10, -1e-4]], ConfigError, "config key 'lr'"),
        ("lr_schedule", 5, ConfigError, "config key 'lr_schedule': got 5, expected None or [[timestep, value], ...]"),
        ("lambda_", 2, ConfigError, "config key 'lambda_': got 2"),
        ("clip_param", 0, ConfigError, "config key 'clip_param': got 0, expected a number > 0"),
        ("train_batch_size", 0, ConfigError, "config key 'train_batch_size': got 0, expected an integer >= 1"),
        ("train_batch_size", 10.5, ConfigError, "config key 'train_batch_size': got 10.5, expected an integer >= 1"),
        ("train_batch_size", 10**400, ConfigError, "config key 'train_batch_size': got 1000"),
        ("train_batch_size", float("inf"), ConfigError, "config key 'train_batch_size': got inf"),
        ("gamma", 10**400, ConfigError, "config key 'gamma'"),
        ("num_workers", "2", ConfigTypeError, "config key 'num_workers': got '2' (str), expected an integer >= 0"),
        ("rollout_fragment_length", "aut", ConfigTypeError, "an integer >= 1 or 'auto'"),
        ("use_gae", 1, ConfigTypeError, "config key 'use_gae': got 1 (int), expected True or False"),
        ("framework", "pytorch", ConfigError, "expected one of 'tf', 'tf2', 'torch', None"),
        ("batch_mode", "truncate", ConfigError, "expected one of 'truncate_episodes', 'complete_episodes'"),
        ("env_config", [1], ConfigTypeError, "config key 'env_config': got [1] (list), expected a dict"),
        ("seed", -1, ConfigError, "config key 'seed': got -1, expected an integer >= 0 or None"),
        ("log_level", 10, ConfigError, "config key 'log_level': got 10"),
        ("model", {"fcnet_hidden": [8]}, UnknownKeyError, "'model.fcnet_hidden'. Did you mean 'fcnet_hiddens'?"),
        ("model", {"fcnet_hiddens": [0]}, ConfigError, "config key 'model.fcnet_hiddens': got [0]"),
        ("model", {"fcnet_hiddens": "8"}, ConfigTypeError, "config key 'model.fcnet_hiddens': got '8' (str)"),
        ("model", {"fcnet_hiddens": 8}, ConfigTypeError, "expected a list of layer sizes such as [256, 256]"),
        ("model", {"fcnet_activation": "rellu"}, ConfigError, "config key 'model.fcnet_activation': got 'rellu'"),
        ("model", [], ConfigTypeError, "config key 'model': got [] (list), expected a dict"),
        ("lr", {"grid_search": 0.1}, ConfigTypeError, "config key 'lr': got {'grid_search': 0.1}, expected"),
        ("lr", {"grid_search": "ab"}, ConfigTypeError, "config key 'lr'"),
        ("lr", {"grid_search": []}, ConfigTypeError, "config key 'lr'"),
        ("lr", {"grid_search": [0.1, -1]}, ConfigError, "config key 'lr': got -1"),
        ("model", {"fcnet_hiddens": {"grid_search": [[8], [0]]}}, ConfigError, "'model.fcnet_hiddens': got [0]"),
        ("model", {"grid_search": [{"fcnet_hiddens": [8]}, {"fcnet": 1}]}, UnknownKeyError, "'model.fcnet'"),
    ],
)
def test_every_path_is_equally_strict(put, key, value, error, says):
    config = PPOConfig()
    with pytest.raises(error) as caught:
        put(config, key, value)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ValueError)
    assert config.to_dict() == PPOConfig().to_dict() and config.sources == {}, "nothing was set"


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("lr", 1e-3, 1e-3),
        ("lr", [[0, 1e-3], [1000, 0]], [[0.0, 1e-3], [1000.0, 0.0]]),
        ("lr", np.float32(0.5), 0.5),
        ("lambda", 0.9, 0.9),
        ("train_batch_size", 4e3, 4000),
        ("train_batch_size", np.int64(7), 7),
        ("seed", 2**53 + 1, 2**53 + 1),
        ("rollout_fragment_length", "auto", "auto"),
        ("framework", "tf2", "tf2"),
        ("framework", None, None),
        ("grad_clip", None, None),
        ("grad_clip", 40, 40.0),
        ("env", ScriptEnv, ScriptEnv),
        ("env_config", {"a": [1]}, {"a": [1]}),
        ("custom_evaluation_function", None, None),
        ("explore", False, False),
    ],
)
def test_good_values(put, key, value, stored):
    config = PPOConfig()
    put(config, key, value)
    if put is not by_from_dict:
        assert config[key] == config.get(key) == stored and type(config[key]) is type(stored)
        assert config.sources == {key: "code"}
    assert PPOConfig.from_dict({key: value})[key] == stored


# --- names


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        # RLlib 2.6's Python names
        ("lambda_", "lambda", 0.5),
        ("num_rollout_workers", "num_workers", 3),
        ("input_", "input", "sampler"),
        ("callbacks_class", "callbacks", None),
        ("num_cpus_for_driver", "num_cpus_for_local_worker", 2),
        # RLlib 2.60's
        ("num_env_runners", "num_workers", 3),
        ("num_envs_per_env_runner", "num_envs_per_worker", 3),
        ("minibatch_size", "sgd_minibatch_size", 16),
        ("num_epochs", "num_sgd_iter", 3),
        ("shuffle_batch_per_epoch", "shuffle_sequences", False),
        ("train_batch_size_per_learner", "train_batch_size", 99),
        ("num_cpus_per_env_runner", "num_cpus_per_worker", 2),
        ("num_gpus_per_env_runner", "num_gpus_per_worker", 0),
        ("custom_resources_per_env_runner", "custom_resources_per_worker", {"x": 1}),
        ("num_cpus_for_main_process", "num_cpus_for_local_worker", 2),
        ("evaluation_num_env_runners", "evaluation_num_workers", 0),
        ("restart_failed_env_runners", "recreate_failed_workers", False),
        ("ignore_env_runner_failures", "ignore_worker_failures", False),
    ],
)
def test_aliases(put, alias, name, value):
    config = PPOConfig()
    put(config, alias, value)
    if put is not by_from_dict:
        assert config[name] == config[alias] == value == config.get(alias)
        if name not in ("input", "callbacks", "lambda"):
            assert getattr(config, alias) == getattr(config, name) == value
    made = PPOConfig.from_dict({alias: value}).to_dict()
    assert made[name] == value and alias not in made


def test_two_names_of_one_key_must_agree():
    assert PPOConfig.from_dict({"num_workers": 2, "num_env_runners": 2}).num_workers == 2
    with pytest.raises(ConfigError, match="'num_workers' and 'num_env_runners' are the same key"):
        PPOConfig.from_dict({"num_workers": 2, "num_env_runners": 3})
    with pytest.raises(ConfigError, match="'lambda' and 'lambda_' are the same key"):
        PPOConfig().training(**{"lambda": 0.5, "lambda_": 0.6})


def test_no_name_stands_for_two_keys():
    for options in ((*COMMON_OPTIONS,), PPOConfig.options, MODEL_OPTIONS):
        names = [name for option in options for name in (option.name, *option.aliases)]
        assert len(names) == len(set(names))


def test_newer_group_names():
    config = PPOConfig().env_runners(num_env_runners=1).rollouts(num_envs_per_worker=2)
    assert (config.num_workers, config.num_envs_per_worker) == (1, 2)


def test_unknown_attributes():
    with pytest.raises(AttributeError, match="has no attribute or config key 'gama'. Did you mean 'gamma'?"):
        _ = PPOConfig().gama
    with pytest.raises(KeyError, match="unknown config key 'gama'"):
        PPOConfig()["gama"]
    assert PPOConfig().get("gama") is None and PPOConfig().get("gama", 7) == 7
    assert "gamma" in PPOConfig() and "gama" not in PPOConfig() and "lambda_" in PPOConfig()


# --- methods


def test_all_fourteen_groups_chain():
    config = PPOConfig()
    assert len(GROUPS) == 14
    for group in GROUPS:
        assert getattr(config, group)() is config
    assert {option.group for option in OPTIONS.values()} == set(GROUPS)


def test_none_is_a_value():
    config = PPOConfig().framework("torch").environment("CartPole-v1")
    assert config.framework()["framework"] == "torch" and config.environment().env == "CartPole-v1"
    assert config.framework(None)["framework"] is None and config.environment(env=None).env is None


def test_positional_arguments():
    config = PPOConfig().environment("CartPole-v1", env_config={"a": 1}).framework("tf2", eager_tracing=False)
    assert (config.env, config["framework"], config.eager_tracing) == ("CartPole-v1", "tf2", False)
    config.callbacks(None)
    assert config.environment(env=ScriptEnv).env is ScriptEnv


def test_a_key_of_another_group():
    with pytest.raises(UnknownKeyError, match=r"config key 'lr' is set by .training\(\), not by .rollouts\(\)"):
        PPOConfig().rollouts(lr=0.1)
    with pytest.raises(UnknownKeyError, match=r"'num_env_runners' is set by .rollouts\(\), not by .training\(\)"):
        PPOConfig().training(num_env_runners=1)


def test_a_method_sets_all_or_nothing():
    config = PPOConfig()
    with pytest.raises(ConfigError):
        config.training(lr=0.5, gamma=7)
    with pytest.raises(ConfigError):
        config.training(lr=0.5, evaluation_interval=7)
    assert config.lr == PPOConfig().lr


@pytest.mark.parametrize("group", GROUPS)
def test_help_lists_keys_defaults_and_meanings(group):
    text = pydoc.plain(pydoc.render_doc(getattr(PPOConfig, group)))
    rows = [option for option in OPTIONS.values() if option.group == group]
    assert rows
    for option in rows:
        default = PPOConfig.defaults.get(option.name, option.default)
        assert f"{option.name}: {option.doc} Default {default!r}." in text
    assert inspect.getdoc(getattr(AlgorithmConfig, group)) != inspect.getdoc(getattr(PPOConfig, group))


def test_help_of_training():
    text = PPOConfig.training.__doc__
    assert "lr: Learning rate" in text and "Default 0.0003." in text and "train_batch_size: " in text
    assert "Default 4000." in text
    assert "(Only the default in this version.)" in PPOConfig.evaluation.__doc__
    assert PPOConfig.training.__name__ == "training"


# --- the tables


@pytest.mark.parametrize("option", [*OPTIONS.values(), *MODEL_OPTIONS], ids=lambda option: option.name)
def test_every_option_has_a_meaning_and_a_default_that_passes_its_check(option):
    assert len(option.doc.split()) > 1 and option.doc.endswith(".")
    checked = option.check(option.default)
    assert checked == option.default and type(checked) in (type(option.default), float)
    if option.name in PPOConfig.defaults:
        assert option.check(PPOConfig.defaults[option.name]) == PPOConfig.defaults[option.name]


def test_the_defaults_make_a_valid_config():
    PPOConfig().environment("CartPole-v1").validate()
    assert PPOConfig.from_dict(PPOConfig().to_dict()).to_dict() == PPOConfig().to_dict()


OFF_DEFAULT = {bool: lambda d: not d, int: lambda d: d + 1, float: lambda d: d + 1.0, dict: lambda d: {**d, "x": 1}}
CHOICES = {
    "evaluation_duration_unit": "timesteps",
    "count_steps_by": "agent_steps",
    "preprocessor_pref": None,
    "evaluation_interval": 1,
    "observation_filter": "MeanStdFilter",
}


@pytest.mark.parametrize("option", [o for o in MODEL_OPTIONS if not o.built], ids=lambda option: option.name)
def test_a_model_key_without_its_feature_raises_off_its_default(option):
    default = option.default
    value = OFF_DEFAULT.get(type(default), lambda d: "relu" if d == "tanh" else "tanh" if isinstance(d, str) else [1])
    PPOConfig().training(model={option.name: default})
    with pytest.raises(NotBuiltError, match=f"config key 'model.{option.name}': this version"):
        PPOConfig().training(model={option.name: value(default)})


@pytest.mark.parametrize("option", UNBUILT, ids=lambda option: option.name)
def test_a_key_without_its_feature_raises_off_its_default(put, option):
    default = option.default
    value = CHOICES.get(option.name, OFF_DEFAULT.get(type(default), lambda d: len)(default))
    put(PPOConfig(), option.name, default)
    with pytest.raises(NotBuiltError, match=f"config key {option.name!r}: this version of polylib has only its"):
        put(PPOConfig(), option.name, value)
    with pytest.raises(NotBuiltError, match=f"config key {option.name!r}"):
        put(PPOConfig(), option.name, {"grid_search": [default, value]})


# --- cross-key checks


@pytest.mark.parametrize("order", [1, -1])
def test_keys_that_exclude_each_other(order):
    keys = {"ignore_worker_failures": True, "recreate_failed_workers": True}
    keys = dict(list(keys.items())[::order])
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(keys)
    text = str(caught.value)
    assert "'ignore_worker_failures' and 'recreate_failed_workers' exclude each other" in text
    assert not isinstance(caught.value, NotBuiltError)
    with pytest.raises(ConfigError, match="exclude each other"):
        PPOConfig().rollouts(ignore_env_runner_failures=True, restart_failed_env_runners=True)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sgd_minibatch_size": 200, "train_batch_size": 100}, "'sgd_minibatch_size': 200 rows don't fit"),
        ({"use_critic": False}, "'use_gae'"),
    ],
)
def test_validate(keys, says):
    config = PPOConfig.from_dict(keys)
    with pytest.raises(ConfigError, match=says):
        config.validate()


def test_validate_sees_what_was_changed_in_place():
    config = PPOConfig()
    config.model["fcnet_hiddens"] = [8]
    config.validate()
    config.model["fcnet_hiddens"] = "many"
    with pytest.raises(ConfigTypeError, match="'model.fcnet_hiddens': got 'many'"):
        config.validate()
    config = PPOConfig()
    config.model["fcnet_hidens"] = [8]
    with pytest.raises(UnknownKeyError, match="Did you mean 'fcnet_hiddens'"):
        config.validate()


# --- search spaces


def test_search_spaces_pass_and_are_checked():
    from ray import tune

    config = PPOConfig().training(
        lr=tune.grid_search([1e-3, 1e-4]),
        gamma=tune.uniform(0.9, 1.0),
        clip_param=tune.choice([0.1, 0.2]),
        model={"fcnet_hiddens": tune.grid_search([[8], [16]])},
    )
    config.debugging(seed=tune.sample_from(lambda spec: 3))
    assert config.lr == {"grid_search": [1e-3, 1e-4]}
    assert all(is_search_space(config[key]) for key in ("lr", "gamma", "clip_param", "seed"))
    with pytest.raises(ConfigError, match="config key '.*' is a Tune search space: run it with tune.Tuner"):
        config.validate()
    config = PPOConfig().training(model={"fcnet_hiddens": tune.grid_search([[8], [16]])})
    with pytest.raises(ConfigError, match="config key 'model.fcnet_hiddens' is a Tune search space"):
        config.validate()
    assert not is_search_space({"grid_search": [1], "more": 1}) and not is_search_space({})


def test_a_grid_of_models():
    grid = {"grid_search": [{"fcnet_hiddens": [8]}, {"fcnet_hiddens": [16], "vf_share_layers": True}]}
    config = PPOConfig().training(model=grid)
    assert config.model == config.to_dict()["model"] == grid
    assert ("model", grid, "code") in config.explain()
    with pytest.raises(ConfigError, match="'model' is a Tune search space"):
        config.validate()
    assert config.copy().model == grid
    # What a trial gets is one of them.
    trial = PPOConfig.from_dict({**config.to_dict(), "model": grid["grid_search"][0]})
    assert trial.model["fcnet_hiddens"] == [8] and trial.model["fcnet_activation"] == "tanh"
    config.training(model={"fcnet_activation": "relu"})
    assert config.model["fcnet_activation"] == "relu" and config.model["fcnet_hiddens"] == [256, 256]


# --- dicts, copies, sources


def test_to_dict_and_back():
    config = PPOConfig().environment("CartPole-v1").training(lr=0.5, model={"fcnet_hiddens": [8]})
    made = config.to_dict()
    assert made["lr"] == 0.5 and made["model"]["fcnet_hiddens"] == [8] and made["model"]["vf_share_layers"] is False
    assert "lambda" in made and "lambda_" not in made and set(made) == set(OPTIONS)
    assert PPOConfig.from_dict(made).to_dict() == made
    made["model"]["fcnet_hiddens"].append(9)
    made["env_config"]["x"] = 1
    assert config.model["fcnet_hiddens"] == [8] and config.env_config == {}


def test_configs_share_nothing():
    one, other = PPOConfig(), PPOConfig()
    one.model["fcnet_hiddens"].append(8)
    one.env_config["x"] = 1
    assert other.model["fcnet_hiddens"] == [256, 256] and other.env_config == {}
    assert PPOConfig().model["fcnet_hiddens"] == [256, 256]
    given = {"env_config": {"x": [1]}, "model": {"fcnet_hiddens": [8]}}
    made = PPOConfig.from_dict(given)
    given["env_config"]["y"] = 1
    given["model"]["fcnet_hiddens"].append(8)
    assert made.env_config == {"x": [1]} and made.model["fcnet_hiddens"] == [8]


def copied(config):
    return config.copy()


@pytest.mark.parametrize("copy_it", [copied, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_independent(copy_it):
    config = PPOConfig().environment("CartPole-v1", env_config={"x": [1]})
    config.training(lr=0.5, model={"fcnet_hiddens": [8]})
    other = copy_it(config)
    assert other.to_dict() == config.to_dict() and other.sources == config.sources and type(other) is PPOConfig
    other.training(lr=0.25, model={"fcnet_hiddens": [9]})
    other.env_config["x"].append(2)
    other.model["fcnet_hiddens"].append(3)
    assert config.lr == 0.5 and config.model["fcnet_hiddens"] == [8] and config.env_config == {"x": [1]}
    assert config.sources["lr"] == "code"


def test_frozen():
    config = PPOConfig().training(lr=0.5)
    config.freeze()
    for put in (by_attribute, by_item, by_method, by_update):
        with pytest.raises(ConfigError, match=r"already built; change a copy: config.copy\(copy_frozen=False\)"):
            put(config, "lr", 0.1)
    assert config.copy().training(lr=0.1).lr == 0.1
    with pytest.raises(ConfigError, match="already built"):
        config.copy(copy_frozen=True).training(lr=0.1)
    with pytest.raises(ConfigError, match="already built"):
        pickle.loads(pickle.dumps(config)).training(lr=0.1)
    assert config.lr == 0.5


def test_the_model_is_merged():
    config = PPOConfig().training(model={"fcnet_hiddens": [8]}).training(model={"vf_share_layers": True})
    assert config.model["fcnet_hiddens"] == [8] and config.model["vf_share_layers"] is True
    assert config.model["fcnet_activation"] == "tanh"
    config.model = {"fcnet_activation": "relu"}
    assert config.model["fcnet_hiddens"] == [8] and config.model["fcnet_activation"] == "relu"


def test_explain_says_where_values_come_from():
    config = PPOConfig().training(lr=0.5)
    config.update_from_dict({"gamma": 0.9, "model": {"fcnet_hiddens": [8]}}, source="--config")
    config.update_from_dict({"num_env_runners": 2}, source="flag")
    rows = {key: (value, source) for key, value, source in config.explain()}
    assert rows["lr"] == (0.5, "code") and rows["gamma"] == (0.9, "--config") and rows["num_workers"] == (2, "flag")
    assert rows["clip_param"] == (0.3, "default") and rows["model.fcnet_hiddens"] == ([8], "--config")
    assert rows["model.fcnet_activation"] == ("tanh", "default") and "model" not in rows
    keys = [key for key, *_ in config.explain()]
    assert keys[0] == "clip_param" and len(keys) == len(set(keys)) == len(OPTIONS) - 1 + len(MODEL_OPTIONS)
    assert [key for key in keys if key in ("env", "env_config", "gamma", "lr")] == ["gamma", "lr", "env", "env_config"]


def test_repr_shows_what_was_set():
    assert repr(PPOConfig().training(lr=0.5)) == "PPOConfig(lr=0.5)"


@pytest.mark.parametrize("values", [None, 5, "lr=1", [("lr", 1)]])
def test_a_config_is_a_dict(values):
    with pytest.raises(ConfigTypeError, match="a config must be a dict"):
        PPOConfig.from_dict(values)


def test_a_config_without_an_algorithm():
    with pytest.raises(ConfigError, match="use an algorithm's own config, such as PPOConfig"):
        AlgorithmConfig().build()


def test_fragment_lengths():
    def length(num_envs=None, **keys):
        return PPOConfig.from_dict(keys).get_rollout_fragment_length(num_envs)

    assert length(rollout_fragment_length=7, num_workers=2) == 7
    assert length() == 4000
    assert length(num_workers=2, num_envs_per_worker=5) == 400
    assert length(num_workers=3, train_batch_size=100) == 34
    assert length(train_batch_size=4000, num_envs=8) == 500
    assert length(num_workers=50, train_batch_size=10, sgd_minibatch_size=5) == 1


# --- frameworks


@pytest.mark.skipif(not (has("tf") and has("torch")), reason="needs both frameworks")
def test_the_framework_that_runs(block_import):
    assert PPOConfig().resolve_framework() == ("tf2", True)
    assert PPOConfig().framework("tf2", eager_tracing=False).resolve_framework() == ("tf2", False)
    assert PPOConfig().framework("tf").resolve_framework() == ("tf", False)
    assert PPOConfig().framework("torch").resolve_framework() == ("torch", False)
    assert PPOConfig().framework("torch").framework_str == "torch"
    block_import("tensorflow")
    assert PPOConfig().resolve_framework() == ("torch", False)
    for framework in ("tf", "tf2"):
        with pytest.raises(FrameworkError) as caught:
            PPOConfig().framework(framework).resolve_framework()
        assert str(caught.value) == (
            f"framework '{framework}' needs tensorflow, not installed here: pip install 'polylib[tf]'"
        )


def test_no_framework_at_all(block_import):
    block_import("torch", "tensorflow", "keras")
    with pytest.raises(FrameworkError, match=r"polylib\[tf\]'.*polylib\[torch\]"):
        PPOConfig().resolve_framework()
    with pytest.raises(FrameworkError, match=r"framework 'torch' needs torch, not installed here.*polylib\[torch\]"):
        PPOConfig().framework("torch").resolve_framework()
    with pytest.raises(FrameworkError, match="'tf2' needs tensorflow and keras, not installed"):
        PPOConfig().framework("tf2").resolve_framework()


def test_an_algorithm_without_that_backend(block_import):
    """An algorithm without a backend for the framework names those it has."""

    class OnlyTF(PPOConfig):
        algo_name = "OnlyTF"
        supported_frameworks = ("tf", "tf2")

    with pytest.raises(FrameworkError, match="OnlyTF has no 'torch' backend; it runs with framework 'tf' or 'tf2'"):
        OnlyTF().framework("torch").resolve_framework()
    block_import("tensorflow")
    with pytest.raises(FrameworkError):
        OnlyTF().resolve_framework()


def test_configs_load_no_framework_and_no_ray():
    code = """
import sys
from polylib import PPOConfig
config = PPOConfig().environment("CartPole-v1").training(lr=0.5)
config.resolve_framework(), config.to_dict(), config.copy(), config.validate()
print([name for name in ("ray", "torch", "tensorflow", "keras") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_a_users_own_config():
    from polylib.algorithms.options import Option, integer

    class Mine(PPOConfig):
        algo_name = "Mine"
        options = (*PPOConfig.options, Option("depth", "training", 3, integer(1), "How deep."))
        defaults = {**PPOConfig.defaults, "gamma": 0.5}

    config = Mine().training(depth=4)
    assert (config.depth, config.gamma, config.lr) == (4, 0.5, 3e-4)
    assert "depth: How deep. Default 3." in Mine.training.__doc__ and "depth" not in PPOConfig.training.__doc__
    with pytest.raises(UnknownKeyError, match="'depth' for PPO"):
        PPOConfig().training(depth=3)


def test_spaces_as_values():
    config = PPOConfig().environment(observation_space=gym.spaces.Box(0, 1, (2,)), action_space=gym.spaces.Discrete(2))
    assert config.copy().to_dict()["action_space"] == gym.spaces.Discrete(2)
    config.validate()
