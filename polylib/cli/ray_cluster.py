"""Ray for one run: started here, joined, or there already; with room for the run, or an error that says what lacks."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.tune import PlacementGroupFactory

from polylib.algorithms.registry import get_algorithm_class
from polylib.cli.experiment import Experiment, variants
from polylib.cli.flags import UsageError
from polylib.cli.process import ray_log_level
from polylib.cli.run_options import RunOptions
from polylib.errors import WorkerError

# Seconds that a Ray started here has to place what it was sized for.
_OWN_PLACEMENT_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0


@contextmanager
def connected(experiment: Experiment, options: RunOptions) -> Iterator[None]:
    """Ray is there inside the block; one that was started or joined for it is left afterwards.

    Raises:
        WorkerError: if there is no room for the run.
    """
    needed = needed_resources(experiment)
    if ray.is_initialized():
        require_room(needed, float(experiment.config["placement_timeout_s"]))
        yield
        return
    kwargs: dict[str, Any] = {
        "logging_level": ray_log_level(options.verbosity),
        "log_to_driver": options.verbosity > 0,
    }
    if options.python_path:
        path = os.pathsep.join(filter(None, [*options.python_path, os.environ.get("PYTHONPATH")]))
        kwargs["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    try:
        if options.address:
            _join(options.address, kwargs)
            require_room(needed, float(experiment.config["placement_timeout_s"]))
        else:
            _start(needed, options, kwargs)
            require_room(needed, _OWN_PLACEMENT_TIMEOUT_S, growing=False)
        yield
    finally:
        ray.shutdown()


def needed_resources(experiment: Experiment) -> PlacementGroupFactory | None:
    """What the largest trial reserves; None if that is known only when Tune has drawn its settings."""
    algorithm = get_algorithm_class(experiment.config.algo_name)
    requests = []
    for variant in variants(experiment.config):
        try:
            requests.append(algorithm.default_resource_request(variant.to_dict()))
        except (TypeError, ValueError):
            return None
    requests = [request for request in requests if isinstance(request, PlacementGroupFactory)]
    return max(requests, key=lambda request: sum(request.required_resources.values()), default=None)


def require_room(needed: PlacementGroupFactory | None, timeout_s: float, growing: bool = True) -> None:
    """Waits until the cluster has room for a trial.

    Args:
        needed: what the trial reserves.
        timeout_s: how long to wait.
        growing: whether a cluster that is too small may get new nodes meanwhile.

    Raises:
        WorkerError: naming what is missing.
    """
    if needed is None:
        return
    if not growing and any(ray.cluster_resources().get(key, 0) < n for key, n in needed.required_resources.items()):
        raise WorkerError(_missing(needed, None))
    group = ray.util.placement_group(needed.bundles, strategy=needed.strategy)
    try:
        if not group.wait(timeout_s):
            raise WorkerError(_missing(needed, timeout_s))
    finally:
        ray.util.remove_placement_group(group)


def _missing(needed: PlacementGroupFactory, waited_s: float | None) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    lacks = [
        f"{amount:g} {key} and the cluster has {total.get(key, 0):g} ({free.get(key, 0):g} free)"
        for key, amount in needed.required_resources.items()
        if free.get(key, 0) < amount
    ]
    what = ", ".join(lacks) or f"{needed.bundles} on nodes that have no room for it"
    waited = "" if waited_s is None else f" after {waited_s:g} s (config key 'placement_timeout_s')"
    return f"no room for the run{waited}: it needs {what}; lower num_workers, or add to the cluster"


def _start(needed: PlacementGroupFactory | None, options: RunOptions, kwargs: dict[str, Any]) -> None:
    cores = _cores()
    required = dict(needed.required_resources) if needed is not None else {}
    cpus = -(-required.get("CPU", 1) // 1)
    if options.num_cpus is not None and options.num_cpus < cpus:
        raise UsageError(
            f"--ray-num-cpus {options.num_cpus}: the run needs {cpus:g} CPUs; leave the flag out, or lower num_workers"
        )
    if options.num_cpus is None and cpus > cores:
        print(
            f"polylib train: warning: the run needs {cpus:g} CPUs and this machine has {cores}: they are shared",
            file=sys.stderr,
            flush=True,
        )
    logging.getLogger("ray").setLevel(ray_log_level(options.verbosity))
    ray.init(
        address="local",
        num_cpus=options.num_cpus or int(max(cores, cpus)),
        num_gpus=options.num_gpus,
        include_dashboard=False,
        **kwargs,
    )


def _join(address: str, kwargs: dict[str, Any]) -> None:
    _require_listener(address)
    try:
        ray.init(address=address, **kwargs)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"--ray-address {address}: can't join this cluster: {error}") from error


def _require_listener(address: str) -> None:
    """Raises a UsageError if nothing listens at `host:port`: Ray would try again for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--ray-address {address}: no Ray cluster answers there: {error}") from None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
