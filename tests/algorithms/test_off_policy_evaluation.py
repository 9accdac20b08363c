"""`off_policy_estimation_methods`: from recorded files to numbers in a result."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from modes import FAST_MODE_PARAMS, mode_params

from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.bc import BCConfig
from polylib.algorithms.dqn import DQNConfig
from polylib.algorithms.ppo.config import PPOConfig
from polylib.errors import ConfigError
from polylib.offline.estimators import ImportanceSampling, WeightedImportanceSampling
from polylib.offline.json_reader import JsonReader
from polylib.offline.json_writer import JsonWriter

TORCH = mode_params([("torch", False)])
METHODS = {
    "is": {"type": ImportanceSampling},
    "wis": {"type": "wis"},
    "pdis": "PerDecisionImportanceSampling",
    "dm": {"type": "dm", "q_model_config": {"n_iters": 2, "model": {"fcnet_hiddens": [8]}}},
    "dr": {"type": "dr", "q_model_config": {"n_iters": 2, "model": {"fcnet_hiddens": [8]}}, "resamples": 10},
}


def config(framework="torch", traced=False, **evaluation):
    small = {"fcnet_hiddens": [8], "vf_share_layers": True}
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(framework, eager_tracing=traced)
        .rollouts(num_rollout_workers=0, batch_mode="complete_episodes", rollout_fragment_length=100)
        .training(train_batch_size=100, sgd_minibatch_size=50, num_sgd_iter=1, lr=0.02, model=small, gamma=0.99)
        .debugging(seed=0)
        .evaluation(evaluation_duration=1, **evaluation)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Episodes of an untrained policy, and some beginnings of episodes in another folder."""
    path = tmp_path_factory.mktemp("ope")
    algo = config().offline_data(output=str(path / "whole")).build()
    for _ in range(3):
        algo.workers.sample()
    algo.stop()
    cut = config().rollouts(batch_mode="truncate_episodes", rollout_fragment_length=30)
    algo = cut.offline_data(output=str(path / "cut")).build()
    algo.workers.sample()
    algo.stop()
    return path


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
def test_in_a_result(folder, framework, traced):
    """Before training the policy is the one that wrote the files; afterwards it is another."""
    methods = {"off_policy_estimation_methods": METHODS, "evaluation_config": {"input": str(folder / "whole")}}
    algo = config(framework, traced, evaluation_interval=1, **methods).build()
    found = algo.evaluate()["off_policy_estimator"]
    assert list(found) == list(METHODS)
    returns = [
        float((0.99 ** np.arange(episode.count) * episode["rewards"]).sum())
        for episode in JsonReader(folder / "whole").read_all().split_by_episode()
    ]
    for name, values in found.items():
        assert values["v_behavior"] == pytest.approx(np.mean(returns), rel=1e-6)
        assert values["episodes"] == len(returns) and values["episodes_left_out"] == 0
        if name in ("is", "wis", "pdis"):
            assert values["v_target"] == pytest.approx(values["v_behavior"], rel=1e-4)
            assert values["ess"] == pytest.approx(len(returns), rel=1e-4)
    assert 0 < found["dm"]["loss"] < 100

    state = algo.get_policy().rng.bit_generator.state
    algo.evaluate()
    assert algo.get_policy().rng.bit_generator.state == state  # looking changes nothing

    result = algo.train()
    after = result["evaluation"]["off_policy_estimator"]
    assert "episode_reward_mean" in result["evaluation"]
    assert after["wis"]["v_behavior"] == found["wis"]["v_behavior"]
    assert after["wis"]["v_target"] != pytest.approx(found["wis"]["v_target"], rel=1e-3)
    assert after["wis"]["ess"] < len(returns)
    # The same by hand.
    batch = JsonReader(folder / "whole").read_all()
    by_hand = WeightedImportanceSampling(algo.get_policy(), 0.99).estimate(batch)
    assert after["wis"] == pytest.approx(by_hand, rel=1e-6)
    algo.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_without_an_environment(folder, framework, traced):
    """Learning from files and judging by files: nothing is simulated, and there is no return of episodes."""
    algo = (
        BCConfig()
        .framework("torch")
        .offline_data(input_=str(folder / "whole"))
        .training(train_batch_size=50, model={"fcnet_hiddens": [8]})
        .evaluation(evaluation_interval=1, off_policy_estimation_methods={"wis": {"type": "wis"}})
        .build()
    )
    result = algo.train()
    assert set(result["evaluation"]) == {"off_policy_estimator"}
    assert result["evaluation"]["off_policy_estimator"]["wis"]["episodes"] > 3
    algo.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_rows_as_episodes_and_cut_ones(folder, framework, traced):
    given = {
        "off_policy_estimation_methods": {"is": {"type": "is", "resamples": 0}},
        "evaluation_config": {"input": [str(folder / "whole"), str(folder / "cut")]},
    }
    algo = config(**given, ope_split_batch_by_episode=False).build()
    rows = algo.evaluate()["off_policy_estimator"]["is"]
    assert rows["v_behavior"] == 1.0 and rows["episodes"] > 300
    assert math.isnan(rows["ci_low"])
    algo.stop()
    algo = config(**given).build()
    found = algo.evaluate()["off_policy_estimator"]["is"]
    assert found["episodes_left_out"] >= 1 and found["episodes"] < 60
    algo.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
