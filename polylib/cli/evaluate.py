"""`polylib evaluate`: episodes with the policy of a checkpoint, without Ray."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from polylib.algorithms.algorithm_config import FRAMEWORK_PACKAGES, AlgorithmConfig
from polylib.algorithms.load import load_policy
from polylib.cli.command import DONE, FAILED, run_command
from polylib.cli.evaluate_flags import EVALUATE_FLAGS, help_text
from polylib.cli.experiment import short_path
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.process import import_quietly, prepared
from polylib.cli.progress import number
from polylib.cli.stored import Stored, read_stored
from polylib.cli.values import read_mapping
from polylib.env.vector_env import make_vector_env
from polylib.errors import FrameworkError, PolylibError
from polylib.evaluation.evaluator import EpisodeRunner
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.policy.policy import Policy
from polylib.registry import env_creator, env_name

_DEFAULT_EPISODES = 10
# The settings that say how episodes run; the others are the policy's own, or belong to training.
_USED = frozenset(
    (
        *("env", "env_config", "explore", "seed", "num_envs_per_worker", "disable_env_checking"),
        *("is_atari", "preprocessor_pref", "framework", "eager_tracing"),
    )
)


def evaluate(argv: Sequence[str]) -> int:
    """Runs `polylib evaluate`.

    Args:
        argv: the arguments after `evaluate`.

    Returns:
        The exit status: 0 done, 1 the environment failed, 2 the command line or the checkpoint was wrong, 130
        interrupted.
    """
    return run_command("evaluate", argv, EVALUATE_FLAGS, help_text, _evaluate)


def _evaluate(line: CommandLine) -> int:
    if len(line.words) != 1:
        got = f"got {' '.join(line.words)!r}" if line.words else "none was given"
        raise UsageError(f"which checkpoint? {got}, expected one folder: polylib evaluate CHECKPOINT --algo PPO")
    with prepared(line.verbosity):
        try:
            stored = read_stored(line.words[0])
            config = _config(stored, line)
            env_creator(config["env"])
            policy, framework = _policy(stored, config, line)
        except UsageError:
            raise
        except PolylibError as error:
            raise UsageError(str(error)) from error
        try:
            with _output(line["out"]) as out:
                return _run(stored, config, policy, framework, line, out)
        except (UsageError, BrokenPipeError):
            raise
        except Exception as error:
            report("evaluate", error, line.verbosity)
            return FAILED
        finally:
            policy.close()


def _config(stored: Stored, line: CommandLine) -> AlgorithmConfig:
    """The checkpoint's settings, with those of evaluation during training and of the command line over them."""
    if line["algo"] not in (None, stored.algo):
        raise UsageError(f"--algo {line['algo']}: {stored.folder} is a checkpoint of {stored.algo}")
    config = stored.config.copy()
    changes = config["evaluation_config"] or {}
    given = {} if line["config"] is None else read_mapping(line["config"], "--config")
    try:
        # One environment, as where `compute_single_action` is called: a batch of one gives its very numbers.
        values = {"explore": False, "num_envs_per_worker": 1, **changes}
        config.update_from_dict(values, source="checkpoint")
        config.update_from_dict(given, source="--config")
    except PolylibError as error:
        raise UsageError(f"--config: {error}") from error
    unused = [key for key in given if config._option(key).name not in _USED]
    if unused:
        _note(f"--config: {', '.join(unused)}: no effect in an evaluation")
    if line["model"] is not None:
        config.update_from_dict({"model": {"custom_model": line["model"]}}, source="--model")
    stored.check_model(config)
    if line["env"] is not None:
        config.update_from_dict({"env": line["env"]}, source="--env")
    if config["env"] is None:
        hint = stored.env_hint() or "the checkpoint has none: use --env NAME"
        raise UsageError(f"which environment? {hint}")
    if line["seed"] is not None or config["seed"] is None:
        config.update_from_dict({"seed": line["seed"] or 0}, source="--seed")
    if line["render"]:
        config.update_from_dict({"env_config": {**config["env_config"], "render_mode": "human"}}, source="--render")
    return config


