"""Environments by name."""

from __future__ import annotations

import pytest
from fakes import MatchEnv, ScriptEnv

import polylib
from polylib import registry
from polylib.errors import ConfigTypeError, EnvError
from polylib.registry import add_env_store, env_creator, env_name, register_env, registered_creator


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_envs", {})
    monkeypatch.setattr(registry, "_stores", [])


def complaint(env):
    with pytest.raises(EnvError) as caught:
        env_creator(env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_registered_name():
    polylib.register_env("my-env", ScriptEnv)
    assert env_creator("my-env") is ScriptEnv
    register_env("my-env", MatchEnv)
    assert env_creator("my-env") is MatchEnv


def test_a_registered_name_goes_before_gymnasiums():
    register_env("CartPole-v1", ScriptEnv)
    assert isinstance(env_creator("CartPole-v1")({}), ScriptEnv)


def test_a_creator_must_be_callable():
    with pytest.raises(ConfigTypeError, match=r"register_env\('x'\): the creator must be callable, got 5"):
        register_env("x", 5)


@pytest.mark.parametrize(
    ("typo", "meant"), [("CartPol-v1", "CartPole-v1"), ("cartpole-v1", "CartPole-v1"), ("my-envv", "my-env")]
)
def test_an_unknown_name_offers_the_nearest(typo, meant):
    register_env("my-env", ScriptEnv)
    text = complaint(typo)
    assert f"unknown environment {typo!r}" in text and f"Did you mean {meant!r}?" in text


def test_atari_names_say_what_to_install(block_import):
    assert "Atari environments are called like ALE/Pong-v5" in complaint("Pongg-v5")
    assert "Atari" not in complaint("nothing like it")
    block_import("ale_py")
    assert "polylib[atari]" in complaint("ALE/Pongg-v5")


def test_an_id_without_a_version_is_the_newest():
    assert env_creator("CartPole")({}).spec.id == "CartPole-v1"


def test_module_and_class():
    assert env_creator("fakes:ScriptEnv") is ScriptEnv


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no_such_module:Env", "can't import 'no_such_module': ModuleNotFoundError: No module named 'no_such_module'"),
        ("fakes:NoSuch", "module 'fakes' has no 'NoSuch'"),
        ("fakes:", "module 'fakes' has no ''"),
        (":Env", "can't import ''"),
        ("fakes:np", "expected a class or function"),
    ],
)
def test_bad_module_and_class(text, says):
    assert says in complaint(text)


def test_a_module_that_raises_when_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no display\\nhere')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "can't import 'broken_module': RuntimeError: no display here" in complaint("broken_module:Env")


def test_gymnasiums_own_form_of_module_and_id(tmp_path, monkeypatch):
    (tmp_path / "registering.py").write_text(
        "import gymnasium\ngymnasium.register('Registering-v0', entry_point='fakes:ScriptEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import gymnasium

    try:
        env = env_creator("registering:Registering-v0")({"config": {"episodes": [[4, 5]]}})
        assert env.reset()[0].tolist() == [4.0]
    finally:
        gymnasium.registry.pop("Registering-v0", None)


def test_action_distributions_by_name(monkeypatch):
    monkeypatch.setattr(registry, "_action_dists", {})
    assert registry.registered_action_dist("mine") is None
    polylib.register_action_dist("mine", dict)
    assert registry.registered_action_dist("mine") is dict
    with pytest.raises(ConfigTypeError, match=r"register_action_dist\('x'\): the factory must be callable, got 5"):
        polylib.register_action_dist("x", 5)


@pytest.mark.parametrize("env", [5, None, ["CartPole-v1"], {"env": 1}])
def test_what_is_no_environment(env):
    text = complaint(env)
    assert "config key 'env'" in text and type(env).__name__ in text


def test_short_names():
    def maker(config):
        return None

    assert (env_name("CartPole-v1"), env_name(ScriptEnv), env_name(maker)) == ("CartPole-v1", "ScriptEnv", "maker")


class Store:
    def __init__(self, found=None):
        self.names, self.found = {}, found or {}

    def put(self, name, creator):
        self.names[name] = creator

    def find(self, name):
        return self.found.get(name)


def test_a_store_gets_what_was_and_will_be_registered():
    register_env("before", ScriptEnv)
    store = Store()
    add_env_store(store)
    register_env("after", MatchEnv)
    assert store.names == {"before": ScriptEnv, "after": MatchEnv}
    add_env_store(store)  # a second time, as when Ray starts again
    store.names.clear()
    register_env("last", MatchEnv)
    assert list(store.names) == ["last"] and len(registry._stores) == 1


def test_a_store_knows_what_another_process_registered():
    add_env_store(Store({"theirs": MatchEnv}))
    assert env_creator("theirs") is registered_creator("theirs") is MatchEnv
    assert registered_creator("CartPole-v1") is None and registered_creator(ScriptEnv) is None
    register_env("theirs", ScriptEnv)
    assert env_creator("theirs") is ScriptEnv


class Kept(dict):
    """A store of names for other processes."""

    put = dict.__setitem__
    find = dict.get


def test_models_registered_before_and_after_are_in_a_store(monkeypatch):
    monkeypatch.setattr(registry, "_models", registry._Shelf())
    polylib.register_model("before", ScriptEnv)
    store = Kept(elsewhere=MatchEnv)
    registry.add_model_store(store)
    polylib.register_model("after", MatchEnv)
    assert store == {"before": ScriptEnv, "after": MatchEnv, "elsewhere": MatchEnv}
    assert registry.registered_model("elsewhere") is registry.named_model("elsewhere") is MatchEnv
    assert registry.registered_model("nowhere") is registry.registered_model(ScriptEnv) is None


def test_inputs_registered_before_and_after_are_in_a_store(monkeypatch):
    monkeypatch.setattr(registry, "_inputs", registry._Shelf())
    polylib.register_input("before", ScriptEnv)
    store = Kept(elsewhere=MatchEnv)
    registry.add_input_store(store)
    polylib.register_input("after", MatchEnv)
    assert store == {"before": ScriptEnv, "after": MatchEnv, "elsewhere": MatchEnv}
    assert registry.registered_input("elsewhere") is registry.registered_input("after") is MatchEnv
    assert registry.registered_input("nowhere") is registry.registered_input(ScriptEnv) is None


def test_tunes_registry_keeps_inputs(monkeypatch):
    """A process without what the driver registered finds it there."""
    from ray.tune.registry import RLLIB_INPUT, _global_registry

    from polylib.algorithms import trainable

    monkeypatch.setattr(registry, "_inputs", registry._Shelf())
    registry.add_input_store(trainable._TUNE_INPUTS)
    polylib.register_input("of a test", lambda context: [context])
    registry._inputs.clear()
    try:
        assert registry.registered_input("of a test")(3) == [3]
    finally:
        _global_registry.unregister(RLLIB_INPUT, "of a test")
    assert registry.registered_input("of a test") is None
