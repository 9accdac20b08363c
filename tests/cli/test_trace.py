"""`polylib trace` as text and JSON: what it prints of traces, and what it says about those that won't do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import small_ppo
from modes import MODES, has, mode_params

import polylib
from polylib.cli.trace_numbers import sparkline
from polylib.offline import JsonReader, JsonWriter
from polylib.policy.sample_batch import SampleBatch

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "rllib_json"


@pytest.fixture
def traces(tmp_path):
    """`traces(name, *batches)`: a folder of them."""

    def write(name, *batches):
        with JsonWriter(tmp_path / name) as writer:
            for batch in batches:
                writer.write(batch)
        return str(tmp_path / name)

    return write


def steps(eps_id=1, n=3, **columns):
    found = {
        "obs": np.arange(2.0 * n).reshape(n, 2).astype(np.float32),
        "actions": np.arange(n) % 2,
        "rewards": np.ones(n, np.float32),
        "terminateds": np.arange(n) == n - 1,
        "truncateds": np.zeros(n, np.bool_),
        "eps_id": np.full(n, eps_id),
        "t": np.arange(n),
    }
    return SampleBatch({**found, **columns})


def episode_lines(outcome):
    """The lines of the list of episodes, as words."""
    return [line.split() for line in outcome.out.split("\n\n")[1].splitlines()[1:]]


# --- the list ---------------------------------------------------------------------------------------------------------


def test_a_line_per_episode(call):
    outcome = call("trace", str(DATA / "cartpole_plain"))
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{DATA / 'cartpole_plain'}: 2 files, 2 records, 22 episodes, 416 steps\n")
    rows = episode_lines(outcome)
    assert len(rows) == 22
    assert rows[0] == ["427055806170096947", "15", "15", "terminated", "0:", "60", "%", "1:", "40", "%"]
    assert "ends    22 terminated" in outcome.out
    assert "\n  action_dist_inputs   [2]    float64  -0.004309   0.004596\n" in outcome.out


def test_the_columns_of_each_episode_where_they_are_few_or_asked_for(call):
    outcome = call("trace", str(DATA / "pendulum_sac"))
    assert outcome.out.count("columns of episode") == 2
    assert "columns of episode" not in call("trace", str(DATA / "pendulum_sac"), "--no-columns").out
    assert call("trace", str(DATA / "cartpole_plain"), "--columns").out.count("columns of episode") == 22


def test_box_actions_show_their_ranges(call):
    (row, _) = episode_lines(call("trace", str(DATA / "pendulum_sac"), "--no-columns"))
    assert row[:5] == ["427055806170096947", "200", "-1080", "truncated", "-0.9874..0.9983"]


def test_several_policies(call):
    outcome = call("trace", str(DATA / "multi_agent_cartpole"))
    assert "policies p0, p1" in outcome.out and "columns of policy p1, all episodes" in outcome.out
    assert {row[1] for row in episode_lines(outcome)} == {"p0", "p1"}
    outcome = call("trace", str(DATA / "multi_agent_cartpole"), "--policy-id", "p1")
    assert "7 episodes" in outcome.out and "p0" not in outcome.out


def test_sorted_and_limited(call):
    def order(*flags):
        return [row[0] for row in episode_lines(call("trace", str(DATA / "cartpole_plain"), *flags))]

    lengths = {row[0]: int(row[1]) for row in episode_lines(call("trace", str(DATA / "cartpole_plain")))}
    assert order("--sort", "return") == order("--sort", "length") == sorted(lengths, key=lambda e: -lengths[e])
    assert order("--sort", "id") == sorted(lengths, key=int)
    outcome = call("trace", str(DATA / "cartpole_plain"), "--sort", "length", "--limit", "3")
    assert len(episode_lines(outcome)) == 3 and "... and 19 more episodes" in outcome.out


def test_what_is_amiss(call, traces):
    broken = steps(4, 6, rewards=np.array([1, np.nan, 1, 1, 1, 1], np.float32)).take(np.array([0, 1, 2, 5]))
    folder = traces("x", broken, broken[:2], steps(5, 2, terminateds=np.zeros(2, np.bool_)))
    first, second = call("trace", folder, "--no-columns").out.split("\n\n")[1].splitlines()[1:]
    assert first.split()[:4] == ["4", "4", "-", "terminated"]
    assert first.endswith("1 NaN in rewards; 2 steps missing (t 3-4); 2 duplicates")
    assert second.split() == ["5", "2", "2", "open", "0:", "50", "%", "1:", "50", "%"]
    assert "notes   1 of 2 episodes have some" in call("trace", folder).out
    outcome = call("trace", folder, traces("y", steps(9, 8)))
    assert "length     8    -    8" in outcome.out and "of the 1 whole episode" in outcome.out


def test_text_of_traces_does_nothing_to_a_terminal(call, traces):
    folder = traces("x", steps("\x1b]0;title\x07\x9b2J", infos=np.array(["\x1b[2J"] * 3, object)))
    for argv in ([], ["--episode", "\x1b]0", "--full"]):
        outcome = call("trace", folder, *argv)
        assert outcome.status == 0 and r"\x1b]0;title\x07\x9b2J" in outcome.out
        assert not {"\x1b", "\x07", "\x9b"} & set(outcome.out)


def test_other_formats(call, tmp_path):
    pytest.importorskip("pyarrow")
    from polylib.offline.formats.convert import convert

    convert(str(DATA / "pendulum_sac"), str(tmp_path / "x.parquet"))
    assert "2 episodes, 400 steps" in call("trace", str(tmp_path / "x.parquet")).out


def test_several_paths_are_one_listing(call):
    outcome = call("trace", *map(str, sorted((DATA / "cartpole_plain").glob("*.json"))))
    assert "2 files, 2 records, 22 episodes" in outcome.out


def test_json(call):
    outcome = call("trace", str(DATA / "cartpole_plain"), "--json", "--sort", "return", "--limit", "2")
    found = json.loads(outcome.out)
    assert (found["files"], found["records"], found["steps"], found["skipped"]) == (2, 2, 416, [])
    assert found["returns"]["max"] == 31 and found["returns"]["count"] == 22
    first, second = found["episodes"]
    assert first["return"] == second["return"] == first["length"] == 31
    assert sum(first["actions"]["actions"]["counts"][0].values()) == 31
    assert first["columns"]["obs"]["shape"] == [4] and first["columns"]["obs"]["nan"] == 0


def test_json_has_no_numbers_that_json_lacks(call, traces):
    folder = traces("x", steps(rewards=np.array([np.nan, np.inf, 1], np.float32)))
    found = json.loads(call("trace", folder, "--json").out, parse_constant=pytest.fail)
    (episode,) = found["episodes"]
    assert episode["return"] is None and episode["columns"]["rewards"]["high"] is None
    assert episode["problems"] == ["1 NaN in rewards", "1 infinite in rewards"]


# --- one episode ------------------------------------------------------------------------------------------------------


def test_step_by_step(call):
    outcome = call("trace", str(DATA / "cartpole_plain"), "--episode", "427055806170096947")
    title, blank, heads, *rows = outcome.out.splitlines()
    assert (outcome.status, blank) == (0, "")
    assert title == "episode 427055806170096947: 15 steps, return 15, terminated"
    assert heads.split() == ["t", "action", "prob", "reward", "return", "value", "advantage", "observation"]
    batch = JsonReader(DATA / "cartpole_plain").next()
    assert len(rows) == 15
    for t, row in enumerate(map(str.split, rows)):
        assert row[:2] == [str(t), str(batch["actions"][t])]
        assert float(row[2]) == pytest.approx(batch["action_prob"][t], rel=1e-3)
        assert [float(x) for x in row[3:5]] == [1, t + 1]
        assert float(row[7].strip("[]")) == pytest.approx(batch["obs"][t][0], rel=1e-3)


def test_some_of_its_steps_by_the_beginning_of_its_id(call):
    outcome = call("trace", str(DATA / "cartpole_plain"), "-e", "427", "--from", "3", "--to", "4")
    assert [line.split()[0] for line in outcome.out.splitlines()[3:]] == ["3", "4"]


def test_every_column_of_a_step(call, traces):
    infos = np.array([{"lives": 3}, {}, {"x": (1, float("nan"))}], object)
    outcome = call("trace", traces("x", steps(infos=infos)), "-e", "1", "--full", "--from", "2")
    lines = [line.split(None, 1) for line in outcome.out.splitlines()[3:]]
    assert ["obs", "[4 5]"] in lines and ["terminateds", "true"] in lines and ["infos", '{"x": [1, null]}'] in lines


def test_images_are_described(call):
    assert "uint8 [84, 84, 4] 0..200" in call("trace", str(DATA / "image_lz4"), "-e", "427").out


def test_agents_that_share_an_episode(call):
    outcome = call("trace", str(DATA / "multi_agent_cartpole"), "-e", "427")
    titles = [line for line in outcome.out.splitlines() if line.startswith("episode ")]
    assert [title.partition(":")[0] for title in titles] == [
        "episode 427055806170096947, policy p0",
        "episode 427055806170096947, policy p1",
    ]
    found = json.loads(call("trace", str(DATA / "multi_agent_cartpole"), "-e", "427", "--json").out)
    assert [(part["policy"], len(part["steps"])) for part in found] == [("p0", 18), ("p1", 21)]


def test_steps_as_json(call):
    found = json.loads(call("trace", str(DATA / "cartpole_plain"), "-e", "427", "--to", "1", "--json").out)
    assert found["episode"] == "427055806170096947" and found["end"] == "terminated"
    assert [step["t"] for step in found["steps"]] == [0, 1] and len(found["steps"][0]["obs"]) == 4


def test_a_long_episode_goes_through_the_pager_of_a_terminal(call, monkeypatch, traces):
    shown = []
    monkeypatch.setattr("polylib.cli.trace.pydoc.pager", shown.append)
    folder = traces("x", steps(n=200))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    assert call("trace", folder, "-e", "1").status == 0
    assert len(shown) == 1 and shown[0].count("\n") > 200


# --- two folders ------------------------------------------------------------------------------------------------------


def test_side_by_side(call, traces):
    a, b = traces("a", steps(1, 2), steps(2, 4)), traces("b", steps(1, 6, extra=np.zeros(6)))
    for argv in (["--compare", a, b], [a, b, "--compare"]):
        outcome = call("trace", *argv)
        assert outcome.status == 0
    rows = {line[:22].strip(): line[22:].split() for line in outcome.out.splitlines()}
    table = {" ".join(line.split()[:-3]): line.split()[-3:] for line in outcome.out.splitlines()}
    assert table["episodes"] == ["2", "1", "-1"] and table["return mean"] == ["3", "6", "+3"]
    assert table["return max"] == ["4", "6", "+2"] and rows
    assert "columns only in B: extra" in outcome.out
    found = json.loads(call("trace", "--compare", a, b, "--json").out)
    assert found["a"]["returns"]["mean"] == 3 and found["b"]["steps"] == 6


def test_differences_keep_their_digits(call, traces):
    a, b = traces("a", steps(1, 2)), traces("b", steps(1, 12_345))
    table = {line[:22].strip(): line.split()[-3:] for line in call("trace", "--compare", a, b).out.splitlines()}
    assert table["steps"] == ["2", "12345", "+12343"] and table["episodes"] == ["1", "1", "0"]


# --- a policy beside it -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(env, mode)`: a checkpoint, and a folder of what its policy did without exploring."""
    made = {}

    def train(env, mode):
        if (env, mode) not in made:
            folder = tmp_path_factory.mktemp("made")
            with small_ppo(env, mode, seed=3, output=str(folder / "traces"), explore=False).build() as algo:
                # The policy that is saved is the one that wrote the traces.
                before = algo.get_weights()
                algo.train()
                algo.set_weights(before)
                algo.save(str(folder / "checkpoint"))
            made[env, mode] = str(folder / "checkpoint"), str(folder / "traces")
        return made[env, mode]

    return train


