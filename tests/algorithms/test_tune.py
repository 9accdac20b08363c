"""PPO under Ray Tune, which must never go looking for it in RLlib."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import MatchEnv, ScriptEnv, small_ppo

from polylib.algorithms.ppo import PPO, PPOConfig
from polylib.errors import ConfigError, EnvError
from polylib.registry import register_env

ROOT = Path(__file__).parents[2]
RLLIB = "ray." + "rllib"


def run(code):
    """Runs Python code in a fresh process; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def fit(ray_session, tmp_path):
    """Runs a Tuner quietly, in a folder of its own."""
    from ray import tune

    def go(trainable, param_space, iterations=1, **tune_config):
        run_config = tune.RunConfig(
            name="exp", storage_path=str(tmp_path), stop={"training_iteration": iterations}, verbose=0
        )
        tuner = tune.Tuner(
            trainable, param_space=param_space, run_config=run_config, tune_config=tune.TuneConfig(**tune_config)
        )
        return tuner.fit()

    return go


def tiny(env=MatchEnv, **keys):
    small = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_cpus_for_local_worker": 0.5}
    return small_ppo(env, **{**small, **keys})


def test_a_config_object_with_a_grid(fit, tmp_path):
    from ray import tune

    config = tiny().training(lr=tune.grid_search([0.01, 0.02]))
    results = fit("PPO", config, iterations=2)
    assert not results.errors and len(results) == 2
    assert sorted(r.config["lr"] for r in results) == [0.01, 0.02]
    for result in results:
        metrics = result.metrics
        assert math.isfinite(metrics["episode_reward_mean"]) and metrics["timesteps_total"] == 80
        assert metrics["training_iteration"] == 2 and metrics["config"]["lr"] == result.config["lr"]
        stats = metrics["info"]["learner"]["default_policy"]["learner_stats"]
        assert stats["cur_lr"] == pytest.approx(result.config["lr"])
        files = {path.name for path in Path(result.path).iterdir()}
        assert {"params.json", "result.json", "progress.csv"} <= files
    assert RLLIB not in sys.modules


def test_a_dict_with_a_grid_a_registered_name_and_a_worker(fit):
    """The trial lives in another process than the one that knows the name, and its worker in a third."""
    register_env("tune-only-name", lambda config: MatchEnv({"length": config.get("length", 5)}))
    space = {
        **tiny("tune-only-name").to_dict(),
        "env_config": {"length": {"grid_search": [4]}},
        "num_workers": 1,
        "num_cpus_per_worker": 0.5,
    }
    results = fit("PPO", space)
    assert not results.errors, results.errors
    (result,) = results
    assert result.metrics["episode_len_mean"] == 4 and result.metrics["num_healthy_workers"] == 1
    assert RLLIB not in sys.modules


def test_a_failing_trial_carries_the_one_line(fit):
    from ray import tune

    from polylib.algorithms.trainable import original_error

    results = fit(PPO, tiny("no-such-env", lr=tune.grid_search([0.01])))
    (error,) = results.errors
    assert "unknown environment 'no-such-env'" in str(original_error(error))


def test_resources_come_from_the_config():
    def bundles(**keys):
        factory = PPO.default_resource_request({"env": ScriptEnv, **keys})
        return [dict(bundle) for bundle in factory.bundles], factory.strategy

    assert bundles() == ([{"CPU": 1.0}], "PACK")
    assert bundles(num_workers=2) == ([{"CPU": 1.0}] * 3, "PACK")
    assert bundles(
        num_workers=2,
        num_cpus_per_worker=0.5,
        num_cpus_for_local_worker=2,
        custom_resources_per_worker={"crane": 1},
        placement_strategy="SPREAD",
    ) == ([{"CPU": 2.0}, {"CPU": 0.5, "crane": 1}, {"CPU": 0.5, "crane": 1}], "SPREAD")
    assert bundles(num_env_runners=1, evaluation_interval=1, evaluation_num_workers=2)[0] == [{"CPU": 1.0}] * 4
    assert bundles(evaluation_num_workers=2)[0] == [{"CPU": 1.0}], "nothing evaluates"
    with pytest.raises(ConfigError, match="'lrr'"):
        bundles(lrr=1)


def test_a_trial_whose_reservation_is_too_small_fails_at_once(fit):
    from ray import tune

    from polylib.algorithms.trainable import original_error

    trainable = tune.with_resources(PPO, {"cpu": 1})
    results = fit(trainable, tiny(num_workers=2).to_dict())
    (error,) = results.errors
    assert "2 workers need 2 CPU, and all that was reserved for this trial is 1" in str(original_error(error))


# --- the name


