"""Flags about checkpoints, signals, --restore and --resume, with and without Tune."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from modes import has

from polylib.cli.checkpoints import CheckpointOptions, KeptCheckpoints, Saved
from polylib.cli.experiment import experiments_of
from polylib.cli.flags import parse
from polylib.cli.train_flags import TRAIN_FLAGS


def argv_of(count, results, *flags, config=None, stop=5):
    given = json.dumps({"env": "CartPole-v1", "env_config": config or {}})
    stop = json.dumps({"training_iteration": stop})
    return ["train", "--algo", count, "--config", given, "--local-dir", results, "-n", "N", "--stop", stop, *flags]


def checkpoints(results, name="N"):
    """The numbers of the checkpoints in an experiment's folder."""
    return sorted(int(path.name.removeprefix("checkpoint_")) for path in Path(results, name).glob("*/checkpoint_*"))


def iterations(results, name="N"):
    (file,) = Path(results, name).glob("*/result.json")
    return [json.loads(line)["training_iteration"] for line in file.read_text().splitlines()]


def options(*flags):
    (found,) = experiments_of(parse(["--algo", "PPO", "--env", "CartPole-v1", *flags], TRAIN_FLAGS))
    return found.checkpoints


# --- what is said


def test_defaults():
    assert options() == CheckpointOptions(0, True, None, None, False)


def test_flags():
    flags = "--checkpoint-freq 3 --no-checkpoint-at-end --keep-checkpoints-num 2 --checkpoint-score-attr min-info/loss"
    assert options(*flags.split()) == CheckpointOptions(3, False, 2, "info/loss", True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--checkpoint-freq", "-1"], "flag --checkpoint-freq=-1: expected an integer >= 0"),
        (["--keep-checkpoints-num", "0"], "flag --keep-checkpoints-num=0: expected an integer >= 1"),
        (["--checkpoint-score-attr", "min-"], "--checkpoint-score-attr: expected a key of the results"),
        (["--checkpoint-score-attr", ""], "--checkpoint-score-attr: expected a key of the results"),
        (["--restore", "/no/such/folder"], "--restore: there is no checkpoint /no/such/folder: no such folder"),
        (["--restore", "s3://bucket/x"], "--restore: s3://bucket/x: polylib reads checkpoints in local folders"),
        (["--resume"], "--env: an experiment that is resumed keeps its settings"),
    ],
)
def test_what_is_wrong(call, flags, message):
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", *flags)
    assert outcome.status == 2 and outcome.error.startswith(message)


@pytest.mark.parametrize(
    "keys",
    [
        "checkpoint_freq: 3\n  checkpoint_at_end: false\n  keep_checkpoints_num: 2\n  checkpoint_score_attr: min-x/y",
        "checkpoint_config:\n    {checkpoint_frequency: 3, checkpoint_at_end: false, num_to_keep: 2,"
        " checkpoint_score_attribute: x/y, checkpoint_score_order: min}",
    ],
)
def test_keys_of_a_yaml_file(tmp_path, keys):
    path = tmp_path / "exp.yaml"
    path.write_text(f"exp:\n  run: PPO\n  env: CartPole-v1\n  {keys}\n")
    (found,) = experiments_of(parse(["file", str(path)], TRAIN_FLAGS))
    assert found.checkpoints == CheckpointOptions(3, False, 2, "x/y", True)
    flags = ["--checkpoint-freq", "1", "--checkpoint-at-end"]
    (found,) = experiments_of(parse(["file", str(path), *flags], TRAIN_FLAGS))
    assert found.checkpoints == CheckpointOptions(1, True, 2, "x/y", True)


# --- which are kept and which is best


class Folders:
    """Saves empty folders."""

    def save(self, path):
        os.makedirs(path)


NAN = math.nan