@pytest.fixture
def cartpole(trained):
    """A checkpoint and traces of CartPole."""
    return trained("CartPole-v1", next(mode for mode in reversed(MODES) if has(mode[0])))


@pytest.mark.parametrize(("framework", "traced"), mode_params(MODES))
def test_a_policy_agrees_with_itself_in_every_framework(call, trained, framework, traced):
    checkpoint, traces = trained("CartPole-v1", (framework, traced))
    outcome = call("trace", traces, "--policy", checkpoint, "--framework", framework, "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["agrees"] == 1.0


def test_another_policy_agrees_sometimes(call, cartpole, trained, tmp_path):
    checkpoint, traces = cartpole
    batch = JsonReader(traces).read_all().copy()
    flipped = np.arange(len(batch)) % 4 == 0
    batch["actions"] = np.where(flipped, 1 - batch["actions"], batch["actions"])
    with JsonWriter(tmp_path / "other") as writer:
        writer.write(batch)
    outcome = call("trace", str(tmp_path / "other"), "--policy", checkpoint)
    expected = f"policy  agrees at {int((~flipped).sum())} of {len(batch)} steps, 75 %"
    assert outcome.status == 0 and expected in outcome.out
    label = next(line.split()[0] for line in outcome.out.split("\n\n")[1].splitlines()[1:])
    argv = ["trace", str(tmp_path / "other"), "-e", label, "--policy", checkpoint]
    steps = json.loads(call(*argv, "--json").out)["steps"]
    policy = polylib.load_policy(checkpoint)
    for step in steps[:20]:
        obs = np.array(step["obs"], np.float32)
        assert step["policy"]["actions"] == policy.compute_single_action(obs, explore=False)
        assert step["policy"]["agrees"] == (step["policy"]["actions"] == step["actions"])
        logp = policy.compute_log_likelihoods(np.array([step["actions"]]), obs[None])
        assert step["policy"]["probability"] == pytest.approx(float(np.exp(logp[0])), rel=1e-5)
    text = call(*argv).out
    assert text.split("\n\n")[1].count(" * ") == sum(not step["policy"]["agrees"] for step in steps)


def test_box_actions_have_a_difference(call, trained):
    checkpoint, traces = trained("Pendulum-v1", next(mode for mode in reversed(MODES) if has(mode[0])))
    outcome = call("trace", traces, "--policy", checkpoint)
    assert "100 % (to 5% of the space's width; mean difference" in outcome.out
    # RLlib writes them in [-1, 1]: the same numbers mean others.
    half = call("trace", traces, "--policy", checkpoint, "--actions-normalized", "--json")
    assert json.loads(half.out)["episodes"][0]["action_difference"] > 0


def test_a_policy_for_other_spaces(call, cartpole):
    outcome = call("trace", str(DATA / "pendulum_sac"), "--policy", cartpole[0])
    assert outcome.status == 2
    assert outcome.error == (
        "--policy: it can't act on episode 427055806170096947: column 'obs' has shape [200, 3], expected [B, 4]"
    )


def test_a_recurrent_policy_keeps_its_own_memory(call, tmp_path):
    mode = next(mode for mode in reversed(MODES) if has(mode[0]))
    model = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    config = small_ppo("CartPole-v1", mode, seed=3, model=model, output=str(tmp_path / "traces"), explore=False)
    with config.build() as algo:
        before = algo.get_weights()
        algo.train()
        algo.set_weights(before)
        algo.save(str(tmp_path / "checkpoint"))
    outcome = call("trace", str(tmp_path / "traces"), "--policy", str(tmp_path / "checkpoint"), "--json")
    assert outcome.status == 0, outcome.err
    whole = [episode for episode in json.loads(outcome.out)["episodes"] if not episode["gaps"]]
    assert whole and all(episode["agrees"] == 1.0 for episode in whole)


# --- what won't do ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "which traces? none were given, expected files or folders: polylib trace /tmp/debug"),
        (["--compare", "a"], "--compare: got 'a', expected two folders or files: --compare A B"),
        (["a", "--from", "3"], "--from: it is for one episode: say which with --episode ID"),
        (["a", "--full"], "--full: it is for one episode"),
        (["a", "-e", "1", "--from", "3", "--to", "2"], "--from 3 --to 2: the first step is after the last"),
        (["a", "-e", "1", "--html", "x.html"], "--episode and --html are two things"),
        (["a", "--json", "--html", "x.html"], "--json and --html are two things"),
        (["a", "b", "-e", "1", "--compare"], "--episode and --compare are two things"),
        (["a", "--framework", "torch"], "--framework: it is for a policy beside the traces"),
        (["a", "--sort", "retrun"], "expected one of order, return, length, id. Did you mean 'return'?"),
        (["a", "--epsiode", "1"], "unknown flag '--epsiode'. Did you mean '--episode'? See --help"),
        (["nowhere"], "no traces to read: there is no file or folder "),
        (["a", "--policy", "nowhere"], "there is no checkpoint "),
    ],
)
def test_wrong_command_lines(call, argv, message):
    outcome = call("trace", *argv)
    assert outcome.status == 2 and outcome.out == "" and message in outcome.error


