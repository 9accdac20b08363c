"""PolicyContract: what every policy keeps, whatever its framework and algorithm, as a test class to inherit.

    class TestMyPolicy(PolicyContract):
        def make_policy(self, seed=0, **config):
            return MyPolicy(PolicySpec(OBS_SPACE, ACTION_SPACE, MyObjective, {**CONFIG, **config}, seed=seed))

pytest collects the inherited tests; each checks one rule, and fails with a message that restates it. Nothing here
imports pytest.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import tree

from polylib.errors import BatchError, ConfigError, WeightsError
from polylib.models import spaces
from polylib.policy.policy import ActionOutput, Policy
from polylib.policy.sample_batch import SampleBatch

_PLAIN = (np.ndarray, np.generic, float, int, str, bool, type(None))


class PolicyContract:
    """Tests of one kind of policy; override `make_policy`, and `make_batch` if the default doesn't fit.

    Two policies of the same seed are built once per class, and put back into their first state before each test.
    """

    batch_size: ClassVar[int] = 6
    #: Whether exploring samples the action distribution, so that `action_logp` is the likelihood of what was done.
    samples: ClassVar[bool] = True
    policy: Policy
    other: Policy
    _built: ClassVar[tuple[tuple[Policy, dict[str, Any]], ...] | None] = None

    def make_policy(self, seed: int | None = 0, **config: Any) -> Policy:
        """A new policy.

        Args:
            seed: of the spec.
            **config: keys of the algorithm's config to change.
        """
        raise NotImplementedError(f"{type(self).__name__} has to say how to make its policy")

    def make_batch(self, policy: Policy, size: int, seed: int = 0) -> SampleBatch:
        """Rows that `policy` can learn from: sampled observations, its own actions, normal noise for the rest."""
        obs = sample_space(policy.observation_space, size, seed)
        state, explored = policy.rng.bit_generator.state, policy.exploration_state()
        out = policy.compute_actions(obs, explore=True)
        policy.rng.bit_generator.state = state
        policy.set_exploration_state(explored)
        known = {"obs": obs, "new_obs": obs, "actions": out.actions, **out.extras}
        rng = np.random.default_rng(seed)
        names = [*policy.objective.columns, *(n for n in policy.objective.optional_columns if n in known)]
        columns = {n: known[n] if n in known else rng.standard_normal(size, np.float32) for n in names}
        for flag in {"terminateds", "burn_in"} & set(names):
            columns[flag] = rng.random(size) < 0.3
        if policy.is_recurrent():
            # A sequence per row, so that rows can be picked as those of other policies can.
            columns["seq_lens"] = np.ones(size, np.int32)
            for i, zeros in enumerate(policy.get_initial_state()):
                columns[f"state_in_{i}"] = rng.standard_normal((size, *zeros.shape)).astype(np.float32)
        return SampleBatch(columns)

    # --- pytest calls these by name

    def setup_method(self) -> None:
        """Puts the two policies of the class back into their first state."""
        cls = type(self)
        if "_built" not in vars(cls):
            policies = self.make_policy(), self.make_policy()
            cls._built = tuple((policy, policy.get_state()) for policy in policies)
        assert cls._built is not None
        for policy, state in cls._built:
            policy.set_state(state)
        self.policy, self.other = cls._built[0][0], cls._built[1][0]
        self.obs = sample_space(self.policy.observation_space, self.batch_size, 1)
        self.batch = self.make_batch(self.policy, self.batch_size)

    @classmethod
    def teardown_class(cls) -> None:
        """Closes the two policies."""
        for policy, _ in vars(cls).get("_built", ()):
            policy.close()
        cls._built = None

    # --- acting

    def test_actions_have_shapes_and_dtypes_of_the_space(self) -> None:
        """Actions `[B, *action_shape]` of the space's dtype; logp and distribution inputs float32."""
        space, size, dist = self.policy.action_space, self.batch_size, self.policy.objective.dist
        for explore in (True, False):
            out = self.policy.compute_actions(self.obs, explore=explore)
            for part, actions in parts(space, out.actions):
                assert actions.shape == (size, *(part.shape or ())), "actions are [B, *action_shape]"
                assert actions.dtype == part.dtype, "actions have the dtype of the action space"
            expected = {"action_logp": (size,), "action_dist_inputs": (size, dist.inputs_size)}
            for name, shape in expected.items():
                assert out.extras[name].shape == shape, f"extras[{name!r}] has shape {shape}"
                assert out.extras[name].dtype == np.float32, f"extras[{name!r}] is float32"
                # NaN: a likelihood that exploration doesn't know, or a point's, which has no density.
                unknown = name == "action_logp" and not self.samples and np.isnan(out.extras[name])
                assert (np.isfinite(out.extras[name]) | unknown).all(), f"extras[{name!r}] is finite"
            shapes = [state.shape for state in self.policy.get_initial_state()]
            assert [x.shape for x in out.state] == [(size, *s) for s in shapes], "states are [B, *state_shape]"
            assert bool(shapes) == self.policy.is_recurrent(), "a feed-forward policy has no state"

    def test_state_counts_and_zeros_are_the_default(self) -> None:
        """No state is zeros; another one changes what comes out; a wrong one is an error that names it."""
        if not self.policy.is_recurrent():
            rule = "a feed-forward policy takes no state"
            raises(BatchError, "state", rule, self.policy.compute_actions, self.obs, [np.zeros(3)])
            return
        zeros = [np.zeros((self.batch_size, *x.shape), np.float32) for x in self.policy.get_initial_state()]
        first = self.policy.compute_actions(self.obs, explore=False)
        same(self.policy.compute_actions(self.obs, zeros, explore=False), first, "no state given: zeros")
        later = self.policy.compute_actions(self.obs, first.state, explore=False)
        changed = any(not np.array_equal(x, y) for x, y in zip(first.state, later.state, strict=True))
        assert changed, "the state counts"
        single = self.policy.compute_single_action(row(self.obs, 0), explore=False)
        assert isinstance(single, ActionOutput), "a recurrent policy returns (action, state, extras)"
        close(single.state, [x[0] for x in first.state], "a single action's state is row 0 of a batch's")
        rule = "a state of another shape is an error that names it"
        wrong = [np.zeros((self.batch_size, 99), np.float32), *zeros[1:]]
        raises(BatchError, "'state_0'", rule, self.policy.compute_actions, self.obs, wrong)
        raises(BatchError, "state", "so is another number of states", self.policy.compute_actions, self.obs, [])

    def test_every_action_is_in_the_space(self) -> None:
        """`action_space.contains(action)` for all actions, of wild weights too."""
        obs = sample_space(self.policy.observation_space, 100, 2)
        weights = self.policy.get_weights()
        rng = np.random.default_rng(0)
        wild = {key: 5 * rng.standard_normal(w.shape).astype(np.float32) for key, w in weights.items()}
        for values in (weights, wild):
            self.policy.set_weights(values)
            for explore in (True, False):
                actions = self.policy.compute_actions(obs, explore=explore).actions
                for action in (row(actions, i) for i in range(100)):
                    assert self.policy.action_space.contains(action), (
                        f"every action is in the action space: {action!r} isn't in {self.policy.action_space}"
                    )
            single = self.policy.compute_single_action(row(obs, 0), full_fetch=True).actions
            assert self.policy.action_space.contains(single), f"so is a single action: {single!r}"

    def test_action_output_unpacks_as_three(self) -> None:
        """`actions, state, extras = policy.compute_actions(...)`."""
        out = self.policy.compute_actions(self.obs, explore=False)
        assert isinstance(out, tuple) and len(out) == 3, "compute_actions returns (actions, state, extras)"
        actions, state, extras = out
        assert actions is out.actions and state is out.state and extras is out.extras
        assert isinstance(state, list) and isinstance(extras, dict), "state is a list, extras is a dict"

    def test_not_exploring_takes_the_most_likely_action(self) -> None:
        """`explore=False`: argmax or mean, drawing no random number."""
        before = self.policy.rng.bit_generator.state
        out = self.policy.compute_actions(self.obs, explore=False)
        same(out.actions, self.policy.compute_actions(self.obs, explore=False).actions, "explore=False: no randomness")
        assert self.policy.rng.bit_generator.state == before, "explore=False draws nothing from the policy's stream"
        inputs, space = out.extras["action_dist_inputs"], self.policy.action_space
        if isinstance(space, gym.spaces.Discrete):
            same(out.actions, space.start + inputs.argmax(-1), "explore=False takes the largest logit")
        elif isinstance(space, gym.spaces.MultiDiscrete):
            parts = np.split(inputs, np.cumsum(space.nvec.ravel())[:-1], axis=1)
            best = np.stack([part.argmax(-1) for part in parts], 1).reshape(-1, *space.shape)
            same(out.actions, space.start + best, "explore=False takes the largest logit of each component")
        elif "action_raw" in out.extras and not spaces.is_nested(space):
            size = out.extras["action_raw"].shape[1]
            close(out.extras["action_raw"], inputs[:, :size], "explore=False takes the mean")

    def test_exploring_follows_the_policys_own_stream(self) -> None:
        """The same random state gives the same actions, and it moves on."""
        state = self.policy.rng.bit_generator.state
        first = self.policy.compute_actions(self.obs, explore=True)
        assert self.policy.rng.bit_generator.state != state, "exploring moves the policy's random stream"
        self.policy.rng.bit_generator.state = state
        np.random.default_rng().random()
        same(first, self.policy.compute_actions(self.obs, explore=True), "the same random state: the same actions")
        draws = {
            b"".join(x.tobytes() for x in tree.flatten(self.policy.compute_actions(self.obs, explore=True).actions))
            for _ in range(10)
        }
        assert len(draws) > 1, "exploring samples"

    def test_explore_defaults_to_the_config(self) -> None:
        """`explore=None` takes the config's `explore`."""
        default = self.policy.config.get("explore", True)
        state = self.policy.rng.bit_generator.state
        out = self.policy.compute_actions(self.obs)
        self.policy.rng.bit_generator.state = state
        same(out, self.policy.compute_actions(self.obs, explore=default), "explore=None: what the config says")

    def test_a_single_action_is_a_batch_of_one(self) -> None:
        """`compute_single_action(o)` is row 0 of `compute_actions([o])`."""
        for explore in (True, False):
            state = self.policy.rng.bit_generator.state
            batch = self.policy.compute_actions(row(self.obs, slice(1)), explore=explore)
            self.policy.rng.bit_generator.state = state
            single = self.policy.compute_single_action(row(self.obs, 0), explore=explore, full_fetch=True)
            assert isinstance(single, ActionOutput), "full_fetch=True returns (action, state, extras)"
            same(single.actions, row(batch.actions, 0), "a single action is row 0 of a batch of one")
            same(single.extras, {k: v[0] for k, v in batch.extras.items()}, "so are its extras")
            if not self.policy.is_recurrent():
                self.policy.rng.bit_generator.state = state
                bare = self.policy.compute_single_action(row(self.obs, 0), explore=explore)
                same(bare, row(batch.actions, 0), "a feed-forward policy returns the bare action")

    def test_rows_dont_depend_on_each_other(self) -> None:
        """A row's action, logp and value are the same alone and in a batch."""
        whole = self.policy.compute_actions(self.obs, explore=False)
        for i in range(self.batch_size):
            alone = self.policy.compute_actions(row(self.obs, slice(i, i + 1)), explore=False)
            for name, x in whole.extras.items():
                close(alone.extras[name], x[i : i + 1], f"a row's {name} doesn't depend on the other rows")

    def test_log_likelihoods_are_those_of_acting(self) -> None:
        """`compute_log_likelihoods(actions, obs) == extras["action_logp"]`, wherever nothing was clipped."""
        if not self.samples:
            return
        out = self.policy.compute_actions(self.obs, explore=True)
        logp = self.policy.compute_log_likelihoods(out.actions, self.obs)
        assert logp.shape == (self.batch_size,) and logp.dtype == np.float32, "log-likelihoods are [B] float32"
        inner: Any = np.ones(self.batch_size, bool)
        for space, actions in parts(self.policy.action_space, out.actions):
            if isinstance(space, gym.spaces.Box):
                edge = (actions <= space.low + 1e-6) | (actions >= space.high - 1e-6)
                inner &= np.logical_not(edge.reshape(self.batch_size, -1).any(1))
        assert inner.any(), "choose a batch in which some action isn't clipped"
        close(logp[inner], out.extras["action_logp"][inner], "the log-likelihood of an action is its action_logp", 1e-4)

    def test_values_are_one_float_per_row(self) -> None:
        """`compute_values(obs): [B] float32`, where the algorithm has a value function."""
        try:
            values = self.policy.compute_values(self.obs)
        except BatchError as error:
            assert "value function" in str(error), "without a value function the error says so"
            return
        assert values.shape == (self.batch_size,) and values.dtype == np.float32, "values are [B] float32"

    def test_no_observations_no_actions(self) -> None:
        """A batch of no rows gives no actions."""
        out = self.policy.compute_actions(row(self.obs, slice(0)))
        for space, actions in parts(self.policy.action_space, out.actions):
            assert actions.shape == (0, *(space.shape or ())), "no rows in, no rows out"

    # --- what comes in

    def test_observations_are_cast_to_what_the_network_takes(self) -> None:
        """float64 for a float32 Box, ints for a Box of floats, small ints for Discrete."""
        space = self.policy.observation_space
        obs = self.obs
        if spaces.is_nested(space):
            wide = tree.map_structure(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, obs)
            expected = self.policy.compute_actions(obs, explore=False)
            same(self.policy.compute_actions(wide, explore=False), expected, "an observation's dtype doesn't matter")
            return
        if np.issubdtype(np.dtype(space.dtype), np.floating):
            variants: list[Any] = [obs.astype(np.float32), obs.astype(np.float64), obs.astype(np.float32).tolist()]
            ints = np.ones(obs.shape, np.int64)
            whole = self.policy.compute_actions(ints, explore=False)
            same(whole, self.policy.compute_actions(ints.astype(np.float32), explore=False), "ints count as floats")
        else:
            variants = [obs, obs.astype(np.uint8)]
            assert (variants[1] == obs).all(), "the test needs observations that fit into uint8"
            rule = "fractions for a space of integers are an error that names the column"
            raises(BatchError, r"'obs'.*float", rule, self.policy.compute_actions, obs.astype(np.float32))
        first, *others = (self.policy.compute_actions(x, explore=False) for x in variants)
        for other in others:
            same(other, first, "an observation's dtype doesn't matter as long as its value fits")

    def test_memory_layout_doesnt_matter(self) -> None:
        """Reversed, strided, Fortran-ordered and read-only arrays, without a warning."""
        expected = self.policy.compute_actions(self.obs, explore=False)
        ways: list[Callable[[np.ndarray], np.ndarray]] = [
            lambda x: x[::-1].copy()[::-1],
            lambda x: np.repeat(x, 2, axis=0)[::2],
            np.asfortranarray,
            _frozen,
        ]
        layouts = [tree.map_structure(way, self.obs) for way in ways]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for obs in layouts:
                out = self.policy.compute_actions(obs, explore=False)
                same(out, expected, "how an array lies in memory doesn't matter")
            self.policy.learn_on_batch(row(dict(self.batch), slice(None, None, -1)))

    def test_inputs_arent_changed(self) -> None:
        """No method writes to the arrays it is given: read-only ones will do."""
        originals = tree.map_structure(np.array, dict(self.batch))
        indices = np.arange(4, dtype=np.int32).reshape(2, 2)
        weights = self.policy.get_weights()
        kept = {key: w.copy() for key, w in weights.items()}
        for x in [*tree.flatten(dict(self.batch)), indices, *weights.values()]:
            x.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.policy.compute_actions(self.batch["obs"])
            self.policy.compute_log_likelihoods(self.batch["actions"], self.batch["obs"])
            self.policy.learn_on_batch(self.batch)
            self.policy.learn_on_minibatches(self.batch, indices)
            self.policy.set_weights(weights)
            gradients, _ = self.policy.compute_gradients(self.batch)
            for x in gradients.values():
                x.flags.writeable = False
            self.policy.apply_gradients(gradients)
            self.policy.learn_on_batch(self.batch)
        same(dict(self.batch), originals, "inputs aren't changed")
        same(weights, kept, "weights that were passed aren't changed by learning")

    def test_wrong_observations_are_named(self) -> None:
        """A shape that doesn't fit, no batch axis, ragged rows; a part of a nested one that is missing."""
        if spaces.is_nested(self.policy.observation_space):
            flat = spaces.flatten(self.policy.observation_space, self.obs)
            last = list(flat)[-1]
            wrong_part = spaces.unflatten(self.policy.observation_space, {**flat, last: np.zeros((2, 3, 4, 5, 6))})
            rule = "a part of another shape is an error that names it"
            raises(BatchError, repr(last), rule, self.policy.compute_actions, wrong_part)
            rule = "an observation that isn't nested as the space is an error that says so"
            raises(BatchError, "'obs.*expected a (dict|tuple)", rule, self.policy.compute_actions, np.zeros(3))
            return
        shape = self.policy.observation_space.shape or ()
        wrong: list[Any] = [np.zeros((2, *shape, 3), self.obs.dtype), self.obs[0] if shape else 0, [[1, 2], [3]]]
        for obs in wrong:
            rule = "an observation of another shape is an error that names the column"
            raises(BatchError, "'obs'", rule, self.policy.compute_actions, obs)

    def test_columns_of_other_lengths_are_named(self) -> None:
        """Nothing is repeated to fit: one action for B observations is an error."""
        action = row(self.policy.compute_actions(self.obs).actions, slice(1))
        rule = "columns of different lengths are an error that names them"
        raises(BatchError, "'actions.*' has 1 rows", rule, self.policy.compute_log_likelihoods, action, self.obs)

    def test_wrong_batches_are_named(self) -> None:
        """Missing columns, `[B, 1]`, other lengths, no rows: an error that names the column; nothing is learnt."""
        before = self.policy.get_weights()
        rows = dict(self.batch.items())
        last = self.policy.objective.columns[-1]
        for name in self.policy.objective.columns:
            without = {key: x for key, x in rows.items() if key != name}
            rule = "a missing column is an error that names it"
            raises(BatchError, repr(name), rule, self.policy.learn_on_batch, without)
        cases = {
            "a column of shape [B, 1] never meets one of [B]": {**rows, last: rows[last][:, None]},
            "columns of different lengths are an error": {**rows, last: rows[last][:-1]},
            "a column of text is an error": {**rows, last: np.array(["a"] * self.batch_size)},
        }
        for rule, bad in cases.items():
            for learn in (self.policy.learn_on_batch, self.policy.compute_gradients):
                raises(BatchError, repr(last), rule, learn, bad)
        empty = row(rows, slice(0))
        raises(BatchError, "no rows", "an empty batch is an error", self.policy.learn_on_batch, empty)
        same(self.policy.get_weights(), before, "a refused batch changes no weight")

    def test_wrong_minibatch_indices_are_refused(self) -> None:
        """Indices are `[U, M]` integers of rows that are there."""
        size = self.batch_size
        for wrong in ([0, 1], [[0, size]], [[-1, 0]], [[0.5, 1.0]], np.zeros((0, 4), int)):
            rule = "indices that aren't [U, M] rows of the batch are an error"
            raises(BatchError, "indices", rule, self.policy.learn_on_minibatches, self.batch, np.asarray(wrong))

    def test_actions_outside_a_discrete_space_are_refused(self) -> None:
        """They have no probability, and backends would make up different ones."""
        space = self.policy.action_space
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            return
        rule = "an action outside a discrete space is an error that names row and value"
        for wrong in (np.max(space.start + getattr(space, "nvec", getattr(space, "n", None))), np.min(space.start) - 1):
            actions = self.batch["actions"].copy()
            actions[1] = wrong
            batch = {**self.batch, "actions": actions}
            raises(BatchError, "'actions': row 1", rule, self.policy.learn_on_batch, batch)
            raises(BatchError, "'actions': row 1", rule, self.policy.compute_log_likelihoods, actions, batch["obs"])

    def test_masked_actions_are_never_taken(self) -> None:
        """With `action_mask`, only allowed actions; a row that allows none is an error, so is a mask for a Box."""
        dist, space = self.policy.objective.dist, self.policy.action_space
        ones = np.ones((self.batch_size, dist.inputs_size), bool)
        if spaces.is_nested(space):
            return  # a mask of each part, which their own distributions' tests check
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            rule = "an action mask for a Box is an error"
            raises(BatchError, "action_mask", rule, self.policy.compute_actions, self.obs, action_mask=ones)
            return
        mask = ones.copy()
        mask[:, 0] = False  # the first choice of the (first) component
        for explore in (True, False):
            out = self.policy.compute_actions(self.obs, explore=explore, action_mask=mask)
            first = out.actions.reshape(self.batch_size, -1)[:, 0] - np.ravel(space.start)[0]
            assert (first != 0).all(), "a masked action is never taken"
            logp = self.policy.compute_log_likelihoods(out.actions, self.obs, action_mask=mask)
            if self.samples:
                close(logp, out.extras["action_logp"], "masked log-likelihoods are those of acting")
        mask[2] = False
        rule = "a row that allows no action is an error that names it"
        raises(BatchError, "action_mask.*row 2", rule, self.policy.compute_actions, self.obs, action_mask=mask)
        rule = "a mask with another number of rows is an error"
        raises(BatchError, "'action_mask'", rule, self.policy.compute_actions, self.obs, action_mask=ones[:1])

    # --- what comes out

    def test_only_numpy_comes_out(self) -> None:
        """Arrays, numbers, strings and containers of them."""
        gradients, info = self.policy.compute_gradients(self.batch)
        self.policy.apply_gradients(gradients)
        outputs = {
            "compute_actions": self.policy.compute_actions(self.obs),
            "compute_single_action": self.policy.compute_single_action(row(self.obs, 0)),
            "compute_log_likelihoods": self.policy.compute_log_likelihoods(self.batch["actions"], self.batch["obs"]),
            "compute_gradients": (gradients, info),
            "learn_on_batch": self.policy.learn_on_batch(self.batch),
            "learn_on_minibatches": self.policy.learn_on_minibatches(self.batch, np.arange(2).reshape(1, 2)),
            "get_weights": self.policy.get_weights(),
            "get_state": self.policy.get_state(),
            "get_initial_state": self.policy.get_initial_state(),
            "coefficients": self.policy.coefficients,
        }
        for name, output in outputs.items():
            for path, leaf in leaves(output):
                assert isinstance(leaf, _PLAIN), f"only NumPy comes out: {name}{path} is a {type(leaf)}"

    def test_what_comes_out_is_the_callers(self) -> None:
        """Returned arrays are writable, share nothing with each other, and writing to them changes nothing."""
        out = self.policy.compute_actions(self.obs, explore=False)
        arrays = [*tree.flatten(out.actions), *out.extras.values(), *out.state]
        for i, x in enumerate(arrays):
            assert x.flags.writeable, "returned arrays can be written to"
            assert not any(np.may_share_memory(x, y) for y in arrays[:i]), "returned arrays share no memory"
            x[...] = 0
        again = self.policy.compute_actions(self.obs, explore=False)
        assert any(np.any(x) for x in again.extras.values()), "writing to what was returned changes nothing"

    def test_learner_stats(self) -> None:
        """Finite floats; `total_loss`, and `grad_gnorm` and `cur_lr` per optimizer; rows `[B]`."""
        info = self.policy.learn_on_batch(self.batch)
        stats = info["learner_stats"]
        groups = list(self.policy.groups)
        suffixes = [""] if len(groups) == 1 else [f"_{group}" for group in groups]
        for name in ["total_loss", *(f"grad_gnorm{s}" for s in suffixes), *(f"cur_lr{s}" for s in suffixes)]:
            assert name in stats, f"learner_stats has {name!r}"
        for name, value in stats.items():
            assert type(value) is float and np.isfinite(value), f"learner_stats[{name!r}] is a finite float"
        for name, x in info.get("rows", {}).items():
            assert x.shape == (self.batch_size,), f"rows[{name!r}] has an entry per row"

    # --- learning

    def test_learning_is_computing_and_applying_gradients(self) -> None:
        """`learn_on_batch(b) == apply_gradients(compute_gradients(b)[0])`, stats included, more than once."""
        for _ in range(3):
            gradients, info = self.other.compute_gradients(self.batch)
            self.other.apply_gradients(gradients)
            learnt = self.policy.learn_on_batch(self.batch)
            rule = "learn_on_batch(b) == apply_gradients(compute_gradients(b))"
            close(learnt["learner_stats"], info["learner_stats"], rule)
            close(self.policy.get_weights(), self.other.get_weights(), rule)
        assert self.policy.num_updates == self.other.num_updates == 3, "num_updates counts gradient steps"

    def test_computing_gradients_changes_nothing(self) -> None:
        """Weights, optimizer and counters stay; gradients have the weights' keys and shapes."""
        before = self.policy.get_state()
        gradients, _ = self.policy.compute_gradients(self.batch)
        after = self.policy.get_state()
        del before["rng"], after["rng"]  # objectives may draw noise
        same(after, before, "compute_gradients changes nothing")
        for key, gradient in gradients.items():
            assert gradient.shape == before["weights"][key].shape, f"the gradient of {key!r} has its shape"
            assert gradient.dtype == np.float32, "gradients are float32"
        assert any(np.any(g) for g in gradients.values()), "a batch of noise has a gradient"

    def test_learning_moves_every_trained_variable(self) -> None:
        """Each network of an optimizer's group moves."""
        before = self.policy.get_weights()
        for seed in range(3):
            self.policy.learn_on_batch(self.make_batch(self.policy, self.batch_size, seed))
        after = self.policy.get_weights()
        trained = self.policy._trainable_keys()
        targets = self.policy._target_keys() if "tau" in self.policy.coefficients else {}
        for key in before:
            moved = not np.array_equal(before[key], after[key])
            rule = "learning moves trained variables and the targets that follow them, and only those"
            assert moved == (key in trained or key in targets), f"{rule}: {key}"

    def test_minibatches_are_updates_one_by_one(self) -> None:
        """`learn_on_minibatches(b, indices)` is `learn_on_batch` of each row of indices."""
        indices = np.array([[0, 1, 2, 3], [5, 4, 3, 2], [1, 1, 0, 5]])
        stats = self.policy.learn_on_minibatches(self.batch, indices)
        rule = "learn_on_minibatches gives what single updates give"
        for i, rows in enumerate(indices):
            info = self.other.learn_on_batch(row(dict(self.batch), rows))
            close({k: x[i] for k, x in stats.items()}, info["learner_stats"], rule)
        for name, x in stats.items():
            assert x.shape == (3,) and x.dtype == np.float32, f"stats[{name!r}] is [U] float32"
        close(self.policy.get_weights(), self.other.get_weights(), rule)
        close(self.policy.get_state()["optimizer"], self.other.get_state()["optimizer"], rule)
        assert self.policy.num_updates == 3, "num_updates counts gradient steps"

    def test_coefficients_are_fed(self) -> None:
        """A new learning rate counts at the next step; 0 moves nothing; the first step is proportional to it."""
        rates = {group.lr for group in self.policy.groups.values()}
        before = self.policy.get_weights()
        self.policy.set_coefficients(**dict.fromkeys(rates, 0.0))
        self.policy.learn_on_batch(self.batch)
        self.policy.learn_on_minibatches(self.batch, np.arange(4).reshape(2, 2))
        close(self.policy.get_weights(), before, "a learning rate of 0 moves nothing")
        gradients = self.policy.compute_gradients(self.batch)[0]
        moved = {}
        for rate in (1e-3, 4e-3):
            self.setup_method()
            self.policy.set_coefficients(**dict.fromkeys(rates, rate))
            stats = self.policy.learn_on_batch(self.batch)["learner_stats"]
            assert any(abs(stats[k] - rate) < 1e-9 for k in stats if k.startswith("cur_lr")), "cur_lr is what was set"
            after = self.policy.get_weights()
            moved[rate] = {key: after[key] - before[key] for key in gradients}
        ratio = {key: x * 4 for key, x in moved[1e-3].items()}
        close(moved[4e-3], ratio, "the first step is proportional to the learning rate", 1e-3, 1e-6)

    def test_coefficients_are_known_by_name(self) -> None:
        """A misspelt coefficient is an error."""
        before = dict(self.policy.coefficients)
        rule = "a coefficient that the objective doesn't have is an error that names it"
        raises(ConfigError, "'lrr'", rule, self.policy.set_coefficients, lrr=1.0)
        same(self.policy.coefficients, before, "a refused coefficient changes nothing")

    # --- weights and state

    def test_weights_go_round(self) -> None:
        """What `set_weights` was given, `get_weights` returns, and the actions follow."""
        weights = self.policy.get_weights()
        for key, w in weights.items():
            assert re.fullmatch(r"\w+/\d{3}/\w+", key), f"weight keys are network/position/leaf: {key!r}"
            assert isinstance(w, np.ndarray) and w.dtype == np.float32, f"weights are float32 arrays: {key!r}"
        rng = np.random.default_rng(3)
        new = {key: rng.standard_normal(w.shape).astype(np.float32) for key, w in weights.items()}
        before = self.policy.compute_actions(self.obs, explore=False).extras["action_dist_inputs"]
        self.policy.set_weights(new)
        same(self.policy.get_weights(), new, "get_weights returns what set_weights was given")
        after = self.policy.compute_actions(self.obs, explore=False).extras["action_dist_inputs"]
        assert not np.allclose(before, after), "new weights count at once"
        self.other.set_weights(self.policy.get_weights())
        other = self.other.compute_actions(self.obs, explore=False).extras["action_dist_inputs"]
        same(other, after, "policies with the same weights act alike")

    def test_weights_are_copies(self) -> None:
        """Writing to what `get_weights` returned or `set_weights` was given changes nothing, nor does learning."""
        weights = self.policy.get_weights()
        kept = {key: w.copy() for key, w in weights.items()}
        for w in weights.values():
            w += 1
        same(self.policy.get_weights(), kept, "get_weights returns copies")
        given = {key: w.copy() for key, w in kept.items()}
        self.policy.set_weights(given)
        for w in given.values():
            w += 1
        same(self.policy.get_weights(), kept, "set_weights copies")
        snapshot = self.policy.get_weights()
        self.policy.learn_on_batch(self.batch)
        same(snapshot, kept, "learning doesn't reach into weights that were returned")

    def test_wrong_weights_are_named(self) -> None:
        """Missing, unknown, another shape, another dtype: an error that names the variable, and nothing is set."""
        before = self.policy.get_weights()
        trained = self.policy.compute_gradients(self.batch)[0]
        first, last = list(before)[0], list(trained)[-1]
        moved = {key: w + 1 for key, w in before.items()}
        cases = {
            "a missing variable is an error that names it": {k: w for k, w in moved.items() if k != last},
            "a variable of another shape is an error that names it": {**moved, last: np.zeros((7, 7), np.float32)},
            "a variable that isn't numbers is an error that names it": {**moved, last: moved[last].astype(str)},
            "a variable of complex numbers is an error that names it": {**moved, last: moved[last] + 1j},
        }
        for rule, wrong in cases.items():
            raises(WeightsError, re.escape(last), rule, self.policy.set_weights, wrong)
            some = {key: w for key, w in wrong.items() if key in trained}
            raises(WeightsError, re.escape(last), rule, self.policy.apply_gradients, some)
            same(self.policy.get_weights(), before, "refused weights change nothing")
        unknown = {**moved, "nobody/000/kernel": moved[first]}
        rule = "an unknown variable is an error that names it"
        raises(WeightsError, "nobody/000/kernel", rule, self.policy.set_weights, unknown)
        wide = {key: w.astype(np.float64) for key, w in moved.items()}
        self.policy.set_weights(wide)
        same(self.policy.get_weights(), moved, "float64 weights are cast to float32")

    def test_the_same_seed_gives_the_same_weights(self) -> None:
        """And the same actions; another seed gives others."""
        rule = "the same seed gives the same weights, and the same actions"
        same(self.policy.get_weights(), self.other.get_weights(), rule)
        same(self.policy.compute_actions(self.obs), self.other.compute_actions(self.obs), rule)
        elsewhere = self.make_policy(seed=1)
        differs = any(not np.array_equal(w, self.policy.get_weights()[k]) for k, w in elsewhere.get_weights().items())
        elsewhere.close()
        assert differs, "another seed gives other weights"

    def test_state_continues_as_if_never_stopped(self) -> None:
        """Weights, optimizer, coefficients, counters and random stream go on in a policy of another seed."""
        for seed in range(2):
            self.policy.learn_on_batch(self.make_batch(self.policy, self.batch_size, seed))
        rate = next(iter(self.policy.groups.values())).lr
        self.policy.set_coefficients(**{rate: 1.25e-2})
        self.policy.global_timestep = 77
        self.policy.compute_actions(self.obs)
        state = self.policy.get_state()
        kept = copy.deepcopy(state)
        self.other.set_state(state)
        rule = "a policy that takes over a state goes on as the first one does"
        assert self.other.num_updates == 2 and self.other.global_timestep == 77, rule
        assert self.other.coefficients == self.policy.coefficients, rule
        for seed in range(2):
            same(self.other.compute_actions(self.obs), self.policy.compute_actions(self.obs), rule)
            batch = self.make_batch(self.policy, self.batch_size, 10 + seed)
            same(self.other.learn_on_batch(batch), self.policy.learn_on_batch(batch), rule)
        same(self.other.get_state(), self.policy.get_state(), rule)
        same(state, kept, "a state that was returned stays as it was while both policies learn")
        leaves_ = [leaf for _, leaf in leaves(kept)]
        assert all(isinstance(leaf, _PLAIN) for leaf in leaves_), "a state is arrays, numbers and strings"

    def test_a_wrong_state_changes_nothing(self) -> None:
        """Neither wrong weights nor a wrong optimizer leave half of a state behind."""
        self.other.learn_on_batch(self.batch)
        good, before = self.other.get_state(), self.policy.get_state()
        for part in ("weights", "optimizer"):
            last = list(good[part])[-1]
            bent = {**good[part], last: np.zeros((9, 9), np.float32)}
            short = {key: x for key, x in good[part].items() if key != last}
            for wrong in (bent, short):
                rule = f"a state whose {part} don't fit is an error that names the variable"
                raises(WeightsError, re.escape(last), rule, self.policy.set_state, {**good, part: wrong})
                same(self.policy.get_state(), before, "a refused state changes nothing")

    def test_schedules_follow_the_timestep(self) -> None:
        """`set_timestep` feeds what the objective schedules."""
        self.policy.set_timestep(1234)
        assert self.policy.global_timestep == 1234, "global_timestep is what set_timestep was given"
        for name, value in self.policy.objective.scheduled(1234).items():
            assert self.policy.coefficients[name] == float(np.float32(value)), f"{name} follows its schedule"

    # --- several policies

    def test_policies_dont_disturb_each_other(self) -> None:
        """One policy's acting and learning leave another of the same process alone."""
        before = self.other.get_state()
        self.policy.set_coefficients(**{next(iter(self.policy.groups.values())).lr: 0.5})
        self.policy.learn_on_batch(self.batch)
        self.policy.compute_actions(self.obs)
        same(self.other.get_state(), before, "a policy's learning and acting leave others alone")
        alone = [self.other.compute_actions(self.obs) for _ in range(2)]
        self.setup_method()
        mixed = []
        for _ in range(2):
            self.policy.compute_actions(self.obs)
            mixed.append(self.other.compute_actions(self.obs))
            self.policy.learn_on_batch(self.batch)
        same(mixed, alone, "policies that take turns act as they would alone")

    def test_closing_one_leaves_the_others(self) -> None:
        """`close()` may be called twice, and concerns one policy only."""
        policy = self.make_policy()
        expected = policy.compute_actions(self.obs, explore=False)
        policy.close()
        policy.close()
        same(self.policy.compute_actions(self.obs, explore=False), expected, "closing a policy leaves others working")