@pytest.mark.parametrize(
    ("score", "lowest", "values", "kept", "best"),
    [
        (None, False, [3, 1, 2, 0], [3, 4], 4),
        ("a/b", False, [3, 1, 2, 0], [1, 3, 4], 1),  # two best, and the newest
        ("a/b", True, [3, 1, 2, 0], [2, 4], 4),
        ("a/b", False, [2, 2, 2, 2], [3, 4], 4),
        ("a/b", False, [NAN, None, 1, NAN], [3, 4], 3),
        ("a/b", True, [NAN, 2, 1, None], [2, 3, 4], 3),
        ("a/b", False, [None, NAN, None, NAN], [3, 4], 4),
    ],
)
def test_what_is_kept(tmp_path, score, lowest, values, kept, best):
    wanted = CheckpointOptions(1, True, 2, score, lowest)
    keeper = KeptCheckpoints(str(tmp_path / "local"), wanted)
    manager = ranked_by_tune(tmp_path / "tune", wanted)
    for number, value in enumerate(values, 1):
        result = {"training_iteration": number, "a": {} if value is None else {"b": value}}
        keeper.save(Folders(), result)
        register(manager, tmp_path / "tune" / f"checkpoint_{number:06d}", result)
    for folder in ("local", "tune"):
        there = sorted(int(path.name[-6:]) for path in (tmp_path / folder).iterdir())
        assert there == kept, folder
    assert wanted.best(keeper.saved).path.endswith(f"{best:06d}")
    saved = [Saved(r.checkpoint.path, r.metrics) for r in manager.best_checkpoint_results]
    saved.sort(key=lambda checkpoint: checkpoint.path)
    assert wanted.best(saved).path.endswith(f"{best:06d}")


def ranked_by_tune(folder, wanted):
    from ray import tune
    from ray.train._internal.checkpoint_manager import _CheckpointManager

    from polylib.cli.conductor import RankedCheckpoints

    config = tune.CheckpointConfig(
        num_to_keep=wanted.keep,
        checkpoint_score_attribute=wanted.score,
        checkpoint_score_order="min" if wanted.lowest else "max",
    )
    trial = SimpleNamespace(run_metadata=SimpleNamespace(checkpoint_manager=_CheckpointManager(config)))
    RankedCheckpoints.take_over(trial)
    return trial.run_metadata.checkpoint_manager


def register(manager, folder, result):
    from ray import tune
    from ray.train._internal.session import _TrainingResult

    folder.mkdir(parents=True)
    manager.register_checkpoint(_TrainingResult(checkpoint=tune.Checkpoint(folder), metrics=result))


@pytest.fixture(params=["local", "tune"])
def how(request):
    """The flag for running with and without Tune."""
    if request.param == "local":
        return ["--local-mode"]
    request.getfixturevalue("ray_session")
    return []


RUNS = [
    ("", [5], "last checkpoint: {}/checkpoint_000005"),
    ("--no-checkpoint-at-end", [], None),
    ("--checkpoint-freq 2", [2, 4, 5], "last checkpoint: {}/checkpoint_000005"),
    (
        "--checkpoint-freq 2 --no-checkpoint-at-end --keep-checkpoints-num 1",
        [4],
        "last checkpoint: {}/checkpoint_000004",
    ),
    # 3, 9, 1, 7, 5 in iterations 1 to 5
    (
        "--checkpoint-freq 1 --keep-checkpoints-num 1 --checkpoint-score-attr min-info/learner/zigzag",
        [3, 5],
        "best checkpoint (info/learner/zigzag 1): {}/checkpoint_000003",
    ),
    # in the result of iteration 2 only
    (
        "--checkpoint-freq 1 --keep-checkpoints-num 1 --checkpoint-score-attr evaluation/score",
        [2, 5],
        "best checkpoint (evaluation/score 98): {}/checkpoint_000002",
    ),
]


def check_run(outcome, results, there, line):
    assert outcome.status == 0 and outcome.err == ""
    assert checkpoints(results) == there
    (folder,) = {path.parent for path in Path(results, "N").glob("*/params.json")}
    printed = outcome.out.splitlines()[8:]
    if line is None:
        assert printed == []
    else:
        path = line.format(folder)
        checkpoint = path.rpartition(": ")[2]
        assert printed == [f"  {path}", f"  polylib evaluate {checkpoint} --algo COUNT"]


