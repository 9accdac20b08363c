"""What is particular to the TensorFlow modes: traces, guards, graphs; and frameworks by name."""

from __future__ import annotations

import gc
import sys
import weakref

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_tf, needs_torch
from modes import MODES, has, mode_id
from policies import BOX, DISCRETE, make, make_spec, random_batch

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.errors import FrameworkError, PolylibError, RetraceError
from polylib.policy.backends import make_policy, policy_class

GRAPH, EAGER, TRACED = MODES[:3]
TF_MODES = [pytest.param(mode, id=mode_id(*mode), marks=needs_tf) for mode in MODES[:3]]


# --- traces


@needs_tf
def test_one_trace_for_everything_that_changes():
    """Coefficients and batch sizes are data: 50 updates, one trace."""
    policy = make(TRACED)
    assert policy.model is not None  # somebody looks inside: it acts through the model from now on, not a copy
    for i in range(50):
        policy.set_coefficients(lr=1e-3 / (i + 1), kl_coeff=0.1 * i, entropy_coeff=0.01 * i, grad_clip=1.0 + i)
        policy.learn_on_batch(random_batch(policy.spec, 5 if i % 10 == 9 else 8, seed=i))
    assert policy.traces == {"learn": 1}
    for updates, rows in [(2, 4), (1, 8), (3, 1)]:
        policy.learn_on_minibatches(random_batch(policy.spec, 8), np.arange(updates * rows).reshape(updates, rows) % 8)
    for size in (1, 7, 2):
        batch = random_batch(policy.spec, size)
        policy.compute_actions(batch["obs"], explore=size > 1)
        policy.compute_values(batch["obs"])
        policy.compute_log_likelihoods(batch["actions"], batch["obs"])
        gradients, _ = policy.compute_gradients(batch)
        policy.apply_gradients(gradients)
    assert policy.traces == dict.fromkeys(["learn", "phase", "act", "values", "logp", "gradients", "apply"], 1)


@needs_tf
@pytest.mark.parametrize("private", [True, False])
def test_a_trace_is_called_without_looking_for_it(private, monkeypatch):
    """TensorFlow's own call, which looks for the trace that fits, is for what doesn't fit; results are the same."""
    import tensorflow as tf

    from polylib.policy.tf import eager_policy

    expected = make(TRACED)
    batch = random_batch(expected.spec, 8)
    stats = expected.learn_on_batch(batch)["learner_stats"]
    calls = []

    def function(*args, **kwargs):
        made = original(*args, **kwargs)

        class Function:
            get_concrete_function = made.get_concrete_function

            def __call__(self, *tensors):
                calls.append(len(tensors))
                return made(*tensors)

        return Function()

    original = tf.function
    monkeypatch.setattr(tf, "function", function)
    if not private:
        monkeypatch.setattr(eager_policy, "concrete_callable", lambda *args: None)
    policy = make(TRACED)
    assert policy.learn_on_batch(batch)["learner_stats"] == pytest.approx(stats, rel=1e-6)
    assert len(calls) == (0 if private else 1)


@needs_tf
def test_a_concrete_function_that_tensorflow_cannot_call_directly():
    from polylib.policy.tf.callables import concrete_callable

    assert concrete_callable(object(), True) is None


@needs_tf
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("often", [True, False])
def test_frequent_traced_updates_run_on_the_calling_thread(often, private, monkeypatch):
    """And leave the thread's own options as they were; without TensorFlow's options they run as others do."""
    from polylib.policy.tf import callables

    class Often(PPOObjective):
        updates_often = often

    context, options = callables._inline_options()
    used = []
    if not private:
        monkeypatch.setattr(callables, "_inline_options", lambda: (None, None))
    original = type(context).call_function
    monkeypatch.setattr(
        type(context),
        "call_function",
        lambda self, *args: used.append(self.function_call_options is options) or original(self, *args),
    )
    before = context.function_call_options
    policy, expected = make(TRACED, objective=Often), make(EAGER, objective=Often)
    batch = random_batch(policy.spec, 8)
    for _ in range(2):
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats == pytest.approx(expected.learn_on_batch(batch)["learner_stats"], rel=1e-4, abs=1e-6)
    assert used == [often and private] * 2
    assert context.function_call_options is before


@needs_tf
def test_what_waits_for_others_does_not_run_on_the_calling_thread():
    import tensorflow as tf

    from polylib.policy.tf.callables import _is_flat

    functions = {
        "plain": lambda x: 2.0 * x,
        "condition": lambda x: tf.cond(x > 0.0, lambda: x, lambda: -x),
        "loop": lambda x: tf.while_loop(lambda y: y < 9.0, lambda y: y + 1.0, [x])[0],
        "python": lambda x: tf.numpy_function(lambda y: y, [x], tf.float32),
        "call": lambda x: tf.function(lambda y: y + 1.0)(x),
    }
    spec = tf.TensorSpec([], tf.float32)
    flat = {name: _is_flat(tf.function(f).get_concrete_function(spec).graph) for name, f in functions.items()}
    assert flat == {"plain": True, "condition": False, "loop": False, "python": False, "call": False}