def sample_space(space: gym.Space[Any], size: int, seed: int) -> Any:
    """`[size, *shape]` values of a space, in its dtype; nested as it is. An action mask allows most, the first always.

    Args:
        space: any that policies take.
        size: how many.
        seed: of the values.
    """
    flat = {}
    for i, (name, part) in enumerate(spaces.leaves(space).items()):
        part = copy.deepcopy(part)
        part.seed(seed + 1000 * i)
        flat[name] = np.stack([np.asarray(part.sample(), part.dtype) for _ in range(size)])
        if name == spaces.mask_column(space):
            flat[name] = np.maximum(flat[name], np.random.default_rng(seed).random(flat[name].shape) < 0.5)
            flat[name].reshape(size, -1)[:, 0] = 1
    return spaces.unflatten(space, flat)


def parts(space: gym.Space[Any], value: Any) -> list[tuple[gym.Space[Any], np.ndarray]]:
    """Pairs of the single arrays of a value that is nested as `space` is, and their spaces."""
    found = spaces.flatten(space, value, "value")
    return [(part, found[name]) for name, part in spaces.leaves(space, "value").items()]


def row(value: Any, index: Any) -> Any:
    """`x[index]` of all arrays of a nested value."""
    return tree.map_structure(lambda x: x[index], value)