@pytest.mark.parametrize(("flags", "there", "line"), RUNS)
def test_a_run_without_tune(call, count, results, flags, there, line):
    check_run(call(*argv_of(count, results, "--local-mode", *flags.split())), results, there, line)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("flags", "there", "line"), RUNS[4:])
def test_a_run_of_tune(call, count, results, flags, there, line):
    check_run(call(*argv_of(count, results, *flags.split())), results, there, line)


def test_a_score_that_never_comes(call, count, results):
    outcome = call(*argv_of(count, results, "--local-mode", "--checkpoint-score-attr", "info/learner/zigzac"))
    assert outcome.status == 1
    assert outcome.error.startswith("--checkpoint-score-attr: no key 'info/learner/zigzac' in the results, so no check")
    assert "Did you mean 'info/learner/zigzag'?" in outcome.error


def test_an_algorithm_that_cannot_be_saved(call, count, results, monkeypatch):
    from ray import tune

    from polylib.algorithms.registry import get_algorithm_class

    monkeypatch.setattr(get_algorithm_class(count), "save_checkpoint", tune.Trainable.save_checkpoint)
    outcome = call(*argv_of(count, results, "--local-mode"))
    assert outcome.status == 0 and outcome.err == "" and checkpoints(results) == []
    outcome = call(*argv_of(count, results, "--local-mode", "--checkpoint-freq", "1"))
    assert outcome.status == 2 and outcome.error == "--checkpoint-freq: Counting can't be saved (no save_checkpoint())"


# --- signals


