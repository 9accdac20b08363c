"""DQN's loss term by term, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch
from learners import CHOICE, MASKED, OBS, build, losses_of, random_rows, spec_of
from modes import MODE_PARAMS

from polylib.algorithms.dqn.loss import dueling_values, huber, projected
from polylib.evaluation.replayed import replayed_rows
from polylib.models.noisy import factorised_noise, noisy
from polylib.policy import numpy_ops
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN = math.log
ALL = [pytest.param("numpy"), *BACKENDS]
PLAIN = {"dueling": False, "hiddens": []}
# Q(s, .) = [1, 3, 2] of the learning network, [10, 20, 30] of the target network, in every state.
VALUES = {"q": {"advantages": [1, 3, 2]}, "target_q": {"advantages": [10, 20, 30]}}
# Actions start at 5: this is the first one, of value 1.
ROW = {"actions": [5], "rewards": [1.0], "discounts": [0.5]}


def loss(given=VALUES, batch=ROW, obs_space=OBS, noise=None, **config):
    losses, stats, rows = losses_of(spec_of("DQN", obs_space, **{**PLAIN, **config}), given, batch, noise)
    assert set(losses) == {"default"} and set(rows) == {"td_error"}
    return losses["default"], stats, rows["td_error"]


# --- targets


@pytest.mark.parametrize(
    ("double_q", "terminated", "error"),
    [
        # The learning network likes action 1 best, of which the target network says 20: 1 + 0.5 * 20 = 11; 1 - 11.
        (True, False, -10.0),
        # The target network's own best is 30: 1 + 0.5 * 30 = 16; 1 - 16.
        (False, False, -15.0),
        # No value beyond a terminal state: 1 - 1.
        (True, True, 0.0),
        (False, True, 0.0),
    ],
)
@pytest.mark.parametrize("loss_fn", ["huber", "mse"])
def test_targets(double_q, terminated, error, loss_fn):
    batch = {**ROW, "terminateds": [terminated]}
    total, stats, rows = loss(batch=batch, double_q=double_q, td_error_loss_fn=loss_fn)
    assert rows.tolist() == [error] and stats["mean_td_error"] == error
    # huber: |e| - 1/2 beyond 1; mse: e^2 / 2
    expected = max(0.0, abs(error) - 0.5) if loss_fn == "huber" else error**2 / 2
    assert total == pytest.approx(expected)
    assert (stats["mean_q"], stats["min_q"], stats["max_q"]) == (1, 1, 1)


def test_each_row_has_its_own_discount():
    """Action 2 is worth 2: r + gamma^k 20 = 0 + 20, 4 + 0.25 * 20 = 9; errors 2 - 20, 2 - 9."""
    batch = {"actions": [7, 7], "rewards": [0.0, 4.0], "discounts": [1.0, 0.25]}
    total, _, rows = loss(batch=batch, td_error_loss_fn="mse")
    assert rows.tolist() == [-18, -7] and total == (18**2 / 2 + 7**2 / 2) / 2


def test_importance_weights_scale_the_loss_and_not_the_errors():
    """Rows (r = 1, gamma 0.5) and (r = 0, gamma 1) of action 0: 1 - 11 = -10 and 1 - 20 = -19.

    Huber 9.5 and 18.5; weights 1 and 0.2: (9.5 + 3.7) / 2 = 6.6.
    """
    batch = {"actions": [5, 5], "rewards": [1.0, 0.0], "discounts": [0.5, 1.0], "weights": [1.0, 0.2]}
    total, _, rows = loss(batch=batch)
    assert rows.tolist() == [-10, -19] and total == pytest.approx(6.6)


@pytest.mark.parametrize("double_q", [True, False])
def test_next_actions_that_are_masked_dont_count(double_q):
    """Action 1, the learning network's favourite, is forbidden in the next state: then it likes action 2 (30).

    With actions 1 and 2 forbidden only action 0 (10) is left, which the target network likes least.
    """
    obs = np.zeros((2, 3))
    masks = np.array([[1, 0, 1], [1, 0, 0]])
    batch = {
        "actions": [5, 5],
        "obs/seen": obs,
        "obs/action_mask": np.ones((2, 3)),
        "new_obs/seen": obs,
        "new_obs/action_mask": masks,
    }
    _, _, rows = loss(batch=batch, obs_space=MASKED, double_q=double_q)
    assert rows.tolist() == [1 - 30, 1 - 10]


def test_burn_in_rows_are_left_out():
    """Errors -10 and -19 as above; of which the first doesn't count: 18.5."""
    batch = {"actions": [5, 5], "rewards": [1.0, 0.0], "discounts": [0.5, 1.0], "burn_in": [True, False]}
    total, stats, rows = loss(batch=batch)
    assert total == pytest.approx(18.5) and rows.tolist() == [-10, -19] and stats["mean_td_error"] == -19