TOUCHES = [
    "from polylib import PPOConfig",
    "from polylib import PPO",
    "import polylib; polylib.PPOConfig",
    "from polylib.algorithms.ppo import PPOConfig",
    "from polylib.algorithms.ppo import PPO",
    "from polylib.algorithms.algorithm import Algorithm",
    "from polylib.algorithms.registry import get_algorithm_class",
]

LOOK_UP = """
import sys
from ray.tune.registry import get_trainable_cls
found = get_trainable_cls("PPO")
assert not any(name.split(".")[:2] == ["ray", "rllib"] for name in sys.modules)
import polylib
assert found is polylib.PPO, found
"""


def test_touching_ppo_is_enough_for_tune():
    """Each in a process of its own, before and after Tune is imported."""
    code = f"""
import os, traceback
import gymnasium, pandas, pyarrow, requests, fsspec, ray  # all that takes long

def each_in_a_process():
    for touch in {TOUCHES!r}:
        if not os.fork():
            try:
                exec(touch + {LOOK_UP!r})
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.wait()[1] == 0, touch

each_in_a_process()
import ray.tune
each_in_a_process()
"""
    run(code)


def test_touching_the_config_does_not_import_ray():
    code = """
import sys
from polylib import PPOConfig
PPOConfig().environment("CartPole-v1").to_dict()
print("ray" in sys.modules)
import ray
print("ray.tune" in sys.modules, "polylib.algorithms.trainable" in sys.modules)
import ray.tune
from ray.tune import __loader__, __spec__
print("polylib.algorithms.trainable" in sys.modules, "polylib.algorithms.ppo.ppo" in sys.modules)
print(type(__loader__).__name__, type(__spec__.loader).__name__, ray.tune.Tuner.__name__)
"""
    expected = "False\nFalse False\nTrue False\nSourceFileLoader SourceFileLoader Tuner\n"
    assert run(code) == expected


def test_a_tuner_by_name_after_nothing_but_the_config(tmp_path):
    """In a fresh process, where nobody else could have registered it."""
    code = f"""
import sys
from polylib import PPOConfig
from ray import tune
import ray
from fakes import MatchEnv, small_ppo

config = small_ppo(MatchEnv, train_batch_size=40, sgd_minibatch_size=20)
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
run_config = tune.RunConfig(storage_path={str(tmp_path)!r}, stop={{"training_iteration": 1}}, verbose=0)
(result,) = tune.Tuner("PPO", param_space=config, run_config=run_config).fit()
assert result.error is None, result.error
assert result.metrics["timesteps_total"] == 40
ray.shutdown()
assert not any(name.split(".")[:2] == ["ray", "rllib"] for name in sys.modules)
print("done")
"""
    assert run(code).splitlines()[-1] == "done"


def test_a_ray_that_starts_again_knows_the_name(ray_session):
    """Its registry is empty then; that is done here by hand."""
    import ray
    from ray.tune.registry import ENV_CREATOR, TRAINABLE_CLASS, _global_registry, get_trainable_cls

    register_env("again", ScriptEnv)
    for category, name in ((TRAINABLE_CLASS, "PPO"), (ENV_CREATOR, "again")):
        assert _global_registry.contains(category, name)
        _global_registry.unregister(category, name)
        assert not _global_registry.contains(category, name)
    for hook in ray._private.worker._post_init_hooks:
        hook()
    assert get_trainable_cls("PPO") is PPO and _global_registry.get(ENV_CREATOR, "again") is ScriptEnv
    assert RLLIB not in sys.modules


def test_an_algorithm_registered_later_is_known_too(monkeypatch):
    from ray.tune.registry import get_trainable_cls

    from polylib.algorithms import registry

    monkeypatch.setattr(registry, "_registered", {})

    class LaterConfig(PPOConfig):
        algo_name = "Later"

    class Later(PPO):
        config_class = LaterConfig

    registry.register_algorithm("Later", LaterConfig, Later)
    assert get_trainable_cls("Later").__name__ == "Later"
    assert RLLIB not in sys.modules


def test_an_environment_that_cannot_be_pickled_is_said(monkeypatch, caplog):
    import threading

    from polylib import registry
    from polylib.algorithms.trainable import _TuneEnvs

    monkeypatch.setattr(registry, "_envs", {})
    monkeypatch.setattr(registry, "_stores", [_TuneEnvs()])
    lock = threading.Lock()
    register_env("locked", lambda config: lock and ScriptEnv())
    assert "environment 'locked' is known in this process only, since it can't be pickled" in caplog.text
    assert registry.env_creator("locked")({}).reset()
    with pytest.raises(EnvError):
        registry.env_creator("unlocked")