def resume(call, outcome):
    """Types the line that an interrupted run has printed."""
    last = outcome.err.splitlines()[-1]
    assert last.startswith("polylib train: this goes on from there: polylib train ")
    return call(*shlex.split(last.partition("there: ")[2])[1:])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_without_tune(call, count, results, number, status):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    settings = {"signals": [number], "at": 2}
    outcome = call(*argv_of(count, results, "--local-mode", "--checkpoint-freq", "9", config=settings))
    assert outcome.status == status and (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    first, second, _ = outcome.err.splitlines()
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert first == f"polylib train: {name}: stopping after this iteration, with a checkpoint; once more stops at once"
    said = "interrupted" if number == signal.SIGINT else "terminated"
    assert second == f"polylib train: {said}; results so far in {results}/N"
    assert ": interrupted after 2 iterations" in outcome.out and "checkpoint_000002 --algo COUNT" in outcome.out
    assert checkpoints(results) == [2] and iterations(results) == [1, 2]
    again = resume(call, outcome)
    assert again.status == 0, again.err
    (name,) = {path.name for path in Path(results).iterdir()} - {"N"}
    assert iterations(results, name) == [3, 4, 5] and checkpoints(results, name) == [5]


def test_the_second_signal_stops_at_once(call, count, results):
    settings = {"signals": [signal.SIGINT, signal.SIGTERM], "at": 3}
    outcome = call(*argv_of(count, results, "--local-mode", "--checkpoint-freq", "1", config=settings))
    assert outcome.status == 143 and iterations(results) == [1, 2] and checkpoints(results) == [1, 2]
    assert "checkpoint_000002" in outcome.err.splitlines()[-1]


def test_a_signal_before_the_first_iteration(call, count, results, monkeypatch):
    from polylib.algorithms.registry import get_algorithm_class

    monkeypatch.setattr(get_algorithm_class(count), "setup", lambda self, config: signal.raise_signal(signal.SIGTERM))
    outcome = call(*argv_of(count, results, "--local-mode"))
    assert outcome.status == 143 and checkpoints(results) == []
    assert outcome.err == f"polylib train: terminated; results so far in {results}/N\n"


@pytest.fixture
def signal_after(monkeypatch):
    """`signal_after(n, number)` sends this process a signal after the n-th result under Tune."""
    from polylib.cli.tune_run import ProgressLines

    def start(count, number):
        results, show = [], ProgressLines.on_trial_result

        def shown(self, *args, **kwargs):
            show(self, *args, **kwargs)
            results.append(1)
            if len(results) == count:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(ProgressLines, "on_trial_result", shown)

    return start


@pytest.mark.usefixtures("ray_session")
def test_a_signal_under_tune(call, count, results, signal_after):
    """Trials that run finish their iteration, write a checkpoint, and go on from it when they are resumed."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    signal_after(3, signal.SIGTERM)
    argv = argv_of(count, results, "--num-samples", "2", config={"sleep": 0.05}, stop=20)
    outcome = call(*argv)
    assert outcome.status == 143, outcome.err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
    assert outcome.out.count(": interrupted after ") == 2 and ": done after" not in outcome.out
    numbers = checkpoints(results)
    assert len(numbers) >= 1 and max(numbers) < 20
    assert "--resume -n N --local-dir " in outcome.err.splitlines()[-1]
    again = resume(call, outcome)
    assert again.status == 0, again.err
    assert again.out.splitlines()[0] == f"goes on with 2 trials of COUNT; results in {results}/N"
    assert again.out.count(": done after 20 iterations, 2000 timesteps") == 2
    for file in Path(results, "N").glob("*/result.json"):
        numbers = [json.loads(line)["training_iteration"] for line in file.read_text().splitlines()]
        assert numbers == list(range(1, 21))
    outcome = resume(call, outcome)
    assert outcome.status == 2 and outcome.error.startswith("--resume: experiment 'N' is finished; --restore CHECK")


@pytest.mark.usefixtures("ray_session")
def test_a_failed_trial_is_resumed_from_its_checkpoint(call, count, results, monkeypatch):
    argv = argv_of(count, results, "--checkpoint-freq", "1", config={"fail_at": 3})
    flag = Path(results).parent / "repaired"
    from polylib.algorithms.registry import get_algorithm_class

    step = get_algorithm_class(count).step

    def failing(self):
        if self.n == 3 and not os.path.exists(flag):
            raise OSError("the disk is full")
        return step(self)

    monkeypatch.setattr(get_algorithm_class(count), "step", failing)
    outcome = call(*argv)
    assert outcome.status == 1 and "the disk is full" in outcome.error and ": failed after 3 iterations" in outcome.out
    flag.touch()
    outcome = call("train", "--resume", "-n", "N", "--local-dir", results, "--algo", count, "--stop", '{"x": 1}')
    assert outcome.status == 1 and outcome.error.startswith("--stop: no key 'x' in the results")
    assert iterations(results) == [1, 2, 3, 4]


def test_what_cannot_be_resumed(call, count, results, tmp_path):
    resume = ["train", "--resume", "--local-dir", results]
    assert call(*resume).error.startswith("--resume: which experiment? use -n NAME with the name of a folder in ")
    assert call(*resume, "-n", "X").error == f"--resume: there is no experiment '{results}/X'"
    assert call(*argv_of(count, results, "--local-mode")).status == 0
    outcome = call(*resume, "-n", "N")
    (folder,) = Path(results, "N").iterdir()
    assert outcome.error == (
        f"--resume: {results}/N wasn't written by Tune, but perhaps by --local-mode; "
        f"--restore {folder}/checkpoint_000005 goes on from its newest checkpoint"
    )
    for flags in (["--config", "{}"], ["--num-samples", "2"], ["--restore", "x"], ["--local-mode"]):
        outcome = call(*resume, "-n", "N", *flags)
        assert outcome.status == 2 and outcome.error.startswith(f"{flags[0]}: an experiment that is resumed keeps its")
    (tmp_path / "results" / "N" / "tuner.pkl").touch()
    (tmp_path / "results" / "N" / "experiment_state-2030.json").write_text("{")
    assert "experiment_state-2030.json is damaged: JSONDecodeError" in call(*resume, "-n", "N").error
    state = {"trial_data": [[json.dumps({"trainable_name": "COUNT", "status": "PENDING", "config": {}}), "{}"]]}
    (tmp_path / "results" / "N" / "experiment_state-2030.json").write_text(json.dumps(state))
    assert call(*resume, "-n", "N", "--algo", "PPO").error == f"--algo PPO: {results}/N is an experiment of COUNT"
    assert call(*resume, "-n", "N", "file", "exp.yaml").error.startswith("--resume: beside flags it takes the experime")


def test_the_evaluate_line_names_an_env_that_is_code(call, count, results, tmp_path, monkeypatch):
    """It works where it was printed, for a class and for a name that the file registers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp_with_envs.py").write_text(
        "from polylib.registry import register_env\n"
        "class Mine: pass\n"
        "register_env('my name for it', Mine)\n"
        "config = {'env': Mine}\n"
        "algo = 'COUNT'\n"
    )
    argv = ["train", "file", "exp_with_envs.py", "--local-dir", results, "--local-mode"]
    argv += ["--stop", '{"timesteps_total": 9}']
    for flags in ([], ["--env", "my name for it"], ["--env", "exp_with_envs:Mine"]):
        outcome = call(*argv, *flags)
        assert outcome.status == 0 and outcome.out.endswith(" --algo COUNT --env exp_with_envs:Mine\n"), flags
    assert call(*argv, "--env", "CartPole-v1").out.endswith(" --algo COUNT\n")


