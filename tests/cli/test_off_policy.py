"""Off-policy estimators on the command line, where everything is a string."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from modes import has

from polylib.offline.json_writer import JsonWriter
from polylib.policy.sample_batch import SampleBatch

pytestmark = pytest.mark.skipif(not has("torch"), reason="torch isn't installed")


def test_estimates_in_the_result(call, results, tmp_path):
    rng = np.random.default_rng(0)
    rows = 200
    batch = SampleBatch(
        obs=rng.uniform(-1, 1, (rows, 4)).astype(np.float32),
        new_obs=rng.uniform(-1, 1, (rows, 4)).astype(np.float32),
        actions=rng.integers(0, 2, rows),
        rewards=np.ones(rows, np.float32),
        terminateds=np.arange(rows) % 10 == 9,
        truncateds=np.zeros(rows, bool),
        action_logp=np.full(rows, -np.log(2), np.float32),
        eps_id=np.arange(rows) // 10,
        t=np.arange(rows) % 10,
    )
    JsonWriter(tmp_path / "log").write(batch)
    config = {
        "train_batch_size": 40,
        "sgd_minibatch_size": 40,
        "num_workers": 0,
        "model": {"fcnet_hiddens": [8]},
        "gamma": 1.0,
        "evaluation_interval": 1,
        "evaluation_duration": 1,
        "evaluation_config": {"input": str(tmp_path / "log")},
        "off_policy_estimation_methods": {
            "a": {"type": "wis"},
            "b": {"type": "polylib.offline.estimators.DirectMethod", "q_model_config": {"n_iters": 1}},
        },
    }
    argv = ("--algo", "PPO", "--env", "CartPole-v1", "--config", json.dumps(config), "--framework", "torch")
    stop = ("--stop", json.dumps({"training_iteration": 1}), "--local-dir", results, "--local-mode")
    outcome = call("train", *argv, *stop)
    assert outcome.status == 0, outcome.err
    (file,) = results_of(results)
    found = json.loads(file.read_text().splitlines()[-1])["evaluation"]["off_policy_estimator"]
    assert found["a"]["v_behavior"] == 10.0 and found["a"]["v_target"] == pytest.approx(10.0, rel=1e-6)
    assert found["a"]["episodes"] == 20 and 1 < found["a"]["ess"] < 20
    assert np.isfinite(found["b"]["v_target"])

    config["off_policy_estimation_methods"]["a"] = {"type": "wiz"}
    outcome = call("train", *argv[:5], json.dumps(config), *argv[6:], *stop)
    assert outcome.status != 0 and "no estimator 'wiz'. Did you mean 'wis'?" in outcome.err


def results_of(folder):
    return Path(folder).glob("*/*/result.json")