# --- huber, dueling


@pytest.mark.parametrize("backend", ALL)
def test_huber(backend):
    """e^2 / 2 up to 1, |e| - 1/2 beyond; slopes e, and 1 or -1."""
    e = F32([0, 0.5, -0.8, 2, -3])
    values = evaluate(backend, huber, e) if backend == "numpy" else evaluate(backend, huber, e, smooth=(0,))[0]
    assert values == pytest.approx([0, 0.125, 0.32, 1.5, 2.5])
    if backend != "numpy":
        slopes = evaluate(backend, huber, e, smooth=(0,))[1][0] / np.cos(np.arange(1, 6))
        assert slopes == pytest.approx([0, 0.5, -0.8, 1, -1], rel=1e-5)


def test_dueling():
    """V + A - mean(A): 2 + [1, 3, 5] - 3 = [0, 2, 4]."""
    out = dueling_values(numpy_ops, F32([1, 3, 5]).reshape(1, 3, 1), F32([[2]]))
    assert out.ravel().tolist() == [0, 2, 4]
    given = {"q": {"advantages": [1, 3, 5], "state_value": [2]}, "target_q": {"state_value": [7]}}
    # Q = [0, 2, 4]; the target's are all 7: 1 + 0.5 * 7 = 4.5 for action 1: 2 - 4.5
    _, _, rows = loss(given, {**ROW, "actions": [6]}, dueling=True)
    assert rows == pytest.approx([-2.5])


# --- distributions over returns