@needs_tf
def test_arrays_become_tensors_of_their_dtype_and_shape(monkeypatch):
    import tensorflow as tf

    from polylib.policy.tf import callables

    fast = callables.to_tensor()
    assert fast is not tf.convert_to_tensor
    arrays = [np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2], np.float32(0.5), np.array([True, False])]
    for array in (*arrays, np.zeros((0, 3), np.uint8), np.asfortranarray(np.ones((2, 3), np.float32))):
        tensor, usual = fast(array), tf.convert_to_tensor(array)
        assert tensor.dtype == usual.dtype and tensor.shape == usual.shape and tensor.device == usual.device
        np.testing.assert_array_equal(tensor.numpy(), array)
    callables.to_tensor.cache_clear()
    monkeypatch.setattr(callables, "_make", lambda cls, device, array: cls(array[:1], device, None))  # another result
    try:
        assert callables.to_tensor() is tf.convert_to_tensor
    finally:
        callables.to_tensor.cache_clear()


@needs_tf
@pytest.mark.parametrize("often", [True, False])
def test_frequent_updates_run_on_the_calling_thread(often, monkeypatch):
    from polylib.policy.tf import graph_policy

    found = {}
    original = graph_policy.make_callable

    def recorded(session, feeds, fetches, inline):
        found[len(found)] = inline
        return original(session, feeds, fetches, inline)

    class Often(PPOObjective):
        updates_often = often

    policy = make(GRAPH, objective=Often)
    monkeypatch.setattr(graph_policy, "make_callable", recorded)
    policy.learn_on_batch(random_batch(policy.spec, 8))
    assert found == {0: often}


@needs_tf
def test_other_columns_are_one_more_trace():
    """With and without masks, in turn: two traces, however often they change."""
    policy = make(TRACED)
    assert policy.model is not None
    for i in range(6):
        batch = random_batch(policy.spec, 8, seed=i, masked=i % 2 == 0)
        policy.learn_on_batch(batch)
        policy.compute_actions(batch["obs"], action_mask=batch.get("action_mask"))
    assert policy.traces == {"learn": 2, "act": 2}


@needs_tf
def test_too_many_traces_are_an_error_that_names_what_changed():
    policy = make(TRACED, eager_max_retraces=0)
    policy.learn_on_batch(random_batch(policy.spec, 8))
    before = policy.get_weights()
    message = r"learn step was traced 2 times, eager_max_retraces is 0.*action_mask: bool"
    with pytest.raises(RetraceError, match=message):
        policy.learn_on_batch(random_batch(policy.spec, 8, masked=True))
    assert all(np.array_equal(w, before[key]) for key, w in policy.get_weights().items())
    policy.learn_on_batch(random_batch(policy.spec, 8))  # the first trace is still there


@needs_tf
def test_retraces_inside_a_function_count_too():
    """Another dtype makes tf.function trace again; the message shows both."""
    policy = make(TRACED, eager_max_retraces=0)
    batch = policy.inputs.prepare(random_batch(policy.spec, 8)).columns
    policy._learn(batch, {})
    wrong = {**batch, "advantages": batch["advantages"].astype(np.float64)}
    with pytest.raises(RetraceError, match=r"advantages: float32\[None\].*advantages: float64"):
        policy._learn(wrong, {})


@needs_tf
def test_retraces_can_be_unlimited():
    policy = make(TRACED, eager_max_retraces=None)
    for masked in (False, True):
        policy.learn_on_batch(random_batch(policy.spec, 8, masked=masked))
    assert policy.traces["learn"] == 2


# --- eager execution is for looking inside


class Watched(PPOObjective):
    """Notes every call of the loss, as a print or a breakpoint would be reached."""

    seen: list

    def losses(self, ops, nets, batch, noise, c, training):
        losses, stats, rows = super().losses(ops, nets, batch, noise, c, training)
        type(self).seen.append((training, losses["default"]))
        return losses, stats, rows


@needs_tf
def test_eager_reaches_the_loss_at_every_update_and_traced_once():
    for mode, times in ((EAGER, 5), (TRACED, 2), (GRAPH, 2)):
        Watched.seen = []
        policy = make(mode, objective=Watched)
        batch = random_batch(policy.spec, 8)
        first = policy.learn_on_batch(batch)["learner_stats"]["total_loss"]
        policy.learn_on_batch(batch)
        policy.learn_on_minibatches(batch, np.arange(6).reshape(3, 2))
        # Two updates and three minibatches, or a trace of either.
        assert len(Watched.seen) == times, mode
        assert all(training is True for training, _ in Watched.seen), "the loss runs with training=True"
        if mode == EAGER:
            assert float(Watched.seen[0][1].numpy()) == pytest.approx(first), "tensors have values there"
        policy.close()


