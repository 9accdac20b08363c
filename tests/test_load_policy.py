"""`polylib.load_policy`: acts like the policy that was saved, without Ray, TensorFlow or torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from golden import FOLDER, expected_of, observations
from modes import MODE_PARAMS, has
from policies import BOX, DISCRETE, MULTI, TORQUE, make, make_spec, random_batch

import polylib
from polylib.checkpoints import CheckpointError
from polylib.errors import BatchError, ConfigError, FrameworkError
from polylib.policy.checkpoint import load_policy as load_any
from polylib.policy.checkpoint import save_policy
from polylib.policy.policy import Policy
from polylib.policy.testing import sample_space

ROOT = Path(__file__).parents[1]
OBS_SPACES = {
    "box": BOX,
    "box 2d": gym.spaces.Box(-1.0, 1.0, (2, 3)),
    "uint8": gym.spaces.Box(0, 255, (4,), np.uint8),
    "float64": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "discrete": gym.spaces.Discrete(4, start=-1),
}
CASES = [("box", DISCRETE), ("discrete", MULTI), ("uint8", TORQUE), ("box 2d", gym.spaces.Box(-np.inf, np.inf, (1,)))]


def assert_alike(loaded, saved, observation_space):
    """Greedy and sampled actions, their probabilities and values; one by one too."""
    obs = sample_space(observation_space, 7, 3)
    discrete = loaded.action_space.dtype.kind in "iu"
    for explore in (False, True, True):  # sampling goes on from the saved random state, in step
        ours, theirs = loaded.compute_actions(obs, explore=explore), saved.compute_actions(obs, explore=explore)
        if discrete:
            np.testing.assert_array_equal(ours.actions, theirs.actions)
        np.testing.assert_allclose(ours.actions, theirs.actions, atol=2e-5)
        assert ours.actions.dtype == theirs.actions.dtype and set(ours.extras) == set(theirs.extras)
        for key in ours.extras:
            np.testing.assert_allclose(ours.extras[key], theirs.extras[key], atol=2e-5, err_msg=key)
    np.testing.assert_allclose(loaded.compute_values(obs), saved.compute_values(obs), atol=2e-5)
    single = loaded.compute_single_action(obs[0], explore=False)
    np.testing.assert_allclose(single, saved.compute_single_action(obs[0], explore=False), atol=2e-5)
    assert loaded.action_space.contains(single)
    likelihoods = loaded.compute_log_likelihoods(theirs.actions, obs)
    np.testing.assert_allclose(likelihoods, saved.compute_log_likelihoods(theirs.actions, obs), atol=1e-4)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
@pytest.mark.parametrize(("observation", "action"), CASES, ids=[f"{o}-{type(a).__name__}" for o, a in CASES])
def test_acts_like_the_one_that_was_saved(tmp_path, framework, traced, observation, action):
    saved = make((framework, traced), OBS_SPACES[observation], action, share=observation == "uint8")
    saved.learn_on_batch(random_batch(saved.spec, 16))
    saved.compute_actions(sample_space(saved.observation_space, 3, 1), explore=True)
    save_policy(saved, tmp_path / "c", "PPO")
    loaded = polylib.load_policy(tmp_path / "c")
    assert loaded.framework == "numpy" and loaded.observation_space == saved.observation_space
    assert loaded.action_space == saved.action_space and loaded.num_updates == 1
    assert_alike(loaded, saved, OBS_SPACES[observation])
    saved.close()


@pytest.mark.parametrize("observation", OBS_SPACES)
def test_every_kind_of_observation(tmp_path, observation):
    saved = make(("numpy", False), OBS_SPACES[observation])
    save_policy(saved, tmp_path / "c", "PPO")
    assert_alike(polylib.load_policy(tmp_path / "c"), saved, OBS_SPACES[observation])


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "swish", "gelu", "sigmoid", "softplus", None])
def test_every_activation(tmp_path, activation):
    if not has("torch"):
        pytest.skip("torch isn't installed")
    saved = make(("torch", False), activation=activation, hiddens=(5, 4))
    save_policy(saved, tmp_path / "c", "PPO")
    assert_alike(polylib.load_policy(tmp_path / "c"), saved, BOX)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_into_a_framework(framework, traced):
    policy = polylib.load_policy(FOLDER / "torch" / "checkpoint", framework, eager_tracing=traced)
    assert policy.framework == framework and type(policy) is type(make((framework, traced)))
    logits = policy.compute_actions(observations(_match_env()), explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(logits, expected_of("torch")["logits"], atol=1e-5)
    policy.close()


def _match_env():
    from fakes import MatchEnv

    return MatchEnv()


def test_a_saved_numpy_policy_passes_through(tmp_path):
    """Loaded for acting, saved again: nothing of it is lost, the optimizer's moments neither."""
    save_policy(polylib.load_policy(FOLDER / "tf" / "checkpoint"), tmp_path / "c", "PPO")
    first, again = load_any(FOLDER / "tf" / "checkpoint").get_state(), load_any(tmp_path / "c").get_state()
    for part in ("weights", "optimizer"):
        one, other = first.pop(part), again.pop(part)
        assert set(one) == set(other) and all(np.array_equal(one[key], other[key]) for key in one)
        assert any(value.any() for value in one.values())
    assert first == again