@pytest.mark.parametrize(("traces", "whole", "cut"), [("cartpole_fragments", 18, 1), ("cartpole_lz4", 19, 0)])
def test_rllibs_traces(framework, traced, traces, whole, cut):
    """Episodes over several fragments, packed columns: with new weights both policies are nearly uniform."""
    path = Path(__file__).parents[1] / "data" / "rllib_json" / traces
    algo = config(
        off_policy_estimation_methods={"wpdis": {"type": "wpdis"}}, evaluation_config={"input": str(path)}
    ).build()
    found = algo.evaluate()["off_policy_estimator"]["wpdis"]
    assert (found["episodes"], found["episodes_left_out"]) == (whole, cut)
    assert found["ess"] == pytest.approx(whole, rel=0.02)
    assert found["v_target"] == pytest.approx(found["v_behavior"], rel=0.02)
    algo.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_restored(folder, framework, traced, tmp_path):
    """A class among the methods is kept by name."""
    methods = {"off_policy_estimation_methods": METHODS, "evaluation_config": {"input": str(folder / "whole")}}
    algo = config(**methods).build()
    algo.train()
    before = algo.evaluate()["off_policy_estimator"]
    algo.save(str(tmp_path))
    algo.stop()
    again = Algorithm.from_checkpoint(str(tmp_path))
    after = again.evaluate()["off_policy_estimator"]
    assert after["is"] == pytest.approx(before["is"], rel=1e-6)
    again.stop()


def dqn(**exploration):
    keys = {"train_batch_size": 32, "num_steps_sampled_before_learning_starts": 10**6, "lr": 1e-3}
    small = {"model": {"fcnet_hiddens": [8]}, "hiddens": [8]}
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .framework("torch")
        .rollouts(batch_mode="complete_episodes", rollout_fragment_length=100)
        .training(**keys, **small, gamma=0.99)
        .exploration(exploration_config=exploration)
        .debugging(seed=0)
        .evaluation(evaluation_duration=1)
    )


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_what_dqn_recorded(framework, traced, tmp_path):
    """The same policy with the same epsilon earns what was earned; others are judged by the same files."""
    algo = dqn(initial_epsilon=0.3, final_epsilon=0.3).offline_data(output=str(tmp_path)).build()
    for _ in range(4):
        algo.workers.sample()
    algo.stop()
    logged = JsonReader(tmp_path).read_all()
    assert np.unique(np.exp(logged["action_logp"]).round(6)).tolist() == pytest.approx([0.15, 0.85]), "0.3 / 2, + 0.7"
    kinds = {name: {"type": name, "epsilon_greedy": 0.3} for name in ("is", "wis", "pdis", "wpdis")}
    methods = {**kinds, "greedy": "wis", "dr": {**METHODS["dr"], "epsilon_greedy": 0.3}}
    given = {"off_policy_estimation_methods": methods, "evaluation_config": {"input": str(tmp_path)}}
    same = dqn().evaluation(evaluation_interval=1, **given).build()
    found = same.evaluate()["off_policy_estimator"]
    for name in kinds:
        assert found[name]["v_target"] == pytest.approx(found[name]["v_behavior"], rel=1e-4)
        assert found[name]["ess"] == pytest.approx(found[name]["episodes"], rel=1e-3) and found[name]["episodes"] > 10
    assert np.isfinite(found["dr"]["v_target"]) and found["greedy"]["ess"] < found["wis"]["ess"]
    same.stop()
    other = config(**given, evaluation_interval=1).build()
    found = other.evaluate()["off_policy_estimator"]
    for name in ("wis", "wpdis"):
        returns = found[name]["v_behavior"], found[name]["v_behavior_std"]
        assert abs(found[name]["v_target"] - returns[0]) < 4 * returns[1] and 1 <= found[name]["ess"]
    other.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
