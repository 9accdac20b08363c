"""Policies from a user's own loss: `build_tf_policy` and `build_torch_policy`, with RLlib's names for the hooks.

    def loss_fn(policy, model, dist_class, train_batch):
        logits, _ = model(train_batch)
        logp = dist_class(logits, model).logp(train_batch["actions"])
        return -tf.reduce_mean(logp * train_batch["advantages"])

    MyPolicy = build_tf_policy("MyPolicy", loss_fn=loss_fn, postprocess_fn=...)
    MyAlgorithm = polylib.build_algorithm("MyAlgorithm", policy=MyPolicy)

A loss for TensorFlow runs in a graph, eagerly and traced; one for torch in torch. One that is written over `ops` runs
everywhere and needs no builder: it is an `Objective`. docs/custom_policies.md has an example of each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from polylib.errors import BatchError, ConfigError, ConfigTypeError, FrameworkError, PolylibError
from polylib.models.custom import CustomNetwork
from polylib.models.distributions import BoundDistribution, Product
from polylib.models.networks import SEQ_MASK, NetworkSpec
from polylib.models.spaces import flatten, leaves, unflatten
from polylib.policy import columns as col
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.fragment import Fragment
from polylib.policy.objective import UpdateHooks
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch, concat_samples

# Columns that a loss gets only if it asks for them: large, or no numbers, or told in another way.
_UNASKED = (col.INFOS, col.NEXT_OBS, col.SEQ_LENS, col.ACTION_MASK, col.PREV_ACTIONS, col.PREV_REWARDS)
_NESTED = (col.OBS, col.NEXT_OBS, col.ACTIONS, col.PREV_ACTIONS)


@dataclass(frozen=True)
class Hooks:
    """What a user gave; see `build_tf_policy`."""

    loss_fn: Callable[..., Any]
    columns: tuple[str, ...] | None = None
    get_default_config: Callable[[], Mapping[str, Any]] | None = None
    postprocess_fn: Callable[..., Any] | None = None
    stats_fn: Callable[..., Any] | None = None
    extra_action_out_fn: Callable[..., Any] | None = None
    extra_learn_fetches_fn: Callable[..., Any] | None = None
    optimizer_fn: Callable[..., Any] | None = None
    compute_gradients_fn: Callable[..., Any] | None = None
    apply_gradients_fn: Callable[..., Any] | None = None
    make_model: Callable[..., Any] | None = None
    action_distribution_fn: Callable[..., Any] | None = None
    validate_spaces: Callable[..., Any] | None = None
    before_init: Callable[..., Any] | None = None
    after_init: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name, hook in vars(self).items():
            if name != "columns" and hook is not None and not callable(hook):
                raise ConfigTypeError(f"{name} is {hook!r} ({type(hook).__name__}), expected a function")


class TrainBatch(dict[str, Any]):
    """The columns that a loss is given: tensors `[B, ...]`, nested where the space is."""

    def __missing__(self, name: str) -> Any:
        raise BatchError(
            f"the train batch has no column {name!r}; it has {', '.join(self)}. Does postprocess_fn add it, or columns "
            "leave it out?"
        )


class LossDistribution(BoundDistribution):
    """`dist_class(inputs, model)` in a loss: clipped actions of the batch are known by their samples before clipping.

    Args:
        batch: the columns of the loss.
    """

    def __init__(self, dist: Any, ops: Any, rng: Any, batch: Mapping[str, Any], inputs: Array, model: Any = None):
        super().__init__(dist, ops, rng, inputs, model)
        self._batch = batch

    def logp(self, actions: Any) -> Array:
        """Log-probability `[B]` of actions."""
        raw = self._batch.get(col.ACTION_RAW)
        if raw is None or actions is not self._batch.get(col.ACTIONS):
            return super().logp(actions)
        flat = flatten(self.dist.space, actions, "actions") if isinstance(self.dist, Product) else actions
        return self.dist.logp(self.ops, self.inputs, flat, raw)

    def sample(self) -> Any:
        """Random actions `[B, *action_shape]`, where the loss runs line by line."""
        self._refuse_in_graph("sample")
        return super().sample()

    def deterministic_sample(self) -> Any:
        """The most likely actions `[B, *action_shape]`, where the loss runs line by line."""
        self._refuse_in_graph("deterministic_sample")
        return super().deterministic_sample()

    def _refuse_in_graph(self, what: str) -> None:
        if self.inputs.shape[0] is None:
            raise FrameworkError(
                f"{what}() of an action distribution draws on the host, which a traced loss can't do: use the "
                "framework's own random numbers and the logits, or run it eagerly"
            )


class FrameworkObjective(ActorCritic):
    """What `build_tf_policy` and `build_torch_policy` return a subclass of.

    Attributes:
        hooks: what the user gave.
    """

    hooks: ClassVar[Hooks]
    columns: tuple[str, ...] = (col.OBS, col.ACTIONS)
    sees_variables = True

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        asked = self.hooks.columns
        known = [name for name in col.COLUMNS if name not in self.columns]
        if asked is None:
            names = [name for name in known if name not in _UNASKED]
        else:
            self.columns = (*self.columns, *(name for name in asked if name in known))
            names = []
        self.optional_columns = (*names, col.ACTION_MASK, col.ACTION_RAW)

    # --- the policy's life

    @property
    def policy(self) -> Any:
        """The policy that this is the objective of."""
        return self._policy()

    def bind(self, policy: Any) -> None:
        """Checks the framework and the spaces, and calls `before_init`."""
        self._policy, hooks = weakref.ref(policy), self.hooks
        if policy.framework == "numpy":
            if not self.numpy_acting:
                raise FrameworkError(
                    f"policy {type(self).__name__!r} has hooks that act through its framework: choose framework "
                    + " or ".join(map(repr, self.frameworks))
                )
        elif policy.framework not in self.frameworks:
            raise FrameworkError(
                f"policy {type(self).__name__!r} has no {policy.framework!r} version; it runs with framework "
                + " or ".join(map(repr, self.frameworks))
            )
        for hook in (hooks.validate_spaces, hooks.before_init):
            if hook is not None:
                hook(policy, self.spec.observation_space, self.spec.action_space, self.config)
        if hooks.optimizer_fn or hooks.compute_gradients_fn or hooks.apply_gradients_fn:
            self.update_hooks = UpdateHooks(
                optimizer=self._own(hooks.optimizer_fn),
                compute=self._own(hooks.compute_gradients_fn),
                apply=self._own(hooks.apply_gradients_fn),
            )

    def _own(self, hook: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """The hook, given the policy first; an optimizer's is given the config besides."""
        if hook is None:
            return None
        if hook is self.hooks.optimizer_fn:
            return lambda: hook(self.policy, self.config)
        return lambda *args: hook(self.policy, *args)

    def built(self, policy: Any) -> None:
        """Calls `after_init`."""
        if self.hooks.after_init is not None:
            self.hooks.after_init(policy, self.spec.observation_space, self.spec.action_space, self.config)

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """The default network, or the one that `make_model` makes."""
        make = self.hooks.make_model
        if make is None:
            return super().networks()

        def model(observation_space: Any, action_space: Any, outputs: Any, **kwargs: Any) -> Any:
            return make(self.policy, observation_space, action_space, self.config)

        outputs = {"logits": self.dist.inputs_size, "value": 1}
        spaces = self.spec.observation_space, self.spec.action_space
        return {"policy": CustomNetwork("policy", *spaces, outputs, model, {}, self.config["model"])}

    # --- acting

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The masked logits, or what `action_distribution_fn` makes of them."""
        if self.hooks.action_distribution_fn is None:
            return super().dist_inputs(ops, nets, inputs)
        return self._distribution(self._model(nets, inputs, False), self.nested(ops, inputs), self._states(inputs))[0]

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Samples from the policy's distribution, and calls `extra_action_out_fn`."""
        hooks = self.hooks
        if hooks.action_distribution_fn is None and hooks.extra_action_out_fn is None:
            return super().act(ops, nets, inputs, noise, c)
        model, given, states = self._model(nets, inputs, False), self.nested(ops, inputs), self._states(inputs)
        dist_inputs, after = self._distribution(model, given, states)
        out = self.sampled(ops, dist_inputs, noise)
        out.update({f"state_out_{i}": state for i, state in enumerate(after)})
        if hooks.extra_action_out_fn is not None:
            dist = BoundDistribution(self.dist, ops, self.policy.rng, dist_inputs)
            extra = hooks.extra_action_out_fn(self.policy, given, states, model, dist)
            taken = sorted(set(out) & set(extra))
            if taken:
                raise ConfigError(f"extra_action_out_fn returns {taken[0]!r}, as the policy itself does: rename it")
            out.update(extra)
        return out

    def _distribution(self, model: Any, given: Mapping[str, Any], states: list[Any]) -> tuple[Array, Sequence[Array]]:
        hook = self.hooks.action_distribution_fn
        if hook is None:
            return model(given, states)
        found = hook(self.policy, model, given, state_batches=states, seq_lens=None, is_training=False)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise ConfigError(
                "action_distribution_fn has to return (dist_inputs, dist_class, state_out), got "
                + (f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__)
            )
        width = int(found[0].shape[-1])
        if width != self.dist.inputs_size:
            raise ConfigError(
                f"action_distribution_fn returns dist_inputs of width {width}, {type(self.dist).__name__} takes "
                f"{self.dist.inputs_size}; another distribution is set with the config's model.custom_action_dist"
            )
        return found[0], found[2]

    @staticmethod
    def _states(inputs: Mapping[str, Array]) -> list[Array]:
        return [inputs[f"state_{i}"] for i in range(sum(name.startswith("state_") for name in inputs))]

    def _model(self, nets: Mapping[str, Any], inputs: Mapping[str, Array], training: bool) -> Any:
        memory = {name: x for name, x in inputs.items() if name.startswith(("state_", "prev_")) or name == SEQ_MASK}
        return self.policy.model_view(nets["policy"], training, memory)

    def nested(self, ops: Any, flat: Mapping[str, Array]) -> TrainBatch:
        """Columns as hooks are given them."""
        out, parts = TrainBatch(), set()
        for name in _NESTED:
            space = self.spec.action_space if "actions" in name else self.spec.observation_space
            names = list(leaves(space, name))
            if all(part in flat for part in names):
                out[name] = unflatten(space, flat, name)
                parts.update(names)
        for name, x in flat.items():
            if name not in parts:
                out[f"state_in_{name[6:]}" if name.startswith("state_") else name] = x
        if SEQ_MASK in flat:
            out[col.SEQ_LENS] = ops.to_int(ops.sum(ops.to_float(flat[SEQ_MASK]), 1))
        return out

    # --- learning

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """The user's loss, and what `stats_fn` and `extra_learn_fetches_fn` return."""
        hooks, policy, columns = self.hooks, self.policy, self.nested(ops, batch)
        dist_class = partial(LossDistribution, self.dist, ops, policy.rng, columns)
        loss = hooks.loss_fn(policy, self._model(nets, batch, training), dist_class, columns)
        stats: dict[str, Array] = {}
        rows: dict[str, Array] = {}
        if hooks.stats_fn is not None:
            stats.update(hooks.stats_fn(policy, columns))
            for name, x in stats.items():
                if _rank(x):
                    raise ConfigError(f"stats_fn returns {name!r} of shape {list(x.shape)}, expected a scalar")
        if hooks.extra_learn_fetches_fn is not None:
            for name, x in hooks.extra_learn_fetches_fn(policy).items():
                (rows if _rank(x) else stats)[name] = x
        return {"default": _checked_loss(loss)}, stats, rows

    def other_columns(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Columns that only the user knows, from the hooks; floats as float32."""
        asked, found = self.hooks.columns, {}
        for name in batch if asked is None else asked:
            if name in col.COLUMNS or name.startswith(("state_in_", "state_out_")) or "/" in name:
                continue
            if name not in batch:
                raise BatchError(f"the batch has no column {name!r}, which the loss uses; it has {', '.join(batch)}")
            value = batch[name]
            if not isinstance(value, Mapping | tuple) and np.asarray(value).dtype.kind in "biuf":
                x = np.asarray(value)
                found[name] = x.astype(np.float32) if x.dtype == np.float64 else x
        return found

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Each trajectory through `postprocess_fn`; without one, the rows as they were sampled."""
        hook = self.hooks.postprocess_fn
        if hook is None:
            return fragment.with_new_obs() if self._asked(col.NEXT_OBS) else fragment.batch
        batch = fragment.with_new_obs()
        if fragment.bootstrap is not None and col.VF_PREDS in batch:
            after = np.append(batch[col.VF_PREDS][1:], np.float32(0))
            after[fragment.ends - 1] = np.where(fragment.terminated, np.float32(0), fragment.bootstrap)
            batch[col.VALUES_BOOTSTRAPPED] = after
        pieces = []
        for start, end in zip(fragment.starts.tolist(), fragment.ends.tolist(), strict=True):
            try:
                piece = hook(self.policy, batch.slice(start, end).copy(), None, None)
            except PolylibError:
                raise
            except Exception as error:
                raise ConfigError(f"postprocess_fn raised {type(error).__name__}: {error}") from error
            if not isinstance(piece, Mapping):
                raise ConfigError(f"postprocess_fn has to return the batch, got {type(piece).__name__}")
            pieces.append(piece if isinstance(piece, SampleBatch) else SampleBatch(piece))
        out = concat_samples(pieces) if pieces else batch
        if not self._asked(col.NEXT_OBS) and col.NEXT_OBS in out:
            del out[col.NEXT_OBS]
        return out

    def _asked(self, name: str) -> bool:
        return self.hooks.columns is not None and name in self.hooks.columns

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """What `get_default_config` returns."""
        return dict(cls.hooks.get_default_config() if cls.hooks.get_default_config else {})


def _rank(x: Any) -> int:
    return len(getattr(x, "shape", ()))


def _checked_loss(loss: Any) -> Any:
    if isinstance(loss, list | tuple) and len(loss) == 1:
        loss = loss[0]
    if not hasattr(loss, "shape") or isinstance(loss, np.ndarray | np.generic):
        raise ConfigError(f"loss_fn returned {type(loss).__name__}, expected a scalar tensor of the framework")
    if getattr(loss, "requires_grad", True) is False:
        raise ConfigError("loss_fn returned a tensor that doesn't depend on the model: nothing can be learned from it")
    if _rank(loss):
        raise ConfigError(f"loss_fn returned shape {list(loss.shape)}, expected a scalar: take the mean over the rows")
    return loss


def _build(name: str, frameworks: tuple[str, ...], hooks: Hooks) -> type[FrameworkObjective]:
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"a policy's name has to be a Python name, got {name!r}")
    numpy_acting = not (
        hooks.extra_action_out_fn
        or hooks.action_distribution_fn
        or hooks.make_model
        or hooks.before_init
        or hooks.after_init
    )
    members = {
        "hooks": hooks,
        "frameworks": frameworks,
        "numpy_acting": numpy_acting,
        "__doc__": hooks.loss_fn.__doc__,
        # Where it is most likely assigned: pickled by name if it is, by value if not.
        "__module__": getattr(hooks.loss_fn, "__module__", None) or __name__,
    }
    return type(name, (FrameworkObjective,), members)


