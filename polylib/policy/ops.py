"""The array namespace that losses are written over: NumPy's names, one module per backend.

`numpy_ops` is the oracle of the parity tests; `tf/ops.py` and `torch/ops.py` have the same names and meanings. Inside
an objective use only these functions, arithmetic, comparison and indexing, so that one body runs in a TF1 graph,
eagerly, traced, in torch and in NumPy. The list is kept short on purpose: a new name has to earn its place in four
files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Array = Any  # np.ndarray, tf.Tensor or torch.Tensor


class Ops(Protocol):
    """What every backend's `ops` module offers. Shapes: `x: [...]`, axis None means all axes.

    Attributes:
        framework: "numpy", "tf" or "torch", for the rare thing that is the user's own code in one of them.
    """

    framework: str

    def abs(self, x: Array) -> Array:
        """Absolute value."""

    def exp(self, x: Array) -> Array:
        """Exponential."""

    def log(self, x: Array) -> Array:
        """Natural logarithm."""

    def sqrt(self, x: Array) -> Array:
        """Square root."""

    def square(self, x: Array) -> Array:
        """x * x."""

    def tanh(self, x: Array) -> Array:
        """Hyperbolic tangent."""

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x))."""

    def relu(self, x: Array) -> Array:
        """max(x, 0)."""

    def huber(self, x: Array, threshold: float) -> Array:
        """`x^2 / 2` where `|x|` is at most the threshold, `threshold * (|x| - threshold / 2)` beyond."""

    def matmul(self, x: Array, y: Array) -> Array:
        """Product of the last two axes; those before are a batch, broadcast."""

    def transpose(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The axes in another order."""

    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""

    def lgamma(self, x: Array) -> Array:
        """log(Gamma(x)) for x > 0."""

    def digamma(self, x: Array) -> Array:
        """The derivative of `lgamma`."""

    def minimum(self, x: Array, y: Array) -> Array:
        """Elementwise; y may be a number."""

    def maximum(self, x: Array, y: Array) -> Array:
        """Elementwise; y may be a number."""

    def clip(self, x: Array, low: Array, high: Array) -> Array:
        """x limited to [low, high]: numbers, scalars or arrays of x's shape."""

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """x where condition (bool) holds, else y; x and y may be numbers, not both."""

    def sum(self, x: Array, axis: int | None = None) -> Array:
        """Sum."""

    def mean(self, x: Array, axis: int | None = None) -> Array:
        """Mean."""

    def max(self, x: Array, axis: int | None = None) -> Array:
        """Maximum."""

    def min(self, x: Array, axis: int | None = None) -> Array:
        """Minimum."""

    def argmax(self, x: Array) -> Array:
        """Index of the first maximum on the last axis, int64."""

    def logsumexp(self, x: Array, axis: int = -1) -> Array:
        """log(sum(exp(x))) along an axis."""

    def log_softmax(self, x: Array) -> Array:
        """Log-probabilities from logits on the last axis."""

    def one_hot(self, index: Array, size: int) -> Array:
        """`index: [...] int` to `[..., size] float32`."""

    def pick(self, x: Array, index: Array) -> Array:
        """`x: [..., N]`, `index: [...] int` to `[...]`: one entry of the last axis."""

    def to_float(self, x: Array) -> Array:
        """float32 (NumPy keeps float64, so that the oracle can run in it)."""

    def to_int(self, x: Array) -> Array:
        """int64."""

    def constant(self, x: Array) -> Array:
        """A NumPy array as this backend's tensor."""

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Same values, another shape; one size may be -1."""

    def stack(self, xs: Sequence[Array], axis: int = 0) -> Array:
        """Arrays of equal shape on a new axis."""

    def concat(self, xs: Sequence[Array], axis: int = 0) -> Array:
        """Arrays one after another on an axis."""

    def zeros_like(self, x: Array) -> Array:
        """Zeros of x's shape and dtype."""

    def stop_gradient(self, x: Array) -> Array:
        """x as a constant for differentiation."""

    def no_gradient(self, compute: Callable[[], Any]) -> Any:
        """`compute()`, an array or a tuple of arrays, as constants for differentiation: computed without a trace."""

    def reverse_scan(self, step: Callable[..., Array], init: Array, xs: Sequence[Array]) -> Array:
        """`acc = step(acc, *[x[t] for x in xs])` for t = T-1 ... 0; returns every acc, `[T, ...]` in time order."""


NAMES = tuple(name for name in vars(Ops) if not name.startswith("_"))