def _frozen(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Paths and leaves of nested dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return [leaf for key, part in value.items() for leaf in leaves(part, f"{path}[{key!r}]")]
    if isinstance(value, list | tuple):
        return [leaf for i, part in enumerate(value) for leaf in leaves(part, f"{path}[{i}]")]
    return [(path, value)]


def same(actual: Any, expected: Any, rule: str) -> None:
    """Nested values are equal, bit for bit; `rule` is what the failure says."""
    _compare(actual, expected, rule, np.testing.assert_array_equal)


def close(actual: Any, expected: Any, rule: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Nested values are equal but for rounding; `rule` is what the failure says."""

    def check(x: Any, y: Any, err_msg: str) -> None:
        np.testing.assert_allclose(x, y, rtol, atol, err_msg=err_msg)

    _compare(actual, expected, rule, check)


def _compare(actual: Any, expected: Any, rule: str, check: Callable[..., None]) -> None:
    found, wanted = dict(leaves(actual)), dict(leaves(expected))
    assert set(found) == set(wanted), f"{rule}: {sorted(set(found) ^ set(wanted))} are in one only"
    for path, x in wanted.items():
        check(found[path], x, err_msg=f"{rule} (at {path or 'the value itself'})")


def raises(kind: type[Exception], pattern: str, rule: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`call(...)` raises `kind` with a message that matches `pattern`; `rule` is what the failure says."""
    try:
        call(*args, **kwargs)
    except kind as error:
        assert re.search(pattern, str(error)), f"{rule}: {str(error)!r} doesn't match {pattern!r}"
    else:
        raise AssertionError(f"{rule}: nothing was raised")