# --- no new variables in a step


def _dense(self, batch):
    import keras

    return keras.layers.Dense(1)(batch["advantages"][:, None])[0, 0]


def _lazy_layer(self, batch):
    import keras

    self.layer = getattr(self, "layer", None) or keras.layers.Dense(1)
    return self.layer(batch["advantages"][:, None])[0, 0]


def _variable(self, batch):
    import tensorflow as tf

    return tf.Variable(1.0, name="mine")


def _lifted_variable(self, batch):
    """As layers do that take care not to be made inside a function's graph."""
    import tensorflow as tf

    with tf.init_scope():
        self.lifted = tf.Variable(1.0, name="mine")
    return 0.0


def _keras_variable(self, batch):
    import keras

    return keras.Variable(1.0, name="mine").value


def _optimizer(self, batch):
    import keras

    keras.optimizers.Adam().build([])
    return 0.0


@pytest.mark.parametrize("mode", TF_MODES)
@pytest.mark.parametrize(
    "creates", [_dense, _lazy_layer, _variable, _lifted_variable, _keras_variable, _optimizer], ids=lambda f: f.__name__
)
def test_a_step_that_creates_a_variable_is_an_error(mode, creates):
    class Creative(PPOObjective):
        def losses(self, ops, nets, batch, noise, c, training):
            losses, stats, rows = super().losses(ops, nets, batch, noise, c, training)
            return {"default": losses["default"] + creates(self, batch)}, stats, rows

    policy = make(mode, objective=Creative)
    before = policy.get_weights()
    batch = random_batch(policy.spec, 8)
    message = "step creates a variable .*make all layers and variables when the network is built"
    for learn in (policy.learn_on_batch, policy.learn_on_batch, policy.compute_gradients):
        with pytest.raises(PolylibError, match=message):
            learn(batch)
    assert all(np.array_equal(w, before[key]) for key, w in policy.get_weights().items())
    policy.compute_actions(batch["obs"])
    policy.close()


@pytest.mark.parametrize("mode", TF_MODES)
def test_variables_can_be_made_outside_a_step(mode):
    """The guard ends with the step."""
    import tensorflow as tf

    policy = make(mode)
    policy.learn_on_batch(random_batch(policy.spec, 8))
    assert float(tf.Variable(2.0).numpy()) == 2.0
    policy.close()


# --- graphs


@needs_tf
def test_eager_execution_stays_on():
    import tensorflow as tf

    policy = make(GRAPH)
    batch = random_batch(policy.spec, 8)
    policy.compute_actions(batch["obs"])
    policy.learn_on_batch(batch)
    assert tf.executing_eagerly() and tf.compat.v1.get_default_graph() is not policy.graph
    assert float(tf.constant(1.0) + 1.0) == 2.0
    assert tf.compat.v1.get_default_session() is None
    policy.close()


@needs_tf
def test_the_graph_doesnt_grow():
    policy = make(GRAPH)
    batch = random_batch(policy.spec, 8)
    indices = np.arange(4).reshape(2, 2)

    def everything():
        policy.compute_actions(batch["obs"])
        policy.compute_single_action(batch["obs"][0])
        policy.compute_values(batch["obs"])
        policy.compute_log_likelihoods(batch["actions"], batch["obs"])
        policy.learn_on_batch(batch)
        policy.learn_on_minibatches(batch, indices)
        policy.apply_gradients(policy.compute_gradients(batch)[0])
        policy.set_weights(policy.get_weights())
        policy.set_state(policy.get_state())
        policy.set_coefficients(lr=1e-3)
        policy.model({"obs": batch["obs"]})
        policy.model.get_weights()
        policy.dist_class(policy.model({"obs": batch["obs"]})[0], policy.model).sample()

    everything()
    size = len(policy.graph.get_operations())
    for _ in range(20):
        everything()
    assert len(policy.graph.get_operations()) == size
    policy.close()


@pytest.mark.parametrize("mode", [pytest.param(m, id=mode_id(*m)) for m in MODES if has(m[0])])
def test_a_policy_that_is_deleted_is_freed(mode):
    """With its graph: a sweep in one process would otherwise fill the memory."""
    policy = make(mode)
    batch = random_batch(policy.spec, 8)
    policy.learn_on_batch(batch)
    policy.compute_actions(batch["obs"])
    policy.model({"obs": batch["obs"]})
    things = [weakref.ref(policy), weakref.ref(next(iter(policy.nets.values())))]
    if mode == GRAPH:
        things.append(weakref.ref(policy.graph))
    policy.close()
    del policy
    gc.collect()
    assert [thing() for thing in things] == [None] * len(things)


