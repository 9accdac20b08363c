"""CQL's losses term by term, with the numbers worked out in the comments; SAC's own are in sac/test_loss.py."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import CHOICE, MASKED, OBS, TORQUE, build, losses_of, random_rows, small_config, spec_of

from polylib.errors import ConfigError

LN = math.log
UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
#: log density of a standard normal at its mean; a squashed one has the same at 0, where tanh has slope 1.
PEAK = -0.5 * LN(2 * math.pi)
LINEAR = {"q_model_config": {"fcnet_hiddens": []}, "policy_model_config": {"fcnet_hiddens": []}}

# All kernels are 0: the policy's mean is 0, its log std 0. Q1 = 1 and Q2 = 0 everywhere; target networks 3 and 2.
FLAT = {"q": {"q1": [1], "q2": [0]}, "target_q": {"q1": [3], "q2": [2]}, "alpha": {"value": [LN(0.5)]}}
ROW = {"actions": [[0.3]], "rewards": [1.0], "discounts": [0.5]}
#: The soft maximum of a constant over two uniform actions (density 1/2) and two each of now and next (density PEAK),
#: less the constant.
FLAT_GAP = LN(2 / 0.5 + 4 / math.exp(PEAK))


def noise(now=0.0, then=0.0, now_too=(0.0, 0.0), next_too=(0.0, 0.0), everywhere=(0.25, -0.5), rows=1):
    def many(values):
        return np.tile(np.reshape(values, (1, -1, 1)), (rows, 1, 1))

    one = {"now": np.full((rows, 1), now), "next": np.full((rows, 1), then)}
    return {**one, "now_too": many(now_too), "next_too": many(next_too), "all": many(everywhere)}


def losses(given=FLAT, batch=ROW, space=UNIT, drawn=None, obs_space=OBS, bc=1.0, **config):
    spec = spec_of("CQL", obs_space, space, **{**LINEAR, "min_q_weight": 3.0, **config})
    return losses_of(spec, given, batch, noise(rows=len(batch["actions"])) if drawn is None else drawn, bc=bc)


def softmax(*values, temperature=1.0):
    return temperature * LN(sum(math.exp(x / temperature) for x in values))


# --- Box actions


def test_the_critic_is_sacs_without_entropy_and_is_held_down():
    """Target: 1 + 0.5 * min(3, 2) = 2, whatever alpha is; errors -1 and -2, squared 1 and 4. Both gaps are FLAT_GAP."""
    found, stats, rows = losses()
    assert set(found) == {"critic", "actor", "alpha"}
    assert found["critic"] == pytest.approx(1 + 4 + 3 * 2 * FLAT_GAP)
    assert rows["td_error"] == pytest.approx([1.5])
    assert stats["q_gap"] == pytest.approx(FLAT_GAP) and stats["cql_loss"] == pytest.approx(6 * FLAT_GAP)
    assert stats["critic_loss"] == found["critic"]
    # A terminal state: target 1, errors 0 and -1.
    assert losses(batch={**ROW, "terminateds": [True]})[0]["critic"] == pytest.approx(1 + 6 * FLAT_GAP)
    # One network: target 1 + 0.5 * 3, error -1.5.
    one = {**FLAT, "q": {"q1": [1]}, "target_q": {"q1": [3]}}
    assert losses(one, twin_q=False)[0]["critic"] == pytest.approx(1.5**2 + 3 * FLAT_GAP)
    # No weight: SAC's alone.
    assert losses(min_q_weight=0.0)[0]["critic"] == pytest.approx(5)


def test_importance_weights_are_of_td_errors_alone():
    batch = {name: np.concatenate([x, x]) for name, x in ROW.items()} | {"weights": [1.0, 0.2]}
    assert losses(batch=batch)[0]["critic"] == pytest.approx((1 + 0.2) / 2 * 5 + 6 * FLAT_GAP)


# Q = 10 * the first number of the observation + 2 * the action; the policy's mean is 0.8 times that number.
SEEING = {
    **FLAT,
    "policy": {"logits": {"kernel": [[0.8, 0], [0, 0], [0, 0]], "bias": [0, 0]}},
    "q": {"q1": {"kernel": [10, 0, 0, 2], "bias": [0]}},
    "target_q": {"q1": [3]},
}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_soft_maximum_is_over_uniform_actions_and_those_of_the_policy_now_and_next(temperature):
    """Each at the state now, over the density that it was drawn from; the logged action's Q is 2 * 0.3.

    Uniform: 0.25 and -0.5, density 1/2. Now (mean 0, noise 1 and -2): tanh(1), tanh(-2). Next (mean 0.8, noise 0 and
    0.5): tanh(0.8), tanh(1.3). Densities of a squashed normal: PEAK - noise^2 / 2 - log(1 - tanh^2).
    """
    t = temperature
    values = [2 * 0.25 - t * LN(0.5), 2 * -0.5 - t * LN(0.5)]
    for mean, z in ((0, 1), (0, -2), (0.8, 0), (0.8, 0.5)):
        action = math.tanh(mean + z)
        values.append(2 * action - t * (PEAK - z**2 / 2 - LN(1 - action**2)))
    expected = softmax(*values, temperature=t) - 0.6
    batch = {**ROW, "obs": np.zeros((1, 3)), "new_obs": np.array([[1.0, 0.0, 0.0]])}
    drawn = noise(now_too=(1, -2), next_too=(0, 0.5))
    _, stats, _ = losses(SEEING, batch, drawn=drawn, twin_q=False, temperature=temperature)
    assert stats["q_gap"] == pytest.approx(expected)


def test_the_gap_doesnt_depend_on_the_environments_units():
    """0.3 of [-1, 1] is 6.5 of [0, 10]."""
    wide = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    batch = {**ROW, "actions": [[6.5]]}
    drawn = noise(now_too=(1, -2), next_too=(0, 0.5))
    one = losses(SEEING, ROW, drawn=drawn, twin_q=False)[1]["q_gap"]
    assert losses(SEEING, batch, wide, drawn, twin_q=False)[1]["q_gap"] == pytest.approx(one)


def test_the_actor_imitates_and_then_climbs():
    """Imitating: alpha log pi(now) - log pi(0.3); climbing: SAC's, alpha log pi(now) - min(Q1, Q2)."""
    imitated = PEAK - math.atanh(0.3) ** 2 / 2 - LN(1 - 0.3**2)
    found, stats, _ = losses(bc=1.0)
    assert found["actor"] == pytest.approx(0.5 * PEAK - imitated) and stats["imitation_logp"] == pytest.approx(imitated)
    higher = {**FLAT, "q": {"q1": [4], "q2": [7]}}
    assert losses(higher, bc=0.0)[0]["actor"] == pytest.approx(0.5 * PEAK - 4)
    assert losses(bc=1.0)[0]["alpha"] == losses(bc=0.0)[0]["alpha"] == pytest.approx(LN(0.5) * (-PEAK + 1))