def test_which_policy(tmp_path):
    folder = FOLDER / "torch" / "checkpoint"
    assert polylib.load_policy(folder, policy_id="default_policy").num_updates > 0
    with pytest.raises(CheckpointError, match="has policies default_policy: got policy_id='other'"):
        polylib.load_policy(folder, policy_id="other")
    save_policy(make(("numpy", False)), tmp_path / "c", "PPO")
    with pytest.raises(CheckpointError, match="has one policy, without an id: got policy_id='default_policy'"):
        polylib.load_policy(tmp_path / "c", policy_id="default_policy")


def test_learning_is_refused():
    policy = polylib.load_policy(FOLDER / "torch" / "checkpoint")
    batch = random_batch(make_spec(policy.observation_space, policy.action_space), 8)
    before = policy.get_weights()
    for learn in (
        lambda: policy.learn_on_batch(batch),
        lambda: policy.learn_on_minibatches(batch, np.arange(8).reshape(2, 4)),
        lambda: policy.compute_gradients(batch),
        lambda: policy.apply_gradients(before),
    ):
        with pytest.raises(FrameworkError, match="a NumPy policy only acts: build it with framework"):
            learn()
    assert policy.num_updates == 16 and all(np.array_equal(before[k], v) for k, v in policy.get_weights().items())


def test_mistakes_are_one_line(tmp_path):
    folder = FOLDER / "torch" / "checkpoint"
    for call, error, said in (
        (lambda: polylib.load_policy(tmp_path / "no"), CheckpointError, "no such folder"),
        (lambda: polylib.load_policy(FOLDER / "torch"), CheckpointError, "it has checkpoints inside: checkpoint"),
        (lambda: polylib.load_policy(None), ConfigError, "a checkpoint must be a folder"),
        (lambda: polylib.load_policy(folder, "torhc"), FrameworkError, "'torhc'. Did you mean 'torch'"),
        (lambda: polylib.load_policy(folder).compute_actions([[1.0]]), BatchError, "column 'obs' has shape"),
    ):
        with pytest.raises(error, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_framework_that_is_not_installed(block_import):
    block_import("torch", "tensorflow", "keras")
    assert polylib.load_policy(FOLDER / "torch" / "checkpoint").framework == "numpy"
    for framework, extra in (("torch", "torch"), ("tf", "tf"), ("tf2", "tf")):
        with pytest.raises(FrameworkError, match=f"not installed here: pip install 'polylib\\[{extra}\\]'"):
            polylib.load_policy(FOLDER / "torch" / "checkpoint", framework)


def test_keys_that_an_older_version_did_not_have(tmp_path):
    """A checkpoint without a config key opens with that key's default."""
    import json
    import shutil

    shutil.copytree(FOLDER / "torch" / "checkpoint", tmp_path / "c")
    file = tmp_path / "c" / "config.json"
    config = json.loads(file.read_text())
    for key in ("kl_coeff", "clip_actions", "use_critic"):
        del config[key]
    file.write_text(json.dumps(config))
    policy = Policy.from_checkpoint(tmp_path / "c", framework="numpy")["default_policy"]
    assert policy.config["kl_coeff"] == 0.2 and policy.config["clip_actions"] is False


FRESH = """
import sys, time
start = time.perf_counter()
import polylib
policy = polylib.load_policy(sys.argv[1])
import numpy as np
action = policy.compute_single_action(np.zeros(3, np.float32), explore=False)
seconds = time.perf_counter() - start
assert policy.action_space.contains(action)
policy.compute_actions(np.zeros((2, 3), np.float32), explore=True)
policy.compute_values(np.zeros((2, 3), np.float32))
loaded = sorted(sys.modules)
for name in ("ray", "torch", "tensorflow", "keras", "pandas", "pyarrow", "polylib.algorithms.algorithm"):
    assert name not in loaded, name
print(seconds)
"""


def test_a_fresh_process_loads_nothing_but_numpy_and_gymnasium():
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    seconds = []
    for source in ("tf", "torch"):
        done = subprocess.run(
            [sys.executable, "-c", FRESH, str(FOLDER / source / "checkpoint")],
            capture_output=True,
            text=True,
            timeout=120,
            env=env,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert not done.stderr, "and says nothing"
        seconds.append(float(done.stdout))
    assert min(seconds) < 3, "half a second where nothing else runs"


def test_acting_is_fast():
    policy = polylib.load_policy(FOLDER / "torch" / "checkpoint")
    obs = np.zeros(3, np.float32)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        policy.compute_single_action(obs, explore=False)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3
