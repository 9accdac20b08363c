"""What torch's backend does by its own means for speed: the same numbers as the plain way, and a plain way back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from backends import needs_torch
from policies import make, random_batch

from polylib.policy import numpy_ops
from polylib.policy.gradients import BETA_1, BETA_2, EPSILON, clip_by_global_norm

torch = pytest.importorskip("torch")
fused = pytest.importorskip("polylib.policy.torch.fused")
pytestmark = needs_torch


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.standard_normal(s).astype(np.float32) / 4, requires_grad=True) for s in shapes]


def learnt(steps: int = 5) -> dict[str, np.ndarray]:
    policy = make(("torch", False), hiddens=(16, 16), grad_clip=0.5)
    batch = random_batch(policy.spec, 32, seed=1)
    for _ in range(steps):
        policy.learn_on_minibatches(batch, np.arange(32).reshape(2, 16))
    state = policy.get_state()
    return state["weights"] | state["optimizer"] | {"values": policy.compute_values(batch["obs"])}


def close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """These are small, and the kernel is for large products."""
    monkeypatch.setattr(fused, "_LARGE", 0)
    monkeypatch.setattr(fused, "_MANY", 0)


@pytest.fixture
def anew():
    """The kernel is looked for again, now and afterwards."""
    fused._kernel.cache_clear()
    yield
    fused._kernel.cache_clear()


# --- dense layers

ACTIVATIONS = ("none", "tanh", "relu")
each = pytest.mark.parametrize("activation", ACTIVATIONS)


@pytest.mark.parametrize(("rows", "fan_in", "units"), [(1, 1, 1), (7, 3, 5), (128, 4, 256), (128, 256, 256)])
@each
def test_the_fused_layer_is_the_plain_one(rows, fan_in, units, activation):
    args, weights = tensors((rows, fan_in), (units, fan_in), (units,)), tensors((rows, units), seed=1)[0].detach()
    args[1].data /= math.sqrt(fan_in)
    results = []
    for f in (fused.linear, fused.plain):
        y = f(*args, activation)
        results.append([y.detach(), *torch.autograd.grad((y * weights / rows).sum(), args)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@each
def test_large_and_bad_numbers_come_out_as_from_torch(activation):
    x = torch.tensor([[math.nan], [math.inf], [-math.inf], [1e30], [-1e30], [1e-20], [9.5]])
    args = x, torch.ones(1, 1), torch.zeros(1)
    np.testing.assert_allclose(fused.linear(*args, activation), fused.plain(*args, activation), atol=1e-6)


@each
def test_rows_of_any_layout_and_none_at_all(activation):
    weight, bias = torch.randn(4, 3), torch.randn(4)
    whole = torch.randn(8, 7)
    for x in (whole.t()[:, :3], whole[1:5, 2:5], whole[:1, :3].expand(5, 3), whole[:, :1].expand(8, 3), whole[:0, :3]):
        args = x, weight, bias, activation
        np.testing.assert_allclose(fused.linear(*args), fused.plain(*args), atol=1e-6)


@each
def test_gradients_where_autograd_asks_more(activation):
    """Of a graph used twice, of an input without one, of equal gradients (no memory of their own), of gradients."""
    x, weight, bias = tensors((6, 3), (4, 3), (4,))
    seconds = []
    for f in (fused.linear, fused.plain):
        y = f(x, weight, bias, activation)
        first = torch.autograd.grad(y.sum(), (weight, bias), retain_graph=True)
        again = torch.autograd.grad(y.sum(), (weight, bias))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert f(x.detach(), weight, bias, activation).requires_grad
        # A linear layer's slope depends on the weights alone.
        (slope,) = torch.autograd.grad(f(x, weight, bias, activation).square().sum(), x, create_graph=True)
        seconds.append([*first, *torch.autograd.grad(slope.square().sum(), (x, weight, bias), allow_unused=True)])
    for found, expected in zip(*seconds, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_inference_mode():
    args = tensors((6, 3), (4, 3), (4,))
    with torch.inference_mode():
        y = fused.linear(*args)
    assert y.is_inference()
    np.testing.assert_allclose(y, fused.plain(*args).detach(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_the_kernel_is_not_for(dtype, monkeypatch):
    """Other dtypes and other than two dimensions."""

    def refuse() -> None:
        raise AssertionError("not for this")

    monkeypatch.setattr(fused, "_kernel", refuse)
    x = torch.randn(2, 5, 3, dtype=dtype) if dtype == torch.float32 else torch.randn(5, 3, dtype=dtype)
    y = fused.linear(x, torch.randn(4, 3, dtype=dtype), torch.randn(4, dtype=dtype))
    assert y.dtype == dtype and y.shape == (*x.shape[:-1], 4)


class Broken:
    """A namespace of operators whose kernel isn't what it was."""

    class _linear_pointwise:  # noqa: N801
        @staticmethod
        def default(x: Any, weight: Any, bias: Any, activation: str, *args: Any) -> Any:
            raise RuntimeError("Unknown builtin op")