def test_a_learnt_weight():
    """alpha' = 2: the critic's term is 2 * sum(3 gap - 0.7), and alpha' is to maximise 2 * (3 gap - 0.7)."""
    given = {**FLAT, "alpha_prime": {"value": [LN(2)]}}
    found, stats, _ = losses(given, lagrangian=True, lagrangian_thresh=0.7)
    assert found["critic"] == pytest.approx(5 + 2 * 2 * (3 * FLAT_GAP - 0.7))
    assert found["alpha_prime"] == pytest.approx(-2 * (3 * FLAT_GAP - 0.7))
    assert stats["alpha_prime_value"] == pytest.approx(2)
    # Two different gaps: Q1 = 1, Q2 = 2 a; alpha' follows their mean.
    two = {**given, "q": {"q1": [1], "q2": {"kernel": [0, 0, 0, 2], "bias": [0]}}}
    slope = softmax(0.5 - LN(0.5), -1 - LN(0.5), *(4 * [-PEAK])) - 0.6
    found, _, _ = losses(two, lagrangian=True, lagrangian_thresh=0.7)
    assert found["alpha_prime"] == pytest.approx(-2 * (3 * (FLAT_GAP + slope) / 2 - 0.7))
    # It doesn't run away.
    huge = {**FLAT, "alpha_prime": {"value": [50.0]}}
    assert losses(huge, lagrangian=True)[1]["alpha_prime_value"] == 1e6


# --- discrete actions: the soft maximum is exact

TWO = gym.spaces.Discrete(2, start=5)
DISCRETE = {
    "policy": {"logits": [0, LN(3)]},
    "q": {"q1": [1, 2], "q2": [2, 1]},
    "target_q": {"q1": [8, 4], "q2": [4, 8]},
    "alpha": {"value": [LN(0.5)]},
}


def test_discrete():
    """Target 1 + 0.5 * 4 = 3; of action 6 Q1 = 2, Q2 = 1: errors -1, -2. Gaps: ln(e + e^2) less 2 and less 1.

    The policy's probabilities are [1/4, 3/4]; imitating: -0.5 H - ln(3/4), climbing: -0.5 H - 1.
    """
    entropy = -(0.25 * LN(0.25) + 0.75 * LN(0.75))
    found, stats, rows = losses(DISCRETE, {**ROW, "actions": [6]}, TWO, drawn={})
    gaps = 2 * softmax(1, 2) - 2 - 1
    assert found["critic"] == pytest.approx(1 + 4 + 3 * gaps) and rows["td_error"] == pytest.approx([1.5])
    assert stats["q_gap"] == pytest.approx(gaps / 2)
    assert found["actor"] == pytest.approx(-0.5 * entropy - LN(0.75))
    assert losses(DISCRETE, {**ROW, "actions": [6]}, TWO, drawn={}, bc=0.0)[0]["actor"] == pytest.approx(
        -0.5 * entropy - 1
    )
    found, _, _ = losses(DISCRETE, {**ROW, "actions": [6]}, TWO, drawn={}, temperature=0.5)
    assert found["critic"] == pytest.approx(5 + 3 * (2 * softmax(1, 2, temperature=0.5) - 3))


