"""Lines of progress, stop criteria, and errors from wherever they were raised."""

from __future__ import annotations

import math

import pytest

from polylib.cli.failures import explain, report
from polylib.cli.progress import ResultTable, duration, summary_line
from polylib.cli.stopping import ResultKeyError, StopCriteria, flatten
from polylib.errors import EnvError, UnknownKeyError

RESULT = {
    "training_iteration": 12,
    "timesteps_total": 48000,
    "episode_reward_mean": 152.125,
    "episode_len_mean": 33.0,
    "time_total_s": 125.0,
    "info": {"learner": {"kl": 0.01}},
    "config": {"lr": 1},
}


def test_lines_of_results(capsys):
    table = ResultTable()
    table.add("PPO_x_1", RESULT, ["PPO_x_1", "PPO_x_10"])
    table.add("PPO_x_10", {"training_iteration": 1, "episode_reward_mean": math.nan})
    assert capsys.readouterr().out.splitlines() == [
        "trial      iter   timesteps     reward    length        time",
        "PPO_x_1      12       48000     152.12     33.00   2 min 5 s",
        "PPO_x_10      1           -          -         -           -",
    ]


def test_the_summary(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    line = summary_line("T", "done", RESULT, str(tmp_path / "ray_results" / "T"))
    assert line == "T: done after 12 iterations, 48000 timesteps, 2 min 5 s; reward 152.12; ~/ray_results/T"
    assert summary_line("T", "failed", {}, "/x") == "T: failed after 0 iterations, 0 timesteps, 0.0 s; reward -; /x"


def test_estimates_of_logged_episodes(capsys):
    found = {"off_policy_estimator": {"wis": {"v_target": 18.956}, "dr": {"v_target": math.nan}}}
    read = {"training_iteration": 1, "evaluation": found}
    both = {"training_iteration": 1, "evaluation": {**found, "episode_reward_mean": 20.0, "episode_len_mean": 7.0}}
    table = ResultTable()
    table.add("T", read)
    table.add("T", both)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["T", "1", "-", "est", "18.96", "-", "-"], ["T", "1", "-", "ev", "20.00", "7.00", "-"]]
    assert "; estimated: wis 18.96, dr -; " in summary_line("T", "done", read, "/x")
    assert "; evaluation's reward 20.00; estimated: wis 18.96, dr -; " in summary_line("T", "done", both, "/x")


def test_durations():
    assert [duration(s) for s in (0, 7.06, 99.96, 3600 * 2 + 59, None, math.nan)] == [
        *("0.0 s", "7.1 s", "1 min 40 s", "2 h 0 min", "-", "-")
    ]


def test_stop_criteria():
    stop = StopCriteria({"episode_reward_mean": 152, "info/learner/kl": 0.5})
    assert stop.met(RESULT)
    assert not stop.met({**RESULT, "episode_reward_mean": 151.9})
    assert not stop.met({**RESULT, "episode_reward_mean": math.nan})
    assert stop.met({**RESULT, "episode_reward_mean": math.nan, "info": {"learner": {"kl": 0.5}}})
    assert StopCriteria({"training_iteration": 12}).met(RESULT)
    assert not StopCriteria({}).met(RESULT) and StopCriteria({}).met({"done": True})
    # results that come later
    assert not StopCriteria({"evaluation/episode_reward_mean": 1, "custom_metrics/x": 1}).met(RESULT)


def test_a_stop_key_that_is_not_there():
    with pytest.raises(ResultKeyError) as error:
        StopCriteria({"episode_reward": 1}).met({**RESULT, "pid": 3, "done": False})
    assert str(error.value) == (
        "--stop: no key 'episode_reward' in the results, so the run would never stop. "
        "Did you mean 'episode_reward_mean'? Keys: episode_reward_mean, timesteps_total, training_iteration, "
        "time_total_s, episode_len_mean, ..."
    )
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a/b/c": 1, "d": 2}


def test_errors_in_one_line():
    assert explain(EnvError("environment 'x' broke")) == "environment 'x' broke"
    assert explain(UnknownKeyError("no\nsuch key")) == "no such key"
    assert explain(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"
    assert explain(ValueError()) == "ValueError"


def test_errors_that_ray_wraps():
    from ray.exceptions import ActorDiedError, RayTaskError

    cause = EnvError("environment 'x' broke")
    inner = RayTaskError("f", "Traceback\nEnvError: environment 'x' broke", cause)
    assert explain(inner) == explain(inner.as_instanceof_cause()) == "environment 'x' broke"
    assert explain(RayTaskError("g", "Traceback", inner)) == "environment 'x' broke"
    text = "Traceback (most recent call last):\n  File 'a', line 1\npolylib.errors.EnvError: environment 'x' broke"
    assert explain(ActorDiedError(RayTaskError("f", text, cause))) == "environment 'x' broke"
    text = text.replace("polylib.errors.EnvError: environment 'x'", "polylib.checkpoints.CheckpointError: it")
    assert explain(ActorDiedError(RayTaskError("f", text, cause))) == "it broke"
    text = "Traceback (most recent call last):\n  File 'a', line 1\nmy.BadError: oh"
    assert explain(ActorDiedError(RayTaskError("f", text, ValueError("oh")))) == "BadError: oh"


def test_reports(capsys):
    report("train", EnvError("broke"), 0)
    report("train", ValueError("broke"), 1, "T: ")
    assert capsys.readouterr().err.splitlines() == [
        "polylib train: error: broke",
        "polylib train: error: T: ValueError: broke (-vv shows the traceback)",
    ]
    report("train", EnvError("broke"), 2)
    lines = capsys.readouterr().err.splitlines()
    assert "polylib.errors.EnvError: broke" in lines and lines[-1] == "polylib train: error: broke"
