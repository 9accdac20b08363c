from __future__ import annotations

import pytest

from polylib.cli.flags import UsageError, asks_for_help, normalise, parse
from polylib.cli.train_flags import TRAIN_FLAGS

SPELLINGS = [
    ("", ""),
    ("--algo PPO", "--algo=PPO"),
    ("--algo=PPO", "--algo=PPO"),
    ("-algo PPO", "--algo=PPO"),
    ("--run PPO", "--algo=PPO"),
    ("-a PPO", "--algo=PPO"),
    ("-r PPO", "--algo=PPO"),
    ("-rPPO", "--algo=PPO"),
    ("-a=PPO", "--algo=PPO"),
    ("-e X -c {} -s {} -n N", "--env=X --config={} --stop={} --experiment_name=N"),
    ("--num-samples 2", "--num_samples=2"),
    ("--num_samples=2", "--num_samples=2"),
    ("--ray_num-cpus 2", "--ray_num_cpus=2"),
    ("--trace", "--trace"),
    ("--no-trace", "--notrace"),
    ("--no_trace", "--notrace"),
    ("--notrace", "--notrace"),
    ("--trace=false", "--trace=false"),
    ("--local_mode --print_config", "--local_mode --print_config"),
    ("-v", "--verbosity=1"),
    ("-vv", "--verbosity=2"),
    ("-v -v", "--verbosity=2"),
    ("-vvv", "--verbosity=2"),
    ("--algo PPO -v", "--verbosity=1 --algo=PPO"),
    ("file exp.py --algo PPO", "file exp.py --algo=PPO"),
    ("--algo PPO -- --env", "--algo=PPO -- --env"),
    ('--config {"a":-1}', '--config={"a":-1}'),
    ("--config={}=x", "--config={}=x"),
    ("--ray-num-cpus -1", "--ray_num_cpus=-1"),
]


@pytest.mark.parametrize(("typed", "expected"), SPELLINGS)
def test_spellings(typed, expected):
    assert normalise(typed.split(), TRAIN_FLAGS) == expected.split()


def test_a_line_of_a_flagfile_is_one_token():
    assert normalise(['--config {"num_workers": 2}', "--algo\tPPO"], TRAIN_FLAGS) == [
        '--config={"num_workers": 2}',
        "--algo=PPO",
    ]


WRONG = [
    ("--framwork tf", "unknown flag '--framwork'. Did you mean '--framework'? See --help"),
    ("--num-sample 2", "unknown flag '--num-sample'. Did you mean '--num-samples'? See --help"),
    ("--no-tracing", "unknown flag '--no-tracing'. Did you mean '--no-trace'? See --help"),
    ("--no-algo", "unknown flag '--no-algo'. Did you mean '--algo'? See --help"),
    ("-x", "unknown flag '-x'. See --help"),
    ("--verbosity=3", "unknown flag '--verbosity'. See --help"),
    ("--undefok=x --x", "unknown flag '--undefok'. See --help"),
    ("--env", "flag --env needs a value: --env NAME"),
    ("--env --algo PPO", "flag --env needs a value: --env NAME"),
    ("-e -v", "flag --env needs a value: --env NAME"),
    ("--num-samples 0", "flag --num-samples=0: expected an integer >= 1"),
    ("--num_samples two", "flag --num-samples=two: expected an integer >= 1"),
    ("--ray-num-gpus 0.5", "flag --ray-num-gpus=0.5: expected an integer >= 0"),
    ("--framework tensorflow", "flag --framework=tensorflow: expected one of tf, tf2, torch"),
    ("--framework Torch", "flag --framework=Torch: expected one of tf, tf2, torch. Did you mean 'torch'?"),
    ("--trace=perhaps", "flag --trace=perhaps"),
    ("--flagfile /no/such/file", "flag --flagfile: Unable to open flagfile"),
    ("--flagfile", "flag --flagfile: --flagfile with no argument"),
]


@pytest.mark.parametrize(("typed", "message"), WRONG)
def test_wrong_flags(call, typed, message):
    with pytest.raises(UsageError) as error:
        parse(typed.split(), TRAIN_FLAGS)
    assert str(error.value).startswith(message)
    outcome = call("train", *typed.split())
    assert outcome.status == 2 and outcome.out == "" and outcome.error.startswith(message)


def test_defaults_and_what_was_given():
    line = parse([], TRAIN_FLAGS)
    assert line["algo"] is None and line["trace"] is None and line["local-mode"] is False
    assert line["num-samples"] == 1 and line["local-dir"] == "~/ray_results" and line.verbosity == 0
    assert not any(line.given(flag.name) for flag in TRAIN_FLAGS)
    line = parse(["--no-trace", "--num-samples=1", "-vv"], TRAIN_FLAGS)
    assert line["trace"] is False and line.given("trace") and line.given("num-samples") and line.verbosity == 2


def test_the_last_one_counts():
    assert parse(["--algo", "A", "--run=B"], TRAIN_FLAGS)["algo"] == "B"


def test_flagfile(tmp_path):
    inner = tmp_path / "inner.flags"
    inner.write_text("--num_samples=3\n-v\n")
    outer = tmp_path / "outer.flags"
    outer.write_text(f'# comment\n\n--run=PPO\n--config {{"num_workers": 2}}\n--notrace\n--flagfile={inner}\n')
    line = parse(["--flagfile", str(outer), "--algo", "DQN", "file", "x.py"], TRAIN_FLAGS)
    assert line["algo"] == "DQN"  # the command line comes later
    assert line["config"] == '{"num_workers": 2}' and line["trace"] is False
    assert line["num-samples"] == 3 and line.verbosity == 1 and line.words == ["file", "x.py"]


def test_flags_are_not_in_the_process_wide_flags():
    from absl import flags

    parse(["-v"], TRAIN_FLAGS)
    assert not {"num_samples", "local_mode", "trace"} & set(flags.FLAGS)


def test_asking_for_help():
    assert asks_for_help(["--algo", "PPO", "--help"]) and asks_for_help(["-h"])
    assert not asks_for_help(["--algo", "PPO", "--", "--help"]) and not asks_for_help([])