def test_masked_actions_arent_in_the_soft_maximum():
    """Q = 1, 2, 9 of which the third is forbidden; action 5 is the first."""
    given = {
        "policy": {"logits": [0, LN(3), 9]},
        "q": {"q1": [1, 2, 9]},
        "target_q": {"q1": [8, 40, 40]},
        "alpha": {"value": [0]},
    }
    batch = {
        **ROW,
        "actions": [5],
        "obs/seen": np.zeros((1, 3)),
        "new_obs/seen": np.zeros((1, 3)),
        "obs/action_mask": np.array([[1, 1, 0]]),
        "new_obs/action_mask": np.array([[1, 0, 0]]),
    }
    found, stats, rows = losses(given, batch, CHOICE, drawn={}, obs_space=MASKED, twin_q=False)
    assert stats["q_gap"] == pytest.approx(softmax(1, 2) - 1) and stats["imitation_logp"] == pytest.approx(LN(0.25))
    assert rows["td_error"] == pytest.approx([4]), "1 - (1 + 0.5 * 8)"


# --- the objective


def test_noise():
    spec = spec_of("CQL", OBS, TORQUE, num_actions=3)
    objective = spec.objective_class(spec)
    one = objective.noise(np.random.default_rng(1), 6)
    rng = np.random.default_rng(1)
    parts = [objective.noise(rng, 3) for _ in range(2)]
    assert {name: x.shape for name, x in one.items()} == {
        "now": (6, 2),
        "next": (6, 2),
        "now_too": (6, 3, 2),
        "next_too": (6, 3, 2),
        "all": (6, 3, 2),
    }
    for name, x in one.items():
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, np.concatenate([part[name] for part in parts]))
    many = objective.noise(np.random.default_rng(2), 20_000)["all"].ravel()
    shares = np.histogram(many, 10, (-1, 1))[0] / many.size
    assert np.abs(many).max() <= 1 and np.abs(shares - 0.1).max() < 0.005, "uniform"


def test_coefficients_groups_and_networks():
    spec = spec_of("CQL", OBS, TORQUE, lagrangian=True, optimization={"critic_learning_rate": 0.1})
    objective = spec.objective_class(spec)
    c = objective.coefficients()
    assert c["bc"] == 1.0 and c["tau"] == 5e-3 and c["critic_lr"] == 0.1
    assert objective.groups()["alpha_prime"].lr == "critic_lr"
    without = spec_of("CQL", OBS, TORQUE, bc_iters=0)
    objective = without.objective_class(without)
    assert objective.coefficients()["bc"] == 0.0 and "alpha_prime" not in objective.networks()


@needs_torch
@pytest.mark.parametrize("lagrangian", [False, True])
def test_q_of_what_nobody_did_sinks_below_q_of_what_was_done(lagrangian):
    """Every logged action is 0.9, rewards are 0: Q(0.9) rises above Q(-0.9); with a threshold only so far."""
    keys = {"lagrangian": lagrangian, "lagrangian_thresh": 0.1, "bc_iters": 1000}
    policy = build(("torch", False), "CQL", OBS, UNIT, **keys, optimization={"critic_learning_rate": 0.01})
    batch = random_rows(policy.spec, 32)
    batch.update(actions=np.full((32, 1), 0.9, np.float32), rewards=np.zeros(32, np.float32))
    first = policy.learn_on_batch(batch)["learner_stats"]["q_gap"]
    for _ in range(40):
        stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["q_gap"] < first - 0.2
    if lagrangian:
        assert stats["alpha_prime_value"] != 1.0


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Dict({"a": UNIT})])
def test_spaces_that_it_doesnt_take(space):
    spec = spec_of("CQL", action_space=space)
    with pytest.raises(ConfigError, match="CQL needs a Box or Discrete action space, not .* actions use BC or MARWIL"):
        spec.objective_class(spec)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"temperature": 0}, "'temperature': .*expected a number > 0"),
        ({"num_actions": 0}, "'num_actions': .*expected an integer >= 1"),
        ({"bc_iters": -1}, "'bc_iters': .*expected an integer >= 0"),
        ({"lagrangian": 1}, "'lagrangian': .*expected True or False"),
        ({"min_q_weight": -1}, "'min_q_weight': .*expected a number >= 0"),
        ({"model": {"use_lstm": True}}, "'model.use_lstm': CQL has no networks with state"),
        ({"model": {"custom_model": "mine"}}, "'model.custom_model': CQL has the default networks only"),
        ({"replay_buffer_config": {"capacity": 10}}, "'replay_buffer_config.capacity': 10 rows are fewer"),
        ({"replay_buffer_config": {"storage_unit": "sequences"}}, "sequences are for networks with state"),
        ({"replay_buffer_config": {"type": "none"}}, r"replay_buffer_config\['type'\]='none': expected one of"),
        ({"optimization": {"alpha": 1}}, "'optimization': there is no 'alpha'"),
    ],
)
def test_values_that_make_no_sense(keys, message):
    with pytest.raises(ConfigError, match=message):
        small_config("CQL", **keys).validate()