# --- --restore


@pytest.fixture
def checkpoint(call, count, results):
    """A checkpoint of COUNT after two iterations, with other settings than the defaults."""
    config = json.dumps({"env": "CartPole-v1", "lr": 0.125, "env_config": {"sleep": 0}, "framework": "torch"})
    argv = ["train", "--algo", count, "--config", config, "--local-dir", results, "-n", "first", "--local-mode"]
    assert call(*argv, "--stop", '{"training_iteration": 2}').status == 0
    (folder,) = Path(results, "first").glob("*/checkpoint_*")
    return folder


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_restore(call, count, results, checkpoint, how):
    argv = ["train", "--restore", str(checkpoint), "--local-dir", results, "-n", "N", *how]
    outcome = call(*argv, "--config", '{"lr": 0.5}', "--stop", '{"training_iteration": 4}')
    assert outcome.status == 0, outcome.err
    assert outcome.notes == ["--restore: lr is 0.5 now, was 0.125"]
    assert f", from {checkpoint}; results in " in outcome.out.splitlines()[0]
    assert iterations(results) == [3, 4] and checkpoints(results) == [4]
    (params,) = Path(results, "N").glob("*/params.json")
    assert json.loads(params.read_text())["lr"] == 0.5
    assert json.loads(params.read_text())["env_config"] == {"sleep": 0}


def test_restore_with_a_file(call, results, checkpoint, tmp_path):
    config = "config.environment('CartPole-v1').training(gamma=0.5)"
    text = f"from polylib.algorithms.registry import get_config_class\nconfig = get_config_class('COUNT')()\n{config}\n"
    (tmp_path / "exp.py").write_text(text)
    outcome = call("train", "file", str(tmp_path / "exp.py"), "--restore", str(checkpoint), "--print-config")
    table = {line.split()[0]: line.split()[1:] for line in outcome.out.splitlines() if line}
    assert table["gamma"] == ["0.5", "exp.py"] and table["lr"] == ["0.125", "checkpoint"]