def _policy(stored: Stored, config: AlgorithmConfig, line: CommandLine) -> tuple[Policy, str]:
    """The checkpoint's policy, and its framework in words."""
    by_config = config.sources.get("framework") == "--config"
    chosen = line["framework"] or (config["framework"] if by_config else "tf2" if line.given("trace") else None)
    if line["trace"] and chosen != "tf2":
        raise UsageError(f"--trace: tracing is for tf2, and the framework is {chosen}; leave one of them out")
    standard = config["model"]["custom_model"] is None and config["model"]["custom_action_dist"] is None
    if chosen == "numpy" or (chosen is None and standard):
        try:
            return _load(stored, config, "numpy", False), "numpy"
        except FrameworkError:
            if chosen == "numpy":
                raise
    # As with train: tf2 is eager for those who ask for it, and as it was for those who don't.
    traced = bool(config["eager_tracing"]) if "eager_tracing" in config.sources else chosen is None
    config.update_from_dict(
        {
            "framework": chosen or str(stored.header.get("framework")),
            "eager_tracing": line["trace"] if line.given("trace") else traced,
        },
        source="--framework",
    )
    framework, traced = config.resolve_framework()
    import_quietly(FRAMEWORK_PACKAGES[framework])
    words = f"tf2 ({'traced' if traced else 'eager'})" if framework == "tf2" else framework
    return _load(stored, config, framework, traced), words


def _load(stored: Stored, config: AlgorithmConfig, framework: str, traced: bool) -> Policy:
    custom_model = config["model"]["custom_model"]
    return load_policy(stored.folder, framework, eager_tracing=traced, custom_model=custom_model)


def _run(
    stored: Stored, config: AlgorithmConfig, policy: Policy, framework: str, line: CommandLine, out: TextIO | None
) -> int:
    env = make_vector_env(config, 0, config["seed"])
    name = env_name(config["env"])
    try:
        for what in ("observation_space", "action_space"):
            here, theirs = getattr(env, f"single_{what}"), getattr(policy, what)
            if here != theirs:
                what = what.replace("_", " ")
                raise UsageError(f"environment {name!r} has {what} {here}, checkpoint {stored.folder} was for {theirs}")
        if line["render"]:
            _require_window(env, name)
        runner = EpisodeRunner(
            env, policy, fragment_length=1, explore=config["explore"], env_name=name, seed=config["seed"]
        )
        print(
            f"{stored.algo} on {name}, framework {framework}, explore {'on' if config['explore'] else 'off'}, "
            f"seed {config['seed']}; {short_path(str(stored.folder))}",
            flush=True,
        )
        return _report_episodes(runner, config["seed"], line, out)
    finally:
        try:
            env.close()
        except Exception as error:  # nothing is lost by it any more
            _note(f"environment {name!r} raised in close(): {type(error).__name__}: {error}")


def _report_episodes(runner: EpisodeRunner, seed: int, line: CommandLine, out: TextIO | None) -> int:
    done: list[EpisodeMetrics] = []

    def show(index: int, metrics: EpisodeMetrics) -> None:
        if not done:
            _row("episode", "seed", "return", "length")
        done.append(metrics)
        reward, length = metrics.episode_reward, metrics.episode_length
        _row(str(index + 1), str(seed + index), number(reward), str(length))
        if out is not None:
            row = {"episode": index + 1, "seed": seed + index, "return": reward, "length": length}
            print(json.dumps(row), file=out, flush=True)

    episodes = line["episodes"] or (None if line["steps"] else _DEFAULT_EPISODES)
    try:
        runner.run(episodes, line["steps"], seed, on_episode=show)
    finally:
        # Also after Ctrl-C and errors: what was done was done.
        if done:
            print(_summary(done), flush=True)
    return DONE


def _summary(episodes: Sequence[EpisodeMetrics]) -> str:
    returns = [metrics.episode_reward for metrics in episodes]
    lengths = [metrics.episode_length for metrics in episodes]
    count = len(episodes)
    mean, error = statistics.fmean(returns), statistics.stdev(returns) / math.sqrt(count) if count > 1 else None
    return (
        f"{count} episode{'s' if count > 1 else ''}, {sum(lengths)} steps: return mean {number(mean)}, "
        f"range {number(min(returns))} to {number(max(returns))}, standard error {number(error)}; "
        f"length mean {number(statistics.fmean(lengths))}"
    )


def _require_window(env: Any, name: str) -> None:
    one = getattr(env, "envs", [env])[0]
    if getattr(one, "render_mode", None) != "human":
        modes = getattr(one, "metadata", {}).get("render_modes") or ["none"]
        raise UsageError(
            f"--render: environment {name!r} has no render mode 'human' (it has {', '.join(map(str, modes))}): leave "
            "the flag out"
        )


@contextmanager
def _output(name: str | None) -> Iterator[TextIO | None]:
    """The file of `--out`, open."""
    if name is None:
        yield None
        return
    try:
        file = open(Path(name).expanduser(), "w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: can't write {name!r}: {error.strerror or error}") from None
    with file:
        yield file


def _row(episode: str, seed: str, reward: str, length: str) -> None:
    print(f"{episode:>7}  {seed:>9}  {reward:>11}  {length:>8}", flush=True)


def _note(text: str) -> None:
    print(f"polylib evaluate: note: {text}", file=sys.stderr, flush=True)