def build_tf_policy(
    name: str,
    *,
    loss_fn: Callable[..., Any],
    columns: Sequence[str] | None = None,
    get_default_config: Callable[[], Mapping[str, Any]] | None = None,
    postprocess_fn: Callable[..., Any] | None = None,
    stats_fn: Callable[..., Any] | None = None,
    extra_action_out_fn: Callable[..., Any] | None = None,
    extra_learn_fetches_fn: Callable[..., Any] | None = None,
    optimizer_fn: Callable[..., Any] | None = None,
    compute_gradients_fn: Callable[..., Any] | None = None,
    apply_gradients_fn: Callable[..., Any] | None = None,
    make_model: Callable[..., Any] | None = None,
    action_distribution_fn: Callable[..., Any] | None = None,
    validate_spaces: Callable[..., Any] | None = None,
    before_init: Callable[..., Any] | None = None,
    after_init: Callable[..., Any] | None = None,
) -> type[FrameworkObjective]:
    """A policy from a loss written in TensorFlow: for a graph (`tf`), eager and traced (`tf2`).

    Args:
        name: a Python name, that of the class returned.
        loss_fn: `(policy, model, dist_class, train_batch)` to a scalar. `model(train_batch)` gives `(logits, state)`,
            `model.value_function()` then values `[B]`; `dist_class(logits, model)` has `logp`, `entropy` and `kl`;
            `train_batch` is a dict of tensors `[B, ...]`.
        columns: the batch's columns that the loss uses besides `obs` and `actions`; None: all but `new_obs` and
            `infos`.
        get_default_config: `()` to defaults of config keys; keys that no algorithm has become the algorithm's own.
        postprocess_fn: `(policy, sample_batch, other_agent_batches, episode)` to a batch, in NumPy, for every
            trajectory. The batch has `new_obs`, `vf_preds` and `values_bootstrapped`; the last two arguments are None.
        stats_fn: `(policy, train_batch)` to scalars for a result's `learner_stats`, called after `loss_fn`; what that
            kept on `policy` is there.
        extra_action_out_fn: `(policy, input_dict, state_batches, model, action_dist)` to tensors `[B, ...]` that become
            columns of the batch.
        extra_learn_fetches_fn: `(policy)` to scalars, which join the stats, and tensors `[B, ...]`, which
            `learn_on_batch` returns.
        optimizer_fn: `(policy, config)` to an optimizer of the framework, in place of Adam; its learning rate is its
            own business, and its state part of checkpoints.
        compute_gradients_fn: `(policy, optimizer, loss)` to `[(gradient, variable), ...]`;
            `optimizer.compute_gradients(loss)` is the default. `grad_clip` doesn't apply to them.
        apply_gradients_fn: `(policy, optimizer, grads_and_vars)` takes a step; `optimizer.apply_gradients(...)` is the
            default.
        make_model: `(policy, obs_space, action_space, config)` to a Keras model (a torch module) with outputs `logits`
            and, if it likes, `value`.
        action_distribution_fn: `(policy, model, input_dict, *, state_batches, seq_lens, is_training)` to `(dist_inputs,
            dist_class, state_out)`; `dist_class` is ignored.
        validate_spaces: `(policy, obs_space, action_space, config)` raises if it can't do with them.
        before_init: the same arguments, before the network is built.
        after_init: the same arguments, when everything is.

    Returns:
        The definition, for `polylib.build_algorithm` or an algorithm's `objective_class`.

    Raises:
        ConfigError: if the name is none.
        ConfigTypeError: naming a hook that is no function.
    """
    given = {key: value for key, value in locals().items() if key != "name"}
    given["columns"] = None if columns is None else tuple(columns)
    return _build(name, ("tf", "tf2"), Hooks(**given))


def build_torch_policy(
    name: str,
    *,
    loss_fn: Callable[..., Any],
    columns: Sequence[str] | None = None,
    get_default_config: Callable[[], Mapping[str, Any]] | None = None,
    postprocess_fn: Callable[..., Any] | None = None,
    stats_fn: Callable[..., Any] | None = None,
    extra_action_out_fn: Callable[..., Any] | None = None,
    extra_learn_fetches_fn: Callable[..., Any] | None = None,
    optimizer_fn: Callable[..., Any] | None = None,
    compute_gradients_fn: Callable[..., Any] | None = None,
    apply_gradients_fn: Callable[..., Any] | None = None,
    make_model: Callable[..., Any] | None = None,
    action_distribution_fn: Callable[..., Any] | None = None,
    validate_spaces: Callable[..., Any] | None = None,
    before_init: Callable[..., Any] | None = None,
    after_init: Callable[..., Any] | None = None,
) -> type[FrameworkObjective]:
    """A policy from a loss written in torch; arguments, result and errors are those of `build_tf_policy`."""
    given = {key: value for key, value in locals().items() if key != "name"}
    given["columns"] = None if columns is None else tuple(columns)
    return _build(name, ("torch",), Hooks(**given))