def test_what_cannot_be_restored(call, count, checkpoint, tmp_path):
    def refused(*flags):
        outcome = call("train", "--restore", str(checkpoint), *flags, "--print-config")
        assert outcome.status == 2
        return outcome.error

    def write(name, value):
        (checkpoint / name).write_text(json.dumps(value))

    assert refused("--algo", "PPO") == f"--restore: {checkpoint} is a checkpoint of COUNT, not of PPO"
    write("config.json", {"env": "os:system", "lr": 0.1, "callbacks": "os:abort"})
    outcome = call("train", "--restore", str(checkpoint), "--local-mode")
    assert outcome.status == 2 and outcome.err.splitlines()[-1] == (
        "polylib train: error: which environment? the checkpoint's is code, 'os:system', which is run only if you say "
        "so: use --env os:system"
    )
    write("config.json", {"lr": "abc"})
    assert refused().startswith(f"--restore: checkpoint {checkpoint}: its config.json doesn't fit this polylib: config")
    header = json.loads((checkpoint / "polylib_checkpoint.json").read_text())
    write("polylib_checkpoint.json", {**header, "algorithm": "nowhere:Algo"})
    assert refused().startswith(f"--restore: {checkpoint} is a checkpoint of 'nowhere:Algo': unknown algorithm")
    write("polylib_checkpoint.json", {**header, "type": "Policy"})
    assert "is a checkpoint of type 'Policy', expected 'Algorithm'" in refused()
    (checkpoint / "polylib_checkpoint.json").write_text("{")
    assert "polylib_checkpoint.json is damaged" in refused()
    (tmp_path / "rllib").mkdir()
    (tmp_path / "rllib" / "rllib_checkpoint.json").touch()
    outcome = call("train", "--restore", str(tmp_path / "rllib"))
    assert outcome.status == 2 and "is an RLlib checkpoint: its files are pickles" in outcome.error


# --- with PPO


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
@pytest.mark.usefixtures("ray_session")
def test_the_checkpoints_of_a_result_grid_load(tmp_path):
    import numpy as np
    from fakes import MatchEnv, small_ppo
    from ray import tune

    import polylib
    from polylib.algorithms.algorithm import Algorithm

    config = small_ppo(MatchEnv)
    tuner = tune.Tuner(
        "PPO",
        param_space=config,
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            name="N",
            verbose=0,
            stop={"training_iteration": 2},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, checkpoint_at_end=True),
        ),
    )
    (result,) = tuner.fit()
    assert checkpoints(tmp_path) == [1, 2]
    assert result.checkpoint.path.endswith("checkpoint_000002")
    obs = np.array([0.0, 1.0, 0.0], np.float32)
    policy = polylib.load_policy(result.checkpoint)
    with Algorithm.from_checkpoint(result.checkpoint, env=MatchEnv) as algo:
        assert algo.iteration == 2
        assert algo.compute_single_action(obs, explore=False) == policy.compute_single_action(obs, explore=False)
        assert algo.train()["training_iteration"] == 3


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_ppo_goes_on_as_if_it_had_never_stopped(call, results):
    """Interrupted and restored by the printed line, it ends with the weights of a run that wasn't."""
    import numpy as np

    import polylib

    config = json.dumps({"train_batch_size": 128, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}, "seed": 1})
    argv = ["train", "--algo", "PPO", "--env", "CartPole-v1", "--framework", "torch", "--local-mode"]
    argv += ["--config", config, "--local-dir", results]
    assert call(*argv, "-n", "whole", "--stop", '{"training_iteration": 4}').status == 0
    assert call(*argv, "-n", "half", "--stop", '{"training_iteration": 2}').status == 0
    (half,) = Path(results, "half").glob("*/checkpoint_000002")
    argv = ["train", "--restore", str(half), "--local-mode", "--local-dir", results, "-n", "rest"]
    outcome = call(*argv, "--stop", '{"training_iteration": 4}')
    assert outcome.status == 0 and outcome.err == ""
    (whole,), (rest,) = (Path(results, name).glob("*/checkpoint_000004") for name in ("whole", "rest"))
    expected, got = polylib.load_policy(whole).get_weights(), polylib.load_policy(rest).get_weights()
    for key, value in expected.items():
        np.testing.assert_array_equal(got[key], value, err_msg=key)