def test_an_episode_that_isnt_there(call):
    folder = str(DATA / "cartpole_plain")
    outcome = call("trace", folder, "--episode", "427155806170096947")
    assert outcome.status == 2
    assert "427155806170096947: there is no such episode. Near it: 427055806170096947" in outcome.error
    outcome = call("trace", folder, "--episode", "4")
    assert outcome.error.startswith("--episode 4: 4 episodes begin so: 427055806170096947, 4327")
    outcome = call("trace", folder, "--episode", "427", "--from", "15")
    assert outcome.error == "--from and --to: episode 427055806170096947 has the steps 0 to 14"
    outcome = call("trace", folder, "--policy-id", "p7")
    assert outcome.error == "--policy-id: got 'p7', the traces have 'default_policy'"


def test_lines_that_are_left_out_are_named(call, tmp_path):
    (file,) = (DATA / "cartpole_lz4").glob("*.json")
    text = file.read_text()
    (tmp_path / "x.json").write_text(text + text[:5000])
    outcome = call("trace", str(tmp_path))
    assert outcome.status == 0 and "19 episodes" in outcome.out
    assert len(outcome.notes) == 1 and "x.json, line 2: not whole JSON" in outcome.notes[0]
    (tmp_path / "x.json").write_text(text[:5000])
    assert "no record in" in call("trace", str(tmp_path)).error


