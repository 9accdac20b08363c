"""Numbers that would spoil a network without a word are errors with one."""

import gymnasium as gym
import numpy as np
import pytest
from fakes import small_ppo
from modes import MODE_PARAMS, has
from policies import make, random_batch

from polylib.callbacks import CallbackError
from polylib.errors import BatchError, DivergedError, EnvError


class Numbers(gym.Env):
    """Five steps; what they return is up to the test."""

    def __init__(self, config):
        self.space, self.obs, self.reward = config["space"], config["obs"], config.get("reward", 0.0)
        self.observation_space, self.action_space = self.space, gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.space.low if isinstance(self.space, gym.spaces.Box) else 0, {}

    def step(self, action):
        self.t += 1
        return self.obs, self.reward, self.t == 5, False, {}


UNIT = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
HUGE = gym.spaces.Box(-1e60, 1e60, (3,), np.float64)


def build(**env_config):
    return small_ppo(Numbers, env_config=env_config, disable_env_checking=True).build()


pytestmark = pytest.mark.skipif(not has("torch"), reason="needs torch")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("env_config", "message"),
    [
        ({"space": UNIT, "obs": np.full(3, np.inf, np.float32)}, "an observation that is not finite.*step 1 of"),
        ({"space": UNIT, "obs": np.full(3, np.nan, np.float32)}, "a NaN observation.*step 1 of"),
        ({"space": HUGE, "obs": np.full(3, 1e60)}, "an observation that is not finite in float32"),
        ({"space": gym.spaces.Discrete(4), "obs": 7}, r"an observation outside its space Discrete\(4\): 7.*step 1 of"),
    ],
    ids=["inf", "nan", "too large", "no such class"],
)
def test_observations_that_no_network_can_use(env_config, message):
    with build(**env_config) as algo, pytest.raises(EnvError, match=message):
        algo.train()


def test_a_loss_that_is_not_finite_ends_training():
    """Returns of 1e38 overflow when they are squared."""
    with build(space=UNIT, obs=np.zeros(3, np.float32), reward=1e38) as algo:
        with pytest.raises(DivergedError, match="learning diverged: total_loss is .* in update 1 of 4"):
            algo.train()


def test_one_environment_for_two_slots():
    env = Numbers({"space": UNIT, "obs": np.zeros(3, np.float32)})
    with pytest.raises(EnvError, match="the same object twice; with num_envs_per_worker=2"):
        small_ppo(lambda config: env, num_envs_per_worker=2).build()


def test_observations_that_people_pass():
    with build(space=UNIT, obs=np.zeros(3, np.float32)) as algo:
        assert algo.compute_single_action(np.zeros(3)) in (0, 1)
        for bad in (np.nan, np.inf):
            with pytest.raises(BatchError, match="not finite"):
                algo.compute_single_action(np.full(3, bad))
        with pytest.raises(BatchError, match=r"\(row 1\)"):
            algo.compute_actions(np.array([[0, 0, 0], [0, np.nan, 0]], np.float32))
    with build(space=gym.spaces.Discrete(4, start=2), obs=3) as algo:
        assert algo.compute_single_action(5) in (0, 1)
        with pytest.raises(BatchError, match=r"not in the space Discrete\(4, start=2\)"):
            algo.compute_single_action(6)


def test_a_custom_metric_that_is_no_number():
    from polylib.algorithms.callbacks import DefaultCallbacks

    class Words(DefaultCallbacks):
        def on_episode_end(self, *, episode, **kwargs):
            episode.custom_metrics["mood"] = "good"

    config = small_ppo(Numbers, env_config={"space": UNIT, "obs": np.zeros(3, np.float32)}, callbacks=Words)
    with config.build() as algo, pytest.raises(CallbackError, match="custom metric 'mood' of an episode is 'good'"):
        algo.train()


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_what_the_model_returns_goes_into_dist_class(framework, traced):
    """In every mode, for a dict of inputs and for observations alone."""
    policy = make((framework, traced))
    obs = random_batch(policy.spec, 4)["obs"]
    for given in ({"obs": obs}, obs):
        dist = policy.dist_class(policy.model(given)[0], policy.model)
        assert np.all(np.asarray(dist.entropy()) > 0 if framework != "torch" else dist.entropy().detach().numpy() > 0)
        assert len(dist.sample()) == 4
