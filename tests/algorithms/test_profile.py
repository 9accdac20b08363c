"""Where the time goes: timers that add up, and profiles that people can read."""

import pytest
from fakes import MatchEnv, small_ppo
from modes import has

from polylib.errors import ConfigError
from polylib.profiling import Profile

pytestmark = pytest.mark.skipif(not has("torch"), reason="needs torch")


def test_timers_add_up_to_the_iteration():
    """Within 5 % of the iteration's wall time; long enough for what lies between to be small."""
    with small_ppo("CartPole-v1", train_batch_size=2000, num_sgd_iter=3).build() as algo:
        algo.train()
        result = algo.train()
    timers = result["timers"]
    parts = sum(timers[f"{name}_time_ms"] for name in ("sample", "learn", "synch_weights"))
    assert 0.95 * timers["training_iteration_time_ms"] <= parts <= timers["training_iteration_time_ms"]
    assert timers["training_iteration_time_ms"] <= 1000 * result["time_this_iter_s"]


def test_a_profile_of_the_driver(tmp_path):
    pytest.importorskip("pyinstrument")
    algo = small_ppo("CartPole-v1", profile=True).build()
    algo._logdir = str(tmp_path)
    algo.train()
    algo.stop()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["profile-driver.html", "profile-driver.txt"]
    text = (tmp_path / "profile-driver.txt").read_text()
    assert "training_step" in text and "polylib/algorithms/ppo/ppo.py" in text


def test_a_profile_of_one_worker(ray_session, tmp_path, monkeypatch):
    pytest.importorskip("pyinstrument")
    config = small_ppo(MatchEnv, profile=True, num_workers=2, num_cpus_per_worker=0.5, rollout_fragment_length=300)
    monkeypatch.setattr("polylib.algorithms.ppo.ppo.PPO.run_folder", lambda self: str(tmp_path))
    algo = config.build()
    algo.train()
    algo.stop()
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"profile-driver.html", "profile-driver.txt", "profile-worker-1.html", "profile-worker-1.txt"}
    assert "RolloutWorker.sample" in (tmp_path / "profile-worker-1.txt").read_text()


def test_without_pyinstrument(block_import):
    block_import("pyinstrument")
    with pytest.raises(ConfigError, match=r"'profile': needs pyinstrument.*polylib\[profile\]"):
        Profile("driver")