def test_records_without_the_usual_columns(call, tmp_path):
    (tmp_path / "x.json").write_text('{"type": "SampleBatch", "actions": [0, 1], "dones": [false, true]}\n')
    outcome = call("trace", str(tmp_path))
    assert outcome.status == 0 and "1 episode, 2 steps" in outcome.out
    assert [note.partition(":")[0] for note in outcome.notes] == [
        "policy default_policy", "no column 'obs'", "no column 'rewards'"
    ]  # fmt: skip
    assert call("trace", str(tmp_path), "-e", "0").out.splitlines()[-1].split() == ["1", "1", "-"]
    (tmp_path / "x.json").write_text('{"type": "SampleBatch", "obs": [], "actions": []}\n')
    assert call("trace", str(tmp_path)).error.endswith("the records hold no steps")


def test_help(call):
    outcome = call("trace", "--help")
    assert outcome.status == 0 and outcome.err == ""
    for flag in ("--episode", "--from", "--html", "--compare", "--policy", "--json", "--actions-normalized"):
        assert flag in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 120
    assert "\n  trace " in call("--help").out


def test_the_script(tmp_path):
    shutil.copytree(DATA / "pendulum_sac", tmp_path / "traces")
    done = subprocess.run(
        [sys.executable, str(ROOT / "bin" / "trace"), "traces"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("traces: 1 file, 2 records, 2 episodes")


def test_listing_loads_no_framework():
    code = (
        "import sys; from polylib.cli.main import main; status = main(['trace', sys.argv[1], '--limit', '0']); "
        "print([n for n in ('tensorflow', 'keras', 'torch', 'ray') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(DATA / "pendulum_sac")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("values", [[1e300], [-1e308, 1e308], [1e16, 1e16 + 2], [3.0]], ids=repr)
def test_values_too_large_or_too_close_for_bins(values):
    drawn = sparkline(values, min(values), max(values))
    assert drawn.strip() and len(drawn) == 6
