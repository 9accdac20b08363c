"""What people do with Tune: population-based training, early stopping, resuming, stopping on any key."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes import MatchEnv, small_ppo

import polylib
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPO
from polylib.callbacks import DefaultCallbacks
from polylib.policy.policy import Policy


class Bonus(MatchEnv):
    """Pays what its config says besides, so that it is known beforehand which trial is best."""

    def __init__(self, config=()):
        config = dict(config)
        self.bonus = config.pop("bonus", 0)
        super().__init__(config)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + self.bonus, *rest


class Watching(DefaultCallbacks):
    """Reports what the policy really uses, and what was restored in this process."""

    def on_algorithm_init(self, *, algorithm, **kwargs):
        algorithm.restored_at = -1

    def on_checkpoint_loaded(self, *, algorithm, **kwargs):
        algorithm.restored_at = algorithm.iteration

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["steps"] = episode.length

    def on_train_result(self, *, algorithm, result, **kwargs):
        result["coefficients"] = dict(algorithm.get_policy().coefficients)
        result["updates"] = algorithm.get_policy().num_updates
        result["restored_at"] = algorithm.restored_at
        result["process"] = result["pid"]


class FailsOnce(Watching):
    """The experiment ends in the middle of a trial, the first time."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        super().on_train_result(algorithm=algorithm, result=result)
        marker = Path(algorithm.config["env_config"]["marker"])
        if algorithm.iteration == 3 and not marker.exists():
            marker.write_text("failed")
            raise RuntimeError("the power is gone")


class Marked(MatchEnv):
    """Takes the marker's name too."""

    def __init__(self, config=()):
        super().__init__({key: value for key, value in dict(config).items() if key != "marker"})


def tiny(env=Bonus, callbacks=Watching, **keys):
    small = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_cpus_for_local_worker": 0.5}
    return small_ppo(env, callbacks=callbacks, **{**small, **keys})


@pytest.fixture
def tuner(ray_session, tmp_path):
    """Makes a Tuner that is quiet and writes to a folder of its own."""
    from ray import tune

    def make(config, stop, trainable="PPO", checkpoint_frequency=1, reuse_actors=None, **tune_config):
        run_config = tune.RunConfig(
            name="exp",
            storage_path=str(tmp_path),
            stop=stop,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=checkpoint_frequency, checkpoint_at_end=True),
        )
        tune_config = tune.TuneConfig(reuse_actors=reuse_actors, **tune_config)
        return tune.Tuner(trainable, param_space=config, run_config=run_config, tune_config=tune_config)

    return make


def history(result):
    """Every result of a trial, as it was logged."""
    return [json.loads(line) for line in (Path(result.path) / "result.json").read_text().splitlines()]


def stats_of(row):
    return row["info"]["learner"]["default_policy"]["learner_stats"]


NEW = {"lr": 0.0123, "clip_param": 0.17, "entropy_coeff": 0.05}


@pytest.mark.parametrize("reuse", [False, True], ids=["new process", "same process"])
def test_population_based_training_uses_the_new_values(tuner, reuse):
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations={"lr": [0.001, 0.002], "clip_param": [0.2, 0.3], "entropy_coeff": [0.0, 0.1]},
        custom_explore_fn=lambda config: {**config, **NEW},
        synch=True,
    )
    config = {
        **tiny(lr=0.001, clip_param=0.3, entropy_coeff=0.0).to_dict(),
        "env_config": {"bonus": tune.grid_search([0, 5])},
    }
    results = tuner(
        config,
        {"training_iteration": 3},
        checkpoint_frequency=0,
        reuse_actors=reuse,
        scheduler=scheduler,
        metric="episode_reward_mean",
        mode="max",
    ).fit()
    assert not results.errors, results.errors
    rows = [history(result) for result in results]
    best, worst = sorted(rows, key=lambda trial: trial[0]["episode_reward_mean"], reverse=True)
    before, after = worst[:2], worst[2:]
    assert [row["training_iteration"] for row in worst] == [1, 2, 3]
    for row in before:
        assert row["config"]["lr"] == 0.001 and row["restored_at"] == -1
        assert stats_of(row)["cur_lr"] == pytest.approx(0.001) and row["coefficients"]["clip_param"] == np.float32(0.3)
    for row in after:  # the other one's state, its own new values
        assert row["restored_at"] == 2 and row["updates"] == 4 * 3 and row["timesteps_total"] == 40 * 3
        assert row["config"]["env_config"] == {"bonus": 5}
        assert {key: row["config"][key] for key in NEW} == NEW
        assert stats_of(row)["cur_lr"] == pytest.approx(NEW["lr"])
        assert stats_of(row)["entropy_coeff"] == pytest.approx(NEW["entropy_coeff"])
        assert {key: row["coefficients"][key] for key in NEW} == {k: float(np.float32(v)) for k, v in NEW.items()}
    assert {row["config"]["lr"] for row in best} == {0.001}, "the one it was taken from goes on as it was"
    assert [row["training_iteration"] for row in best] == [1, 2, 3]
    # Trials that reuse actors may even share one, if the first is done before the second has started.
    processes = len({row["process"] for row in best + worst})
    assert processes in (1, 2) if reuse else processes == 4


