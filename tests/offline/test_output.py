"""The writer that a config asks for."""

from __future__ import annotations

import errno

import pytest
from gymnasium.spaces import Box, Discrete
from modes import has
from offline.batches import cartpole

from polylib.errors import ConfigError, ConfigTypeError
from polylib.offline import IOContext, JsonReader, JsonWriter, TraceFileError, json_writer, make_output, spaces_of


def test_no_output_no_writer():
    assert make_output({}) is None
    assert make_output({"output": None, "output_config": {}}) is None


def test_a_folder(tmp_path):
    writer = make_output({"output": str(tmp_path / "x"), "output_max_file_size": 123}, worker_index=2)
    assert isinstance(writer, JsonWriter) and writer.path == tmp_path / "x" and writer.worker_index == 2
    assert writer.max_file_size == 123
    assert writer.compress_columns == {"obs", "new_obs"} and writer.format == "json"


def test_the_folder_of_the_runs_results(tmp_path):
    assert make_output({"output": "logdir"}, logdir=str(tmp_path)).path == tmp_path
    with pytest.raises(ConfigError, match="output='logdir': this run has no folder"):
        make_output({"output": "logdir"})


def test_columns_and_format(tmp_path):
    config = {"output": tmp_path, "output_compress_columns": [], "output_config": {"format": "polylib"}}
    writer = make_output(config)
    assert writer.compress_columns == frozenset() and writer.format == "polylib"
    writer.write(cartpole())
    assert len(JsonReader(tmp_path).next()) == 6


def test_what_to_do_on_errors_and_the_spaces(tmp_path):
    spaces = (Box(-1, 1, (4,)), Discrete(2))
    writer = make_output({"output": tmp_path, "output_config": {"on_error": "warn"}}, spaces=spaces)
    assert writer.on_error == "warn" and make_output({"output": tmp_path}).on_error == "raise"
    writer.write(cartpole())
    assert spaces_of(tmp_path) == spaces


def test_a_function_is_told_about_the_run(tmp_path):
    seen = []

    class Writer:
        def write(self, batch):
            seen.append(batch)

    def make(context: IOContext) -> Writer:
        seen.append((context.log_dir, context.worker_index, context.worker, context.output_config))
        return Writer()

    writer = make_output({"output": make, "output_config": {"of": "mine"}}, 3, "/somewhere", worker="w")
    assert isinstance(writer, Writer) and seen == [("/somewhere", 3, "w", {"of": "mine"})]


@pytest.mark.parametrize(
    "config, error, text",
    [
        ({"output": 3}, ConfigTypeError, "output=3: expected a folder"),
        ({"output": ""}, ConfigTypeError, "output='': expected a folder"),
        ({"output": lambda context: None}, ConfigTypeError, "output=.* returned None: expected a writer"),
        ({"output_compress_columns": "obs"}, ConfigTypeError, "output_compress_columns='obs'"),
        ({"output_compress_columns": [1]}, ConfigTypeError, r"output_compress_columns=\[1\]"),
        ({"output_config": {"fromat": "json"}}, ConfigError, "no key 'fromat'.*Did you mean 'format'"),
        (
            {"output_config": {"format": "csv"}},
            ConfigError,
            "output_config: format='csv': expected 'json' or 'polylib'",
        ),
        ({"output_config": {"on_error": "stop"}}, ConfigError, "on_error='stop': expected 'raise' or 'warn'"),
        ({"output": "s3://bucket/x"}, TraceFileError, "s3://bucket/x"),
    ],
)
def test_mistakes_name_the_key(config, error, text, tmp_path):
    with pytest.raises(error, match=text):
        make_output({"output": str(tmp_path), **config})


@pytest.mark.skipif(not has("torch"), reason="needs torch")
def test_training_goes_on_or_stops_when_the_disk_is_full(tmp_path, monkeypatch, caplog):
    from polylib.algorithms.ppo import PPOConfig

    def full(file, line):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json_writer, "_write_whole", full)
    for on_error in ("warn", "raise"):
        config = PPOConfig().environment("CartPole-v1").framework("torch").training(train_batch_size=64)
        config.update_from_dict({"num_workers": 0, "sgd_minibatch_size": 64, "num_sgd_iter": 1})
        config.offline_data(output=str(tmp_path), output_config={"on_error": on_error})
        algo = config.build()
        try:
            if on_error == "raise":
                with pytest.raises(TraceFileError, match="the disk is full: a record of .* could not be written"):
                    algo.train()
            else:
                assert algo.train()["num_env_steps_sampled"] >= 64
                assert "record lost (1 so far): " in caplog.text and "the disk is full" in caplog.text
        finally:
            algo.stop()