@pytest.mark.parametrize("noisy", [True, False])
def test_recording_tells_what_nobody_will_know(noisy, framework, traced, tmp_path, caplog):
    """Noisy layers and ParameterNoise, by name, when the files are begun and when they are to be used."""
    keys = {"initial_epsilon": 0.0, "final_epsilon": 0.0} if noisy else {"type": "ParameterNoise"}
    keys |= {} if noisy else {"sub_exploration": {"type": "EpsilonGreedy", "initial_epsilon": 0.1}}
    writing = dqn(**keys).training(noisy=noisy).offline_data(output=str(tmp_path))
    algo = writing.build()
    name = "noisy=True" if noisy else "ParameterNoise"
    assert f"config key 'output': {name} acts by weights drawn at random" in caplog.text
    algo.workers.sample()
    algo.stop()
    methods = {"off_policy_estimation_methods": {"wis": "wis"}, "evaluation_config": {"input": str(tmp_path)}}
    algo = config(**methods, evaluation_interval=1).build()
    with pytest.raises(ValueError, match=rf"'wis' on the input .*holds nan.*{name}.*direct method"):
        algo.evaluate()
    algo.stop()


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_lacking_probabilities(folder, framework, traced, tmp_path):
    """The error names the method, the files and the column."""
    batch = JsonReader(folder / "whole").read_all()
    del batch["action_logp"]
    JsonWriter(tmp_path).write(batch)
    algo = config(
        off_policy_estimation_methods={"dm": METHODS["dm"], "mine": {"type": "is"}},
        evaluation_config={"input": str(tmp_path)},
    ).build()
    with pytest.raises(ValueError, match=r"'mine' on the input .*no column 'action_logp' .*use the direct method"):
        algo.evaluate()
    algo.stop()


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"off_policy_estimation_methods": {"is": {"type": "is"}}}, r"'off_policy_estimation_methods': .*recorded ep"),
        ({"off_policy_estimation_methods": {"a": {"type": "iss"}}}, r"no estimator 'iss'.*Did you mean 'is'"),
        ({"off_policy_estimation_methods": {"a": {"type": "is", "epsilon": 1}}}, r"no setting 'epsilon'"),
        ({"off_policy_estimation_methods": {"a": {"type": "is", "epsilon_greedy": 2}}}, r"'a': epsilon_greedy=2"),
    ],
)
def test_bad_methods(folder, evaluation, message):
    if "is" not in evaluation["off_policy_estimation_methods"]:
        evaluation["evaluation_config"] = {"input": str(folder / "whole")}
    with pytest.raises(ConfigError, match=message):
        config(**evaluation).build().evaluate()


@pytest.mark.parametrize("interval", [None, 1])
@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_without_an_interval_nothing_is_estimated_which_is_said(interval, framework, traced, folder, caplog):
    evaluation = {"off_policy_estimation_methods": {"wis": {"type": "wis"}}, "evaluation_interval": interval}
    evaluation["evaluation_config"] = {"input": str(folder / "whole")}
    config(framework, traced, **evaluation).build().stop()
    assert ("no evaluation_interval, no estimate" in caplog.text) == (interval is None)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        ({"model": {"fcnet_hidens": [8]}}, "methods.dm.q_model_config': unknown config key 'model.fcnet_hidens'"),
        ({"model": "big"}, "methods.dm.q_model_config': config key 'model': got 'big'"),
        ("big", "q_model_config='big', expected a dict of settings"),
    ],
)
def test_keys_of_an_estimators_network(folder, network, told):
    """Wrong ones are refused before anything is trained, beside a method that is given by its bare name."""
    methods = {"is": "is", "dm": {"type": "dm", "q_model_config": network}}
    own = {"input": str(folder / "whole")}
    with pytest.raises(ConfigError, match=re.escape(told)):
        config(evaluation_interval=1, off_policy_estimation_methods=methods, evaluation_config=own).build()