def test_asha_in_one_process(tuner):
    """Bad trials are stopped; the next ones begin in the same process, from scratch, with their own config."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    bonuses = [5, 4, 0, 1]
    config = {
        **tiny().to_dict(),
        "env_config": {"bonus": tune.grid_search(bonuses)},
    }
    results = tuner(
        config,
        {"counters/num_env_steps_sampled": 160},  # a nested key
        reuse_actors=True,
        max_concurrent_trials=1,
        scheduler=ASHAScheduler(time_attr="training_iteration", max_t=9, grace_period=1, reduction_factor=2),
        metric="episode_reward_mean",
        mode="max",
    ).fit()
    assert not results.errors, results.errors
    trials = {result.config["env_config"]["bonus"]: history(result) for result in results}
    assert sorted(trials) == sorted(bonuses)
    assert len(trials[5]) == 4 and len(trials[0]) == len(trials[1]) == 1
    assert len({row["process"] for rows in trials.values() for row in rows}) == 1
    for bonus, rows in trials.items():
        assert [row["training_iteration"] for row in rows] == list(range(1, len(rows) + 1))
        assert [row["timesteps_total"] for row in rows] == [40 * k for k in range(1, len(rows) + 1)]
        assert rows[0]["updates"] == 4 and rows[0]["restored_at"] == -1, "from scratch"
        assert rows[0]["episodes_total"] == 4 and rows[0]["config"]["env_config"] == {"bonus": bonus}
        assert rows[0]["episode_reward_mean"] - 10 * bonus == pytest.approx(
            trials[5][0]["episode_reward_mean"] - 50
        ), "the same seed and weights, whoever was there before"
    best = results.get_best_result()
    assert best.config["env_config"]["bonus"] == 5 and len(best.best_checkpoints) == 4
    for result in results:
        check_checkpoint(result)


def check_checkpoint(result):
    """The last checkpoint of a trial opens in every way there is."""
    checkpoint, iterations = result.checkpoint, result.metrics["training_iteration"]
    assert Path(checkpoint.path).name == f"checkpoint_{iterations:06d}"
    obs = np.eye(3, dtype=np.float32)[0]
    policy = polylib.load_policy(checkpoint)
    assert policy.num_updates == 4 * iterations and policy.config["env_config"] == result.config["env_config"]
    action = policy.compute_single_action(obs, explore=False)
    assert Policy.from_checkpoint(checkpoint)["default_policy"].compute_single_action(obs, explore=False) == action
    with PPO.from_checkpoint(checkpoint, env=Bonus) as algo:
        assert algo.compute_single_action(obs, explore=False) == action
        assert algo.train()["training_iteration"] == iterations + 1


def test_an_interrupted_experiment_is_resumed(tuner, tmp_path):
    """It goes on from the last checkpoint, and ends with the weights of a run that nobody interrupted."""
    from ray import tune

    keys = {"env_config": {"marker": str(tmp_path / "marker")}, "num_envs_per_worker": 3, "train_batch_size": 33}
    config = tiny(Marked, FailsOnce, **keys).to_dict()
    stop = {"training_iteration": 5}
    results = tuner(config, stop, checkpoint_frequency=2).fit()
    (error,) = results.errors
    assert "callback FailsOnce.on_train_result raised RuntimeError: the power is gone" in str(error)
    path = str(tmp_path / "exp")
    assert tune.Tuner.can_restore(path)
    (result,) = tune.Tuner.restore(path, trainable="PPO", resume_errored=True).fit()
    assert result.error is None and result.metrics["training_iteration"] == 5
    assert result.metrics["restored_at"] == 2 and result.metrics["timesteps_total"] == 5 * 33
    with tiny(Marked, **keys).build() as unbroken:
        for _ in range(5):
            unbroken.train()
        with Algorithm.from_checkpoint(result.checkpoint, env=Marked) as restored:
            for key, value in unbroken.get_weights()["default_policy"].items():
                np.testing.assert_array_equal(restored.get_weights()["default_policy"][key], value)


@pytest.mark.parametrize(
    ("stop", "iterations"),
    [
        ({"counters/num_env_steps_sampled": 80}, 2),
        ({"custom_metrics/steps_mean": 10, "training_iteration": 4}, 1),
        ({"info/learner/default_policy/learner_stats/cur_lr": 0.001, "training_iteration": 4}, 1),
        ({"evaluation/episode_len_mean": 10, "training_iteration": 4}, 2),
        ({"sampler_results/episodes_total": 12}, 3),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_stopping_on_any_result_key(stop, iterations):
    """Tune's own question to every result; asked here without starting a process for each key."""
    from ray.tune.experiment import Trial
    from ray.tune.utils import flatten_dict

    with tiny(lr=0.002, evaluation_interval=2, evaluation_duration=1).build() as algo:
        trial = Trial("PPO", stopping_criterion=stop, stub=True)
        results = []
        while not results or not trial.should_stop(results[-1]):
            results.append(flatten_dict(algo.train()))
        assert len(results) == iterations