@needs_tf
def test_callables_of_a_session_agree():
    """The private, fast one, and the one of the public API, which takes over where the private one is gone."""
    import tensorflow as tf

    from polylib.policy.tf.callables import make_callable, new_session, session_callable

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        n = tf.compat.v1.placeholder(tf.int64, [])
        fetches = [x * tf.cast(n, tf.float32), n + 1, tf.reduce_sum(x)]
    session = new_session(graph, {})
    arrays = (np.arange(6, dtype=np.float32).reshape(3, 2), np.array(3))
    expected = [arrays[0] * 3, 4, 15.0]
    calls = {
        "inline": make_callable(session, [x, n], fetches, inline=True),
        "pool": make_callable(session, [x, n], fetches, inline=False),
        "public": session_callable(session, [x, n], fetches),
    }

    class Public:
        """A session of a TensorFlow without the private method."""

        run = staticmethod(session.run)

    calls["fallback"] = make_callable(Public(), [x, n], fetches, inline=True)
    for name, call in calls.items():
        for _ in range(2):
            found = call(*arrays)
            assert len(found) == 3, name
            for value, wanted in zip(found, expected, strict=True):
                assert isinstance(value, np.ndarray | np.generic), name
                np.testing.assert_array_equal(value, wanted, err_msg=name)
    session.close()


@needs_tf
def test_a_policy_works_without_the_private_callable(monkeypatch):
    """And acts and learns bit for bit as with it."""
    from polylib.policy.tf import callables, graph_policy

    def run():
        policy = make(GRAPH)
        batch = random_batch(policy.spec, 8)
        out = policy.compute_actions(batch["obs"])
        policy.learn_on_batch(batch)
        weights = policy.get_weights()
        policy.close()
        return [out.actions, *out.extras.values(), *weights.values()]

    fast = run()
    plain = lambda session, feeds, fetches, inline: callables.session_callable(session, feeds, fetches)  # noqa: E731
    monkeypatch.setattr(graph_policy, "make_callable", plain)
    for a, b in zip(fast, run(), strict=True):
        np.testing.assert_array_equal(a, b)


@needs_tf
def test_session_options_reach_the_session():
    options = {"inter_op_parallelism_threads": 1, "intra_op_parallelism_threads": 3}
    policy = make(GRAPH, tf_session_args=options, local_tf_session_args={"inter_op_parallelism_threads": 2})
    assert policy.session._config.intra_op_parallelism_threads == 3
    assert policy.session._config.inter_op_parallelism_threads == 2, "the local worker's count over the others'"
    policy.close()


# --- frameworks by name


def test_an_unknown_framework_is_named_with_the_nearest():
    with pytest.raises(FrameworkError, match=r"unknown framework 'pytorch'\. Did you mean 'torch'\? Known: .*torch"):
        policy_class("pytorch")
    with pytest.raises(FrameworkError, match="'jax'.*Known: .*tf, tf2, torch"):
        make_policy(make_spec(), "jax")


@pytest.mark.parametrize(
    ("framework", "package", "extra"),
    [("tf", "tensorflow", "tf"), ("tf2", "tensorflow", "tf"), ("tf2", "keras", "tf"), ("torch", "torch", "torch")],
)
def test_a_framework_that_isnt_installed(block_import, framework, package, extra):
    block_import(package)
    if not has(framework) and package == "keras":
        pytest.skip("without tensorflow, keras isn't reached")
    for traced in (False, True):
        with pytest.raises(FrameworkError, match=rf"{framework!r} needs {package}.*pip install 'polylib\[{extra}\]'"):
            make_policy(make_spec(), framework, traced)


@needs_torch
def test_a_missing_framework_doesnt_matter_to_the_others(block_import):
    block_import("tensorflow", "keras")
    policy = make(("torch", False))
    assert policy.compute_single_action(np.zeros(3, np.float32)) in DISCRETE


@needs_tf
def test_keras_on_another_backend_is_an_error_that_says_so(monkeypatch):
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for name in [name for name in sys.modules if name.startswith("polylib.policy.tf")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FrameworkError, match="need Keras on TensorFlow, here it runs on 'jax'.*KERAS_BACKEND"):
        policy_class("tf2", True)


@pytest.mark.parametrize("mode", [pytest.param(m, id=mode_id(*m)) for m in MODES if has(m[0])])
def test_a_policy_knows_its_framework(mode):
    policy = make(mode, BOX, gym.spaces.Discrete(2))
    assert policy.framework == mode[0]
    assert type(policy) is policy_class(*mode)
    policy.close()


def test_tracing_is_for_tf2():
    """For the others it says nothing: the command line refuses it, the config's default is True."""
    for framework in ("tf", "torch"):
        if has(framework):
            assert policy_class(framework, True) is policy_class(framework, False)
