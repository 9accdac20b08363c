"""The fastest way to call a TF1 session. Uses a private TensorFlow API, with `session.run` where that is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2


def make_callable(session: Any, feeds: Sequence[Any], fetches: Sequence[Any], inline: bool) -> Callable[..., list[Any]]:
    """A function of one array per feed that returns one array per fetch.

    Args:
        session: a `tf.compat.v1.Session`.
        feeds: placeholders; arrays must have exactly their dtypes.
        fetches: tensors.
        inline: run the operations on the calling thread: 50 us instead of 440 us for a small network, but no
            parallelism between operations.
    """
    private = getattr(session, "_make_callable_from_options", None)
    if private is None:
        return session_callable(session, feeds, fetches)
    options = config_pb2.CallableOptions()
    options.feed.extend(feed.name for feed in feeds)
    options.fetch.extend(fetch.name for fetch in fetches)
    if inline:
        options.run_options.inter_op_thread_pool = -1
    return private(options)


def concrete_callable(concrete: Any, inline: bool) -> Callable[[list[Any]], Any] | None:
    """A function of a traced function's tensors, in order, without looking for the trace that fits them.

    Args:
        concrete: what `get_concrete_function` returned.
        inline: as in `make_callable`, where the trace allows it.

    Returns:
        The function, or None where TensorFlow hasn't got what it needs.
    """
    private, captured = getattr(concrete, "_call_flat", None), getattr(concrete, "captured_inputs", None)
    if private is None or captured is None:
        return None
    captured = list(captured)
    context, options = _inline_options()
    if options is None or not inline or not _is_flat(concrete.graph):
        return lambda tensors: private(tensors, captured)

    def call(tensors: list[Any]) -> Any:
        before, context.function_call_options = context.function_call_options, options
        try:
            return private(tensors, captured)
        finally:
            context.function_call_options = before

    return call


def _is_flat(graph: Any) -> bool:
    """Whether no operation waits for others: conditions, loops, calls and Python hang on a single thread."""
    return not any(
        op.type.endswith("PyFunc") or any(x.HasField("func") or x.list.func for x in op.node_def.attr.values())
        for op in graph.get_operations()
    )


@functools.cache
def _inline_options() -> tuple[Any, Any]:
    """TensorFlow's eager context, and options that let functions run on the calling thread; None where it has none."""
    try:
        from tensorflow.python.eager import context

        options = context.FunctionCallOptions(executor_type="SINGLE_THREADED_EXECUTOR")
        found: Any = context.context()
        usual = found.function_call_options.config_proto_serialized
        options.config_proto_serialized = config_pb2.ConfigProto.FromString(usual)
    except (ImportError, AttributeError, TypeError, ValueError):
        return None, None
    return found, options


@functools.cache
def to_tensor() -> Callable[[np.ndarray], Any]:
    """How arrays become tensors: by the tensors' class, which takes half as long as `tf.convert_to_tensor`.

    It may use the array's memory: for tensors that nobody keeps.
    """
    example = np.linspace(0.0, 1.0, 3, dtype=np.float32)
    try:
        usual = tf.convert_to_tensor(example)
        make = functools.partial(_make, type(usual), usual.device)
        same = np.array_equal(make(example).numpy(), example) and make(example).device == usual.device
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return tf.convert_to_tensor
    return make if same else tf.convert_to_tensor


def _make(cls: Any, device: str, array: np.ndarray) -> Any:
    return cls(array, device, None)


def session_callable(session: Any, feeds: Sequence[Any], fetches: Sequence[Any]) -> Callable[..., list[Any]]:
    """The same with the public API, about eight times slower for small networks."""
    fetches = list(fetches)

    def call(*arrays: Any) -> list[Any]:
        return session.run(fetches, dict(zip(feeds, arrays, strict=True)))

    return call


def new_session(graph: Any, options: dict[str, Any]) -> Any:
    """A session of its own for `graph`; `options` are ConfigProto fields."""
    return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(**options))
