"""Every name of `Ops` in every backend: values and dtypes as NumPy's, gradients as its central differences."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS, RUNNERS, Case, needs_tf, needs_torch, numpy_gradients

from polylib.policy import numpy_ops
from polylib.policy.ops import NAMES

MODULES = {
    "polylib.policy.numpy_ops": ("numpy", []),
    "polylib.policy.tf.ops": ("tf", [needs_tf]),
    "polylib.policy.torch.ops": ("torch", [needs_torch]),
}


RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (0.1 + np.abs(RNG.standard_normal(shape))).astype(np.float32)


def ints(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


F32 = np.float32
INF = np.inf
SHAPES = [(), (3,), (2, 3), (2, 3, 4)]


def unary(name: str, make: Callable[..., np.ndarray] = normal) -> list[Case]:
    """An elementwise function, in all shapes, in float32 and float64."""

    def f(ops: Any, x: Any) -> Any:
        return getattr(ops, name)(x)

    return [Case(f, (make(*s),), (0,)) for s in SHAPES] + [Case(f, (make(3).astype(np.float64),), (0,))]


def binary(name: str) -> list[Case]:
    """Elementwise of two arrays that broadcast, or of an array and a number."""
    cases = [Case(lambda ops, x, y: getattr(ops, name)(x, y), (normal(*s), normal(*s)), (0, 1)) for s in SHAPES]
    cases.append(Case(lambda ops, x, y: getattr(ops, name)(x, y), (normal(2, 3), normal(3)), (0, 1)))
    cases.append(Case(lambda ops, x, y: getattr(ops, name)(x, y), (normal(4), normal()), (0, 1)))
    cases.append(Case(lambda ops, x: getattr(ops, name)(x, 0.25), (normal(2, 3),), (0,)))
    cases.append(Case(lambda ops, x, y: getattr(ops, name)(x, y), (ints(9, 4), ints(9, 4))))
    return cases


def reduction(name: str) -> list[Case]:
    cases = [Case(lambda ops, x: getattr(ops, name)(x), (normal(*s),), (0,)) for s in SHAPES]
    for axis in (0, 1, -1):
        cases.append(Case(lambda ops, x, axis=axis: getattr(ops, name)(x, axis), (normal(2, 3, 4),), (0,)))
        cases.append(Case(lambda ops, x, axis=axis: getattr(ops, name)(x, axis=axis), (normal(2, 3),), (0,)))
    return cases


def discounted(ops: Any, *xs: Any) -> Any:
    """The use it is made for: acc = x + coef * acc."""
    return ops.reverse_scan(lambda acc, x, c: x + c * acc, xs[-1], xs[:-1])


CASES: dict[str, list[Case]] = {
    "abs": [*unary("abs"), Case(lambda ops, x: ops.abs(x), (np.array([-3, 0, 2]),))],
    "exp": [*unary("exp"), Case(lambda ops, x: ops.exp(x), (F32([-200, -INF, 0]),))],
    "log": unary("log", positive),
    "sqrt": unary("sqrt", positive),
    "square": [*unary("square"), Case(lambda ops, x: ops.square(x), (ints(9, 4),))],
    "tanh": [*unary("tanh"), Case(lambda ops, x: ops.tanh(x), (F32([-50, 50]),), (0,))],
    # Large arguments: neither overflow nor a lost tail.
    "sigmoid": [*unary("sigmoid"), Case(lambda ops, x: ops.sigmoid(x), (F32([-80, -20, 0, 20, 80]),), (0,))],
    "relu": unary("relu"),
    "huber": [
        *(Case(lambda ops, x: ops.huber(x, 1.0), (normal(*s),), (0,)) for s in SHAPES),
        Case(lambda ops, x: ops.huber(x, 1.0), (normal(3).astype(np.float64),), (0,)),
        Case(lambda ops, x: ops.huber(x, 0.5), (normal(2, 3),), (0,)),
        # On the threshold both formulas have the same value and slope.
        Case(lambda ops, x: ops.huber(x, 2.0), (F32([-9, -2, -1, 0, 1, 2, 9]),), (0,)),
        Case(lambda ops, x: ops.huber(x, 1.0), (F32([-INF, INF, 1e20]),)),
    ],
    "matmul": [
        Case(lambda ops, x, y: ops.matmul(x, y), (normal(2, 3), normal(3, 4)), (0, 1)),
        Case(lambda ops, x, y: ops.matmul(x, y), (normal(5, 2, 3), normal(5, 3, 4)), (0, 1)),
        Case(lambda ops, x, y: ops.matmul(x, y), (normal(2, 3).astype(np.float64), normal(3, 4).astype(np.float64))),
    ],
    "transpose": [
        Case(lambda ops, x: ops.transpose(x, (1, 0)), (normal(2, 3),), (0,)),
        Case(lambda ops, x: ops.transpose(x, (2, 0, 1)), (normal(2, 3, 4),), (0,)),
    ],
    "softplus": [*unary("softplus"), Case(lambda ops, x: ops.softplus(x), (F32([-80, -20, 0, 20, 80, 500]),), (0,))],
    "lgamma": [*unary("lgamma", positive), Case(lambda ops, x: ops.lgamma(x), (F32([1e-3, 1, 2, 50, 2000]),), (0,))],
    "digamma": [*unary("digamma", positive), Case(lambda ops, x: ops.digamma(x), (F32([0.1, 1, 2, 50, 2000]),), (0,))],
    "minimum": binary("minimum"),
    "maximum": binary("maximum"),
    "clip": [
        Case(lambda ops, x: ops.clip(x, -0.5, 0.5), (normal(2, 3, 4),), (0,)),
        Case(lambda ops, x: ops.clip(x, 1, 3), (ints(9, 6),)),
        Case(lambda ops, x, a, b: ops.clip(x, a, b), (normal(5), F32(-0.4), F32(0.6)), (0,)),
        Case(lambda ops, x, a, b: ops.clip(x, a, b), (normal(6), -positive(6), positive(6)), (0,)),
        # On the bound itself the gradient passes, in all backends.
        Case(lambda ops, x: ops.clip(x, -1.0, 1.0), (F32([-INF, 1, INF]),)),
    ],
    "where": [
        Case(lambda ops, x, y: ops.where(x > 0, x, y), (normal(2, 3), normal(2, 3)), (0, 1)),
        Case(lambda ops, x, y: ops.where(x > y, x, y), (normal(2, 3), normal(3)), (0, 1)),
        Case(lambda ops, x: ops.where(x > 0, x, -7.0), (normal(5),), (0,)),
        Case(lambda ops, x: ops.where(x > 0, 1.0, x), (normal(5),), (0,)),
        Case(lambda ops, m, x: ops.where(m, x, ops.zeros_like(x)), (ints(2, 6).astype(bool), normal(6)), (1,)),
    ],
    "sum": [*reduction("sum"), Case(lambda ops, x: ops.sum(x, -1), (ints(9, 3, 2),))],
    "mean": reduction("mean"),
    "max": [*reduction("max"), Case(lambda ops, x: ops.max(x, 0), (ints(9, 3, 2),))],
    "min": [*reduction("min"), Case(lambda ops, x: ops.min(x, 0), (ints(9, 3, 2),))],
    "argmax": [
        Case(lambda ops, x: ops.argmax(x), (normal(7),)),
        Case(lambda ops, x: ops.argmax(x), (normal(4, 3, 5),)),
        # The first of equals; -inf is smaller than everything.
        Case(lambda ops, x: ops.argmax(x), (F32([[1, 2, 2], [0, 0, 0], [-INF, -INF, 3]]),)),
    ],
    "logsumexp": [
        Case(lambda ops, x: ops.logsumexp(x), (normal(7),), (0,)),
        Case(lambda ops, x: ops.logsumexp(x), (normal(2, 3),), (0,)),
        Case(lambda ops, x: ops.logsumexp(x, axis=0), (normal(2, 3),), (0,)),
        Case(lambda ops, x: ops.logsumexp(x, 1), (normal(2, 3, 4),), (0,)),
        Case(lambda ops, x: ops.logsumexp(x), (F32([[1000, 1001], [-1000, -1001], [-INF, 2], [-INF, -INF]]),)),
    ],
    "log_softmax": [
        Case(lambda ops, x: ops.log_softmax(x), (normal(7),), (0,)),
        Case(lambda ops, x: ops.log_softmax(x), (normal(2, 3, 4),), (0,)),
        Case(lambda ops, x: ops.log_softmax(x), (F32([[1000, 1001], [-1000, -1001], [-INF, 2], [-1e9, 0]]),)),
    ],
    "one_hot": [
        Case(lambda ops, i: ops.one_hot(i, 4), (ints(4, 6),)),
        Case(lambda ops, i: ops.one_hot(i, 3), (ints(3, 2, 5),)),
        Case(lambda ops, i: ops.one_hot(i, 3), (ints(3),)),
        # Out of range: zeros everywhere.
        Case(lambda ops, i: ops.one_hot(i, 3), (np.array([-1, 3, 1]),)),
    ],
    "pick": [
        Case(lambda ops, x, i: ops.pick(x, i), (normal(6, 4), ints(4, 6)), (0,)),
        Case(lambda ops, x, i: ops.pick(x, i), (normal(2, 3, 4), ints(4, 2, 3)), (0,)),
        # What isn't picked doesn't matter, even if it is infinite or NaN.
        Case(lambda ops, x, i: ops.pick(x, i), (F32([[1, -INF], [INF, 2], [3, np.nan]]), np.array([0, 1, 0]))),
    ],
    "to_float": [Case(lambda ops, x: ops.to_float(x), (x,)) for x in (ints(9, 3), normal(2), np.array([True, False]))]
    + [Case(lambda ops, x: ops.to_float(x), (np.arange(250, 256, dtype=np.uint8),))],
    "to_int": [Case(lambda ops, x: ops.to_int(x), (x,)) for x in (F32([1.7, -1.7, 3]), ints(9, 3), np.array([True]))],
    "constant": [
        Case(lambda ops, x: x * ops.constant(F32([1, 2, 3])), (normal(2, 3),), (0,)),
        Case(lambda ops, x: x + ops.constant(np.array([1, 2])), (ints(9, 2),)),
    ],
    "reshape": [
        Case(lambda ops, x: ops.reshape(x, (3, 2)), (normal(2, 3),), (0,)),
        Case(lambda ops, x: ops.reshape(x, (-1, 6)), (normal(2, 2, 3),), (0,)),
        Case(lambda ops, x: ops.reshape(x, (-1,)), (ints(9, 2, 3),)),
        Case(lambda ops, x: ops.reshape(x, ()), (normal(1),), (0,)),
    ],
    "stack": [
        Case(lambda ops, x, y: ops.stack([x, y]), (normal(2, 3), normal(2, 3)), (0, 1)),
        Case(lambda ops, x, y: ops.stack((x, y), -1), (normal(2, 3), normal(2, 3)), (0, 1)),
        Case(lambda ops, x, y: ops.stack([x, y], axis=1), (ints(9, 2), ints(9, 2))),
    ],
    "concat": [
        Case(lambda ops, x, y: ops.concat([x, y]), (normal(2, 3), normal(1, 3)), (0, 1)),
        Case(lambda ops, x, y: ops.concat((x, y), -1), (normal(2, 3), normal(2, 1)), (0, 1)),
        Case(lambda ops, x, y: ops.concat([x, y], axis=0), (ints(9, 2), ints(9, 3))),
    ],
    "zeros_like": [Case(lambda ops, x: ops.zeros_like(x), (x,)) for x in (normal(2, 3), ints(9, 2), normal())],
    "stop_gradient": [
        Case(lambda ops, x: ops.stop_gradient(x), (normal(2, 3),)),
        # The oracle has no gradients: what is differentiated here is 3 x, with the stopped factor at its value.
        Case(lambda ops, x: x * ops.stop_gradient(ops.zeros_like(x) + 3.0), (normal(4),), (0,)),
    ],
    "no_gradient": [
        Case(lambda ops, x: ops.no_gradient(lambda: 2.0 * x), (normal(2, 3),)),
        Case(lambda ops, x: x * ops.no_gradient(lambda: (ops.zeros_like(x) + 3.0, x))[0], (normal(4),), (0,)),
        Case(lambda ops, x: x * ops.no_gradient(lambda: {"a": ops.zeros_like(x) + 3.0})["a"], (normal(4),), (0,)),
    ],
    "reverse_scan": [
        Case(discounted, (normal(5), positive(5), F32(0)), (0, 1, 2)),
        Case(discounted, (normal(5, 2), positive(5, 2), normal(2)), (0, 1, 2)),
        Case(discounted, (normal(1, 2), positive(1, 2), normal(2)), (0, 1, 2)),
        Case(lambda ops, x, y: ops.reverse_scan(lambda acc, x: ops.maximum(acc, x), y, [x]), (normal(6), F32(0)), (0,)),
    ],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:divide by zero")
def test_values_and_gradients_are_those_of_numpy(backend, name):
    for i, case in enumerate(CASES[name]):
        expected = np.asarray(case.f(numpy_ops, *case.arrays))
        value, gradients = RUNNERS[backend](case)
        where = f"{name}, case {i}, in {backend}"
        assert value.shape == expected.shape, where
        assert value.dtype == expected.dtype, where
        np.testing.assert_allclose(value, expected, rtol=3e-6, atol=1e-6, err_msg=where)
        for argument, (gradient, wanted) in enumerate(zip(gradients, numpy_gradients(case), strict=True)):
            message = f"gradient of argument {argument} of {where}"
            assert gradient.dtype == case.arrays[case.smooth[argument]].dtype, message
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5, err_msg=message)


def test_every_name_has_cases():
    assert set(CASES) == set(NAMES)


@pytest.mark.parametrize(
    ("module", "framework"), [pytest.param(name, fw, marks=marks) for name, (fw, marks) in MODULES.items()]
)
def test_a_module_has_these_names_and_no_others(module, framework):
    """A private extra of one backend would work there and fail in the other modes."""
    helpers = {"annotations", "Any", "Callable", "Sequence"}
    members = vars(importlib.import_module(module)).items()
    found = {k for k, v in members if not k.startswith("_") and not isinstance(v, types.ModuleType)}
    assert found - helpers - {"framework"} == set(NAMES)
    assert importlib.import_module(module).framework == framework


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_gradient_stops(backend):
    """d/dx of x * stop(x) is x, not 2 x."""
    x = F32([1.5, -2.0])
    for stopped in (lambda ops, x: ops.stop_gradient(x), lambda ops, x: ops.no_gradient(lambda: 1.0 * x)):
        case = Case(lambda ops, x, stopped=stopped: x * stopped(ops, x), (x,), (0,))
        _, (gradient,) = RUNNERS[backend](case)
        np.testing.assert_allclose(gradient, x * np.cos([1, 2]), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_at_bounds_agree(backend):
    """At a number that bounds them, x keeps its gradient in every backend: losses sit on their bounds often."""
    cases = [
        Case(lambda ops, x: ops.clip(x, -1.0, 1.0), (F32([-1, 1, 2]),), (0,)),
        Case(lambda ops, x: ops.minimum(x, 1.0), (F32([0, 1, 2]),), (0,)),
        Case(lambda ops, x: -ops.maximum(-x, -1.0), (F32([0, 1, 2]),), (0,)),
    ]
    for case in cases:
        _, (gradient,) = RUNNERS[backend](case)
        np.testing.assert_allclose(gradient, np.cos([1, 2, 3]) * [1, 1, 0], rtol=1e-5)


def test_the_oracle_keeps_float64():
    """Central differences need it: float32 would leave three digits of a gradient."""
    x = np.linspace(0.1, 1.0, 6).reshape(2, 3)
    for name in NAMES:
        if name not in ("argmax", "one_hot", "to_int", "reverse_scan", "pick", "constant", "no_gradient"):
            args = {"minimum": (x, 0.5), "maximum": (x, 0.5), "clip": (x, 0.2, 0.8), "where": (x > 0.5, x, 0.0)}
            args |= {"matmul": (x, x.T), "transpose": (x, (1, 0)), "huber": (x, 0.5)}
            call = {**args, "reshape": (x, (3, 2)), "stack": ([x, x],), "concat": ([x, x],)}.get(name, (x,))
            assert np.asarray(getattr(numpy_ops, name)(*call)).dtype == np.float64, name
