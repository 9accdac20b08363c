"""XLA and torch.compile change how fast updates are, and nothing else."""

import numpy as np
import pytest
from fakes import small_ppo
from modes import has
from policies import make, random_batch

from polylib.errors import ConfigError

INDICES = np.arange(8).reshape(2, 4)


def assert_same_weights(one, other):
    for key, weight in one.get_weights().items():
        np.testing.assert_allclose(other.get_weights()[key], weight, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.skipif(not has("tf"), reason="needs TensorFlow")
@pytest.mark.parametrize("mode", [("tf", False), ("tf2", True)], ids=["tf", "tf2-traced"])
def test_xla_computes_the_same(mode):
    plain, compiled = make(mode), make(mode, tf_xla=True)
    first = plain.get_weights()
    for seed in range(3):
        batch = random_batch(plain.spec, 8, seed=seed)
        for policy in (plain, compiled):
            policy.set_coefficients(lr=0.01 * (seed + 1))
        stats, other = plain.learn_on_minibatches(batch, INDICES), compiled.learn_on_minibatches(batch, INDICES)
        assert stats.keys() == other.keys()
        for name, values in stats.items():
            np.testing.assert_allclose(other[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert_same_weights(plain, compiled)
    assert any(not np.allclose(first[key], weight) for key, weight in compiled.get_weights().items())
    hlo = {name for name, _ in compiled._functions}
    assert hlo == {"phase"}


@pytest.mark.learning  # the C++ compiler alone takes most of a minute
@pytest.mark.skipif(not has("torch"), reason="needs torch")
def test_torch_compile_computes_the_same():
    plain, compiled = make(("torch", False)), make(("torch", False), torch_compile_learner=True)
    for seed in range(3):
        batch = random_batch(plain.spec, 8, seed=seed)
        for policy in (plain, compiled):
            policy.set_coefficients(lr=0.01 * (seed + 1))
            policy.learn_on_minibatches(batch, INDICES)
    assert_same_weights(plain, compiled)


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        (("torch", False), "tf_xla"),
        (("tf2", False), "tf_xla"),
        (("tf", False), "torch_compile_learner"),
        (("tf2", True), "torch_compile_learner"),
    ],
)
def test_an_option_of_another_mode_is_refused(mode, key):
    config = small_ppo("CartPole-v1", mode, **{key: True})
    with pytest.raises(ConfigError, match=f"'{key}'"):
        config.validate()