ATOMS = F32([-1, 0, 1])
# reward, discount, next probabilities -> where they go
PROJECTED = [
    # 0 moves to 1/2: half way between two atoms.
    (0.5, 1.0, [0, 1, 0], [0, 0.5, 0.5]),
    # Terminal: all of it is at the reward, a quarter of the way from 0 to 1.
    (0.25, 0.0, [0.3, 0.3, 0.4], [0, 0.75, 0.25]),
    # On an atom exactly: nothing is lost between its neighbours.
    (0.0, 0.0, [0.3, 0.3, 0.4], [0, 1, 0]),
    (1.0, 0.0, [0.3, 0.3, 0.4], [0, 0, 1]),
    (-1.0, 0.0, [0.3, 0.3, 0.4], [1, 0, 0]),
    (0.0, 1.0, [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    # Beyond the edges: the outermost atom takes all.
    (5.0, 1.0, [0.2, 0.3, 0.5], [0, 0, 1]),
    (-5.0, 1.0, [0.2, 0.3, 0.5], [1, 0, 0]),
    # Half the distance: [-1/2, 0, 1/2]. Each outer atom's mass is halved between itself and 0.
    (0.0, 0.5, [0.2, 0.3, 0.5], [0.1, 0.1 + 0.3 + 0.25, 0.25]),
    # 1 + 0.5 z: [1/2, 1, 3/2], of which the last is cut to 1.
    (1.0, 0.5, [0.2, 0.3, 0.5], [0, 0.1, 0.1 + 0.3 + 0.5]),
]


@pytest.mark.parametrize("backend", ALL)
def test_projection(backend):
    rewards, discounts, given, expected = (F32(x) for x in zip(*PROJECTED, strict=True))

    def f(ops, p, r, g):
        return projected(ops, p, r, g, ATOMS)

    found = evaluate(backend, f, given, rewards, discounts)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-6)


def test_cross_entropy_to_the_projection():
    """One action of three; its atoms' logits [0, ln 2, 0]: probabilities [1/4, 1/2, 1/4].

    The target network's best action is the one with all mass at 1. r = 0.25, terminated: [0, 3/4, 1/4] as above, so the
    loss is -(3/4 ln 1/2 + 1/4 ln 1/4) = 3/4 ln 2 + 1/4 ln 4 = 5/4 ln 2. Not terminated, gamma 0.5 and r = 0: all mass
    moves from 1 to 1/2: -(1/2 ln 1/2 + 1/2 ln 1/4) = 3/2 ln 2.
    """
    online = np.zeros((3, 3))
    online[0] = [0, LN(2), 0]
    target = np.zeros((3, 3))
    target[2] = [0, 0, 50]
    given = {"q": {"advantages": online.ravel()}, "target_q": {"advantages": target.ravel()}}
    batch = {
        "actions": [5, 5],
        "rewards": [0.25, 0.0],
        "discounts": [0.9, 0.5],
        "terminateds": [True, False],
        "weights": [1.0, 0.5],
    }
    keys = {"num_atoms": 3, "v_min": -1, "v_max": 1, "double_q": False}
    total, stats, rows = loss(given, batch, **keys)
    assert rows == pytest.approx([1.25 * LN(2), 1.5 * LN(2)])
    assert total == pytest.approx((1.25 * LN(2) + 0.5 * 1.5 * LN(2)) / 2)
    # The mean of [1/4, 1/2, 1/4] on [-1, 0, 1] is 0; targets 0.25 and 0.5 are inside.
    assert stats["mean_q"] == pytest.approx(0, abs=1e-9) and stats["clipped_share"] == 0
    # The learning network's best action isn't the target's: its first has mean 0 like the others, the first is taken,
    # which the target network gives [1/3, 1/3, 1/3]: moved by half to [1/6, 2/3, 1/6].
    _, _, rows = loss(given, batch, **{**keys, "double_q": True})
    assert rows[1] == pytest.approx(-(LN(1 / 4) / 6 + 2 * LN(1 / 2) / 3 + LN(1 / 4) / 6))


def test_the_share_of_clipped_targets():
    """All mass at 1, gamma 0.9: 0.5 + 0.9 is above 1, -0.9 + 0.9 = 0 isn't; a terminal reward of -3 is below -1."""
    target = np.zeros((3, 3))
    target[:, 2] = 50
    given = {"target_q": {"advantages": target.ravel()}}
    batch = {
        "actions": [5] * 4,
        "rewards": [0.5, -0.9, -3, 1.0],
        "discounts": [0.9] * 4,
        "terminateds": [False, False, True, True],
    }
    assert loss(given, batch, num_atoms=3, v_min=-1, v_max=1)[1]["clipped_share"] == 0.5


# --- noisy layers


@pytest.mark.parametrize("backend", ALL)
def test_noisy_layer(backend):
    """x W + b + ((x e_in) S + s) e_out: [1, 2] [[1], [3]] + 0.5 + (1 * 2 * 0.1 + 2 * -1 * 0.2 + 0.3) * 4 = 7.9."""
    weights = F32([[1], [3]]), F32([0.5]), F32([[0.1], [0.2]]), F32([0.3])

    def f(ops, x, noise):
        return noisy(ops, x, (noise,), tuple(map(ops.constant, weights)), 1)[0]

    out = evaluate(backend, f, F32([[1, 2], [1, 2]]), F32([[2, -1, 4], [0, 0, 0]]))
    assert out.ravel() == pytest.approx([7.9, 7.5])


def test_factorised_noise():
    rng = np.random.default_rng(0)
    e = np.random.default_rng(0).standard_normal((2, 3), dtype=np.float32)
    assert factorised_noise(rng, 2, 3) == pytest.approx(np.sign(e) * np.sqrt(np.abs(e)))


def test_noise_is_drawn_anew_for_each_network_row_and_update():
    """The networks' noise is independent (arXiv:1706.10295, section 3.1)."""
    spec = spec_of("DQN", noisy=True)
    objective, rng = spec.objective_class(spec), np.random.default_rng(0)
    objective.networks()
    first, second = (objective.noise(rng, 2) for _ in range(2))
    assert list(first) == ["online", "choice", "target"]
    # Each head's hidden layer takes 4 numbers and gives 4; then come 4 and 3 actions, and 4 and a value.
    rows = np.concatenate([x for found in (first, second) for x in found.values()])
    assert rows.shape == (2 * 3 * 2, (4 + 4) + (4 + 3) + (4 + 4) + (4 + 1))
    assert all(len(np.unique(column)) == len(column) for column in rows.T)


def test_noisy_networks_are_quiet_without_exploration_and_in_dist_inputs():
    policy = build(("numpy", False), "DQN", noisy=True, sigma0=5.0)
    obs = np.ones((4, 3), F32)
    quiet = policy.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    np.testing.assert_array_equal(quiet, policy.compute_actions(obs, explore=False).extras["action_dist_inputs"])
    assert np.ptp(quiet, 0).max() == 0, "equal observations, equal values"
    loud = policy.compute_actions(obs, explore=True).extras["action_dist_inputs"]
    assert np.ptp(loud, 0).min() > 0, "noise of its own in each row"


# --- n-step rows


def test_case_b2_every_row_keeps_its_own_discount():
    """gamma 0.5, n = 3, r = [1, 1, 1, 1], truncated, Q = 8 everywhere.

    1 + 1/2 + 1/4 + 8/8 = 2.75 twice (three steps each); 1 + 1/2 + 8/4 = 3.5; 1 + 8/2 = 5.
    """
    batch = SampleBatch(
        obs=np.arange(4, dtype=F32)[:, None] * np.ones(3, F32),
        actions=np.full(4, 5),
        rewards=np.ones(4, F32),
        terminateds=np.zeros(4, bool),
        truncateds=np.array([False, False, False, True]),
        eps_id=np.zeros(4, np.int64),
        unroll_id=np.zeros(4, np.int64),
        t=np.arange(4),
    )
    fragment = Fragment(batch, np.array([0]), np.array([4]), np.full((1, 3), 4, F32))
    rows = replayed_rows(fragment, 0.5, 3)
    assert rows["rewards"].tolist() == [1.75, 1.75, 1.5, 1.0] and rows["discounts"].tolist() == [
        0.125,
        0.125,
        0.25,
        0.5,
    ]
    assert rows["new_obs"][:, 0].tolist() == [3, 4, 4, 4] and not rows["terminateds"].any()
    given = {"target_q": {"advantages": [8, 8, 8]}}
    _, _, errors = loss(given, {name: rows[name] for name in ("actions", "rewards", "discounts", "terminateds")})
    assert (-errors).tolist() == [2.75, 2.75, 3.5, 5.0]
    spec = spec_of("DQN", n_step=3, gamma=0.5)
    again = spec.objective_class(spec).postprocess(fragment)
    assert again["rewards"].tolist() == rows["rewards"].tolist()


@needs_torch
@pytest.mark.parametrize("keys", [{}, {"num_atoms": 5, "v_min": -5, "v_max": 5}])
def test_learning_moves_values_towards_targets(keys):
    """A sign lost anywhere between loss and step would turn this round."""
    policy = build(("torch", False), "DQN", lr=1e-3, **keys)
    batch = random_rows(policy.spec, 1)
    batch["terminateds"][:], batch["rewards"][:] = True, 4.0
    index = int(batch["actions"][0]) - 5
    values = []
    for _ in range(3):
        out = policy.compute_actions(batch["obs"], explore=False)
        values.append(float(out.extras["action_dist_inputs"][0, index]))
        policy.learn_on_batch(batch)
    assert values[0] < values[1] < values[2] < 4


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_without_a_frequency_every_update_moves_the_targets(framework, traced):
    """By tau of the way to where the learning network has just come: target + 0.25 (q - target)."""
    policy = build((framework, traced), "DQN", target_network_update_freq=0, tau=0.25, lr=0.1)
    before = policy.get_weights()
    policy.learn_on_batch(random_rows(policy.spec, 8))
    after = policy.get_weights()
    for name in (key.removeprefix("target_") for key in after if key.startswith("target_q/")):
        target = before[f"target_{name}"]
        expected = target + 0.25 * (after[name] - target)
        np.testing.assert_allclose(after[f"target_{name}"], expected, rtol=1e-5, atol=1e-6)
        assert np.abs(after[name] - before[name]).max() > 0.01
    by_hand = spec_of("DQN", OBS, CHOICE, target_network_update_freq=5)
    assert "tau" not in by_hand.objective_class(by_hand).coefficients()


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_adams_epsilon(framework, traced):
    """A first step has m = 0.1 g, v = 0.001 g^2 and goes lr sqrt(0.001) g / (sqrt(0.001) |g| + epsilon)."""
    policy = build((framework, traced), "DQN", adam_epsilon=1e-2, lr=0.5, grad_clip=None)
    batch, before = random_rows(policy.spec, 8), policy.get_weights()
    gradients, _ = policy.compute_gradients(batch)
    policy.learn_on_batch(batch)
    after, root = policy.get_weights(), math.sqrt(0.001)
    assert max(np.abs(g).max() for g in gradients.values()) > 0.05
    for name, g in gradients.items():
        expected = before[name] - 0.5 * root * g / (root * np.abs(g) + 1e-2)
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-6)


def test_spaces_and_ranges_that_dont_fit():
    from polylib.errors import ConfigError

    for space in (gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiDiscrete([2, 2])):
        spec = spec_of("DQN", action_space=space)
        with pytest.raises(ConfigError, match="needs a Discrete action space, not .*SAC"):
            spec.objective_class(spec)
    assert CHOICE.start == 5