class Wrong(Broken):
    class _linear_pointwise:  # noqa: N801
        @staticmethod
        def default(x: Any, weight: Any, bias: Any, activation: str, *args: Any) -> Any:
            return torch.zeros(len(x), len(weight))


@pytest.mark.parametrize("found", [object(), Broken, Wrong], ids=["missing", "failing", "wrong"])
def test_without_the_kernel_learning_is_the_same(found, anew, monkeypatch):
    with_it = learnt()
    fused._kernel.cache_clear()
    # `torch.ops` keeps namespaces it was asked for as attributes.
    monkeypatch.setattr(torch.ops, "mkldnn", found)
    assert fused._kernel() is None
    close(with_it, learnt())


@pytest.mark.parametrize(
    ("shape", "activation"), [((32, 4, 64), "tanh"), ((32, 64, 64), "relu"), ((64, 64, 2), "none")]
)
def test_small_products_are_torchs_own(shape, activation, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(fused, "_kernel", lambda: pytest.fail("not for this"))
    rows, fan_in, units = shape
    args = tensors((rows, fan_in), (units, fan_in), (units,))
    expected = fused.plain(*args, activation)
    np.testing.assert_allclose(fused.linear(*args, activation).detach(), expected.detach(), atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(fused.dense(*args, activation), expected.detach(), atol=1e-6)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(2, 3, 4), (256, 64, 3), (64, 256, 8), (64, 256, 9)])
def test_products_of_any_shape(rows, inner, columns, kernel, monkeypatch):
    """Into new memory and into given, from rows, columns and parts of them."""
    monkeypatch.setattr(fused, "_LARGE", 0 if kernel else 1 << 60)
    wide, right = torch.randn(rows, 2 * inner), torch.randn(columns, inner)
    with torch.no_grad():
        for left in (wide[:, :inner], wide[:, inner:].t().contiguous().t(), wide[:, ::2]):
            expected = (left.double() @ right.double().t()).float()
            out = torch.full((rows, columns), torch.nan)
            assert fused.product(left, right, out) is out
            for found in (out, fused.product(left, right)):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_the_kernel_is_tried_once_and_not_when_importing(anew):
    assert fused._kernel.cache_info().misses == 0
    learnt(1)
    learnt(1)
    assert fused._kernel.cache_info().misses == 1


# --- Adam


def test_adam_without_torchs_kernel_is_the_same(monkeypatch):
    with_it = learnt()
    monkeypatch.delattr(torch, "_fused_adam_")
    close(with_it, learnt())


@pytest.mark.parametrize("kernel", [True, False])
def test_adam_by_hand(kernel, monkeypatch):
    """Some updates against the formulas in float64; gradients in any layout."""
    from polylib.policy.torch.adam import Adam

    if not kernel:
        monkeypatch.delattr(torch, "_fused_adam_")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4))
    variable = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    adam = Adam({"w": variable})
    m = v = np.zeros((3, 4))
    for t in range(1, 6):
        g = rng.standard_normal((4, 3)).astype(np.float32)
        lr = 0.01 * t
        adam.step([torch.from_numpy(g).t()], lr)
        m, v = BETA_1 * m + (1 - BETA_1) * g.T, BETA_2 * v + (1 - BETA_2) * np.square(g.T.astype(np.float64))
        x = x - lr * math.sqrt(1 - BETA_2**t) / (1 - BETA_1**t) * m / (np.sqrt(v) + EPSILON)
    assert adam.steps == 5
    np.testing.assert_allclose(variable.detach(), x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adam.m["w"], m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adam.v["w"], v, rtol=1e-5, atol=1e-6)


# --- clipping


@pytest.mark.parametrize("limit", [math.inf, 100.0, 0.5, 1e-6])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-30, 1e25, math.nan])
def test_clipping_is_the_oracles(limit, scale):
    from polylib.policy.torch.policy import _clip_by_global_norm

    arrays = [scale * x.detach().numpy() for x in tensors((4, 3), (5,), ())]
    with np.errstate(over="ignore"):
        expected, norm = clip_by_global_norm(numpy_ops, arrays, limit)
    found, found_norm = _clip_by_global_norm(tuple(torch.from_numpy(np.asarray(x)) for x in arrays), limit)
    np.testing.assert_allclose(found_norm, norm, rtol=1e-6)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
