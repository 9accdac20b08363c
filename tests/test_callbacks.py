"""Callbacks: which hook is called when, how often and with what, and what comes of it."""

from __future__ import annotations

import math
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fakes import MatchEnv, RandomEpisodes, ScriptEnv, UsersVectorEnv, small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.callbacks import HOOKS, CallbackError, Callbacks, DefaultCallbacks, callback_classes, make_callbacks
from polylib.errors import ConfigError, ConfigTypeError
from polylib.evaluation import rollout_worker
from polylib.evaluation.episode import info_of
from polylib.evaluation.rollout_worker import RolloutWorker

NUMPY = ("numpy", False)
PER_STEP = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class Recorder(DefaultCallbacks):
    """Notes every call: its hook and its arguments."""

    log: list[tuple[str, dict[str, Any]]] = []


def _noting(hook):
    def note(self, **kwargs):
        Recorder.log.append((hook, kwargs))

    return note


for _hook in HOOKS:
    setattr(Recorder, _hook, _noting(_hook))


@pytest.fixture(autouse=True)
def log():
    """What `Recorder` noted in this test."""
    Recorder.log.clear()
    return Recorder.log


@pytest.fixture
def build():
    """Algorithms that are stopped when the test ends."""
    made = []

    def make(env=MatchEnv, **keys):
        made.append(small_ppo(env, **{"train_batch_size": 40, "sgd_minibatch_size": 20, **keys}).build())
        return made[-1]

    make.add = lambda algo: made.append(algo) or algo
    yield make
    for algo in made:
        algo.stop()


def make_worker(env, callbacks=Recorder, **keys):
    config = small_ppo(env, NUMPY, callbacks=callbacks, **keys)
    return RolloutWorker(config, PPOObjective, NUMPY)


def hooks_of(log):
    return [hook for hook, _ in log]


class Episodes(DefaultCallbacks):
    """Notes what is known of an episode at each of its hooks."""

    log: list[tuple[Any, ...]] = []

    def _note(self, hook, episode, env_index):
        assert episode.env_id == env_index
        last = (episode.last_observation_for(), episode.last_action_for(), episode.last_reward_for())
        obs, action, reward = (None if value is None else np.array(value).tolist() for value in last)
        Episodes.log.append((env_index, hook, episode.length, episode.total_reward, obs, action, reward))

    def on_episode_created(self, *, worker, base_env, policies, env_index, episode, **kwargs):
        self._note("created", episode, env_index)

    def on_episode_start(self, *, worker, base_env, policies, env_index, episode, **kwargs):
        self._note("start", episode, env_index)

    def on_episode_step(self, *, worker, base_env, policies, env_index, episode, **kwargs):
        self._note("step", episode, env_index)

    def on_episode_end(self, *, worker, base_env, policies, env_index, episode, **kwargs):
        self._note("end", episode, env_index)


@pytest.fixture
def episodes():
    """What `Episodes` noted in this test."""
    Episodes.log.clear()
    return Episodes.log


# --- the episode hooks


def test_the_life_of_an_episode(episodes):
    worker = make_worker(
        ScriptEnv,
        Episodes,
        env_config={"episodes": [[0, 1, 2], [5, 6]], "rewards": [[0.5, 1.5], [7.0]], "reuse": True},
        rollout_fragment_length=4,
        train_batch_size=4,
    )
    batch = worker.sample()
    act = batch["actions"].tolist()
    assert episodes == [
        (0, "created", 0, 0.0, None, None, 0.0),
        (0, "start", 0, 0.0, [0.0], None, 0.0),
        (0, "step", 1, 0.5, [1.0], act[0], 0.5),
        (0, "step", 2, 2.0, [2.0], act[1], 1.5),
        (0, "end", 2, 2.0, [2.0], act[1], 1.5),
        (0, "created", 0, 0.0, None, None, 0.0),
        (0, "start", 0, 0.0, [5.0], None, 0.0),
        (0, "step", 1, 7.0, [6.0], act[2], 7.0),
        (0, "end", 1, 7.0, [6.0], act[2], 7.0),
        (0, "created", 0, 0.0, None, None, 0.0),
        (0, "start", 0, 0.0, [0.0], None, 0.0),
        (0, "step", 1, 0.5, [1.0], act[3], 0.5),
    ]


def test_arguments_of_the_episode_hooks(log):
    worker = make_worker(ScriptEnv, num_envs_per_worker=2, rollout_fragment_length=4)
    batch = worker.sample()
    calls = [(hook, kwargs) for hook, kwargs in log if hook in PER_STEP]
    for _, kwargs in calls:
        assert set(kwargs) == {"worker", "base_env", "policies", "episode", "env_index"}
        assert kwargs["worker"] is worker and kwargs["base_env"] is worker.env
        assert kwargs["policies"] is worker.policy_map
        assert kwargs["episode"].worker is worker
    # one object per episode, known by the id of its rows
    ids = {id(kwargs["episode"]): kwargs["episode"].episode_id for _, kwargs in calls}
    assert sorted(ids.values()) == [0, 1, 2, 3] and set(batch["eps_id"].tolist()) == {0, 1, 2, 3}
    for env in (0, 1):
        seen = [hook for hook, kwargs in calls if kwargs["env_index"] == env]
        first, step = ["on_episode_created", "on_episode_start"], "on_episode_step"
        assert seen == [*first, step, step, step, "on_episode_end", *first, step]


def vector_env(mode):
    return lambda config: UsersVectorEnv([RandomEpisodes(place=i) for i in range(3)], mode)


def test_all_autoreset_modes_tell_the_same_story(episodes):
    """Whatever an environment resets when: the steps of every episode, with its true last observation."""
    stories = {}
    for mode in AutoresetMode:
        episodes.clear()
        worker = make_worker(vector_env(mode), Episodes, rollout_fragment_length=30, explore=False)
        for _ in range(3):
            worker.sample()
        metrics = worker.get_metrics()
        stories[mode] = [[note[1:] for note in episodes if note[0] == env] for env in range(3)]
        for story in stories[mode]:
            lengths = [note[1] for note in story if note[0] == "end"]
            assert len(lengths) > 3
            for before, note in zip(story, story[1:], strict=False):
                if note[0] == "end":  # [place, episode, t], not the next episode's first
                    assert before[0] == "step" and note[3][2] == note[1] == before[1] and before[3] == note[3]
        assert sorted(e.episode_length for e in metrics) == sorted(
            note[1] for story in stories[mode] for note in story if note[0] == "end"
        )
    for env in range(3):
        one, two, three = (story[env] for story in stories.values())
        # In NEXT_STEP some steps only reset, so it doesn't get as far; where an episode is created differs by a moment.
        shortest = min(map(len, (one, two, three))) - 2
        assert one[:shortest] == two[:shortest] == three[:shortest] and shortest > 40


class Informed(gym.Env):
    """Says in its info which episode and step it is."""

    def __init__(self, length=3):
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
        self.length, self.episode = length, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {"at": (self.episode, 0), "first": True, "nested": {"deep": {"t": 0}}}

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        info = {"at": (self.episode, self.t), "nested": {"deep": {"t": self.t}}, **({"won": 1} if over else {})}
        return np.zeros(1, np.float32), 1.0, over, False, info


class Infos(DefaultCallbacks):
    """Collects the infos that the hooks see."""

    log: list[Any] = []

    def on_episode_start(self, *, episode, env_index, **kwargs):
        Infos.log.append((env_index, "start", dict(episode.last_info_for())))

    def on_episode_step(self, *, episode, env_index, **kwargs):
        Infos.log.append((env_index, "step", dict(episode.last_info_for())))

    def on_episode_end(self, *, episode, env_index, **kwargs):
        Infos.log.append((env_index, "end", dict(episode.last_info_for())))


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_infos_belong_to_their_step(mode):
    """Gymnasium's own vector environments put the last step's info elsewhere when they reset in the same step."""
    Infos.log.clear()
    makers = [lambda: Informed(3), lambda: Informed(2)]
    worker = make_worker(lambda config: SyncVectorEnv(makers, autoreset_mode=mode), Infos, rollout_fragment_length=8)
    worker.sample()
    for env, length in ((0, 3), (1, 2)):
        story = [note[1:] for note in Infos.log if note[0] == env]
        first = next(info["at"][0] for kind, info in story if kind == "start")
        expected = []
        for episode in range(first, first + 3):
            expected.append(("start", {"at": (episode, 0), "first": True, "nested": {"deep": {"t": 0}}}))
            for t in range(1, length):
                expected.append(("step", {"at": (episode, t), "nested": {"deep": {"t": t}}}))
            last = {"at": (episode, length), "won": 1, "nested": {"deep": {"t": length}}}
            expected += [("step", last), ("end", last)]
        story = [(kind, {key: v if key != "at" else tuple(v) for key, v in info.items()}) for kind, info in story]
        common = min(len(story), len(expected))
        assert story[:common] == expected[:common] and common > 8


def test_an_error_ends_the_episodes_under_way(episodes):
    class Fragile(ScriptEnv):
        broken = False

        def step(self, action):
            if Fragile.broken:
                raise RuntimeError("broken")
            return super().step(action)

    worker = make_worker(Fragile, Episodes, env_config={"episodes": [list(range(9))]}, rollout_fragment_length=4)
    worker.sample()
    Fragile.broken = True
    with pytest.raises(Exception, match="broken"):
        worker.sample()
    Fragile.broken = False
    episodes.clear()
    worker.sample()
    assert [note[1:3] for note in episodes][:4] == [("created", 0), ("start", 0), ("step", 1), ("step", 2)]


def test_infos_of_other_peoples_vector_environments():
    infos = {"a": np.array([1, 2]), "_a": np.array([True, False]), "all": "text", 3: [4, 5], "short": [1], "_x": 0}
    assert info_of(infos, 0) == {"a": 1, "all": "text", 3: 4, "short": 1}
    assert info_of(infos, 1) == {"all": "text", 3: 5, "short": [1]}
    assert info_of([{}, {}], 0) == info_of(None, 0) == {}


def test_gymnasiums_episode_statistics(build):
    """A wrapper whose info is a dict."""
    wrapped = lambda config: gym.wrappers.RecordEpisodeStatistics(MatchEnv(config))  # noqa: E731
    result = build(wrapped, callbacks=Statistics, num_envs_per_worker=2).train()
    assert result["custom_metrics"]["r_mean"] == pytest.approx(result["episode_reward_mean"])


class Statistics(DefaultCallbacks):
    """Takes over what the wrapper has counted."""

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["r"] = float(episode.last_info_for()["episode"]["r"])


# --- the others


def test_every_hook_of_a_run(build, log, tmp_path):
    algo = build(
        callbacks=Recorder, evaluation_interval=2, evaluation_duration=2, num_envs_per_worker=2, train_batch_size=40
    )
    assert hooks_of(log) == ["on_sub_environment_created"] * 2 * 2 + ["on_algorithm_init"]
    worker = algo.workers.local_worker()
    kwargs = log[1][1]
    assert kwargs["worker"] is worker and kwargs["env_index"] == 1 and kwargs["sub_environment"] is worker.env.envs[1]
    assert kwargs["env_context"].vector_index == 1 and kwargs["env_context"].worker_index == 0
    assert log[-1][1] == {"algorithm": algo}
    log.clear()
    result = algo.train()
    others = [(hook, kwargs) for hook, kwargs in log if hook not in PER_STEP]
    assert hooks_of(others) == ["on_postprocess_trajectory", "on_sample_end", "on_learn_on_batch", "on_train_result"]
    assert {hook: hooks_of(log).count(hook) for hook in PER_STEP} == {
        "on_episode_created": 2 + 4, "on_episode_start": 2 + 4, "on_episode_step": 40, "on_episode_end": 4,
    }
    post, sampled, learn, train = (kwargs for _, kwargs in others)
    assert post["worker"] is worker and post["policy_id"] == "default_policy" and post["agent_id"] == "agent0"
    assert post["policies"] is worker.policy_map and post["postprocessed_batch"] is sampled["samples"]
    policy_id, policy_class, original = post["original_batches"]["agent0"]
    assert policy_id == "default_policy" and policy_class is type(algo.get_policy())
    assert original.count == 40 and "rewards" in original
    assert sampled["worker"] is worker and sampled["samples"].count == 40 and "advantages" in sampled["samples"]
    assert learn["policy"] is algo.get_policy() and learn["train_batch"].count == 40
    assert train["algorithm"] is algo and train["result"] is result
    log.clear()
    result = algo.train()
    others = [(hook, kwargs) for hook, kwargs in log if hook not in PER_STEP]
    assert hooks_of(others)[3:] == ["on_evaluate_start", "on_evaluate_end", "on_train_result"]
    start, end, _ = (kwargs for _, kwargs in others[3:])
    assert start == {"algorithm": algo}
    assert end == {"algorithm": algo, "evaluation_metrics": result["evaluation"]}
    log.clear()
    algo.save(tmp_path / "c")
    assert not log
    algo.restore(tmp_path / "c")
    # Unfinished episodes are lived through again; here there is none: 20 steps each are two whole episodes.
    loaded = [call for call in log if call[0] not in ("on_episode_created", "on_episode_start")]
    assert loaded == [("on_checkpoint_loaded", {"algorithm": algo})]
    log.clear()
    again = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"callbacks": Recorder}, MatchEnv))
    order = [call for call in log if call[0] in ("on_algorithm_init", "on_checkpoint_loaded")]
    assert order == [("on_algorithm_init", {"algorithm": again}), ("on_checkpoint_loaded", {"algorithm": again})]


class Changing(DefaultCallbacks):
    """Changes what it is given."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **kwargs):
        postprocessed_batch["advantages"] = np.arange(len(postprocessed_batch["advantages"]), dtype=np.float32)

    def on_sample_end(self, *, samples, **kwargs):
        samples["advantages"][:] = samples["advantages"] * 2 + 1

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        result["first_advantages"] = train_batch["advantages"][:3].tolist()
        result["kl_coeff"] = policy.coefficients["kl_coeff"]

    def on_train_result(self, *, algorithm, result, **kwargs):
        result["own"] = {"iteration": algorithm.iteration}
        del result["hist_stats"]
        result["done"] = True

    def on_evaluate_end(self, *, algorithm, evaluation_metrics, **kwargs):
        evaluation_metrics["own"] = 5


def test_what_hooks_change_counts(build):
    algo = build(callbacks=Changing, standardize_advantages=False, evaluation_interval=1, evaluation_duration=1)
    result = algo.train()
    learner = result["info"]["learner"]["default_policy"]
    assert learner["first_advantages"] == [1.0, 3.0, 5.0] and learner["kl_coeff"] == pytest.approx(0.2)
    assert result["own"] == {"iteration": 1} and result["done"] is True and "hist_stats" not in result
    assert result["evaluation"]["own"] == 5
    assert algo.evaluate()["own"] == 5


class Measuring(DefaultCallbacks):
    """Measures episodes."""

    def on_episode_start(self, *, episode, **kwargs):
        episode.user_data["seen"] = []

    def on_episode_step(self, *, episode, **kwargs):
        episode.user_data["seen"].append(float(episode.last_reward_for()))

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["rewarded"] = sum(episode.user_data["seen"])
        episode.custom_metrics["steps"] = len(episode.user_data["seen"])
        episode.hist_data["rewards"] = episode.user_data["seen"]
        if episode.episode_id % 2:
            episode.custom_metrics["odd"] = 1.0


@pytest.mark.parametrize("num_envs", [1, 3])
def test_custom_metrics_in_results(build, num_envs):
    result = build(callbacks=Measuring, num_envs_per_worker=num_envs, train_batch_size=60).train()
    rewards = result["hist_stats"]["episode_reward"]
    metrics = result["custom_metrics"]
    assert len(rewards) == 6 and result["episode_reward_min"] < result["episode_reward_max"]
    for kind in ("mean", "min", "max"):
        assert metrics[f"rewarded_{kind}"] == pytest.approx(result[f"episode_reward_{kind}"])
        assert metrics[f"steps_{kind}"] == 10 and metrics[f"odd_{kind}"] == 1.0
    assert len(metrics) == 9
    seen = result["hist_stats"]["rewards"]
    assert len(seen) == 60 and [sum(seen[i : i + 10]) for i in range(0, 60, 10)] == rewards
    assert result["sampler_results"]["custom_metrics"] == metrics


def test_custom_metrics_as_lists(build):
    algo = build(callbacks=Measuring, keep_per_episode_custom_metrics=True)
    result = algo.train()
    assert set(result["custom_metrics"]) == {"rewarded", "steps", "odd"}
    assert result["custom_metrics"]["rewarded"] == result["hist_stats"]["episode_reward"]
    assert result["custom_metrics"]["steps"] == [10] * 4 and result["custom_metrics"]["odd"] == [1.0] * 2


def test_no_episode_no_metrics(build):
    result = build(ScriptEnv, callbacks=Measuring, env_config={"episodes": [list(range(100))]}).train()
    assert result["custom_metrics"] == {} and result["hist_stats"] == {"episode_reward": [], "episode_lengths": []}
    assert math.isnan(result["episode_reward_mean"])


@pytest.mark.parametrize("keys", [{}, {"num_envs_per_worker": 2}, {"batch_mode": "complete_episodes"}], ids=repr)
def test_metrics_go_on_over_a_checkpoint(build, tmp_path, keys):
    """An episode that was cut by it is measured from its beginning."""
    keys = {"callbacks": Measuring, "train_batch_size": 33, "env_config": {"length": 7}, **keys}
    unbroken = build(**keys)
    unbroken.train()
    unbroken.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"callbacks": Measuring}, MatchEnv))
    for _ in range(2):
        one, other = unbroken.train(), restored.train()
        assert one["custom_metrics"] == other["custom_metrics"] and one["hist_stats"] == other["hist_stats"]
    assert one["custom_metrics"]["steps_min"] == one["custom_metrics"]["steps_max"] == 7


def test_measuring_does_not_disturb(build):
    measured, plain = build(callbacks=[Measuring, Recorder]), build()
    for algo in (measured, plain):
        algo.train(), algo.train()
    one, other = (algo.get_weights()["default_policy"] for algo in (measured, plain))
    assert all(np.array_equal(one[key], other[key]) for key in one)


# --- evaluation


class EvalCounter(DefaultCallbacks):
    """Counts episodes."""

    started: list[int] = []
    ended: list[int] = []

    def on_episode_start(self, *, episode, **kwargs):
        EvalCounter.started.append(episode.episode_id)

    def on_episode_end(self, *, episode, **kwargs):
        EvalCounter.ended.append(episode.episode_id)
        episode.custom_metrics["mine"] = episode.total_reward


@pytest.mark.parametrize("duration", [1, 4, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_hooks_of_evaluation_episodes(build, duration, num_envs):
    """Those that count, and no others: environments that only wait for their neighbours are nobody's episodes."""
    EvalCounter.started.clear(), EvalCounter.ended.clear()
    algo = build(
        evaluation_duration=duration,
        evaluation_config={"callbacks": EvalCounter, "num_envs_per_worker": num_envs},
    )
    algo.train()
    assert not EvalCounter.started
    metrics = algo.evaluate()
    assert len(EvalCounter.started) == len(EvalCounter.ended) == len(set(EvalCounter.ended)) == duration
    assert metrics["custom_metrics"]["mine_mean"] == pytest.approx(metrics["episode_reward_mean"])
    assert metrics["episodes_this_iter"] == duration


# --- several of them, and mistakes


class First(DefaultCallbacks):
    """Before the second."""

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["order"] = 1.0

    def on_train_result(self, *, result, **kwargs):
        result["order"] = ["first"]


class Second(DefaultCallbacks):
    """After the first."""

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["order"] += 1.0

    def on_train_result(self, *, result, **kwargs):
        result["order"].append("second")


def test_several_are_called_in_their_order(build):
    result = build(callbacks=[First, Second]).train()
    assert result["order"] == ["first", "second"] and result["custom_metrics"]["order_mean"] == 2.0
    config = PPOConfig().callbacks([First, [Second]])
    assert callback_classes(config["callbacks"]) == [First, Second]
    assert callback_classes(PPOConfig().callbacks((First,))["callbacks"]) == [First]


def test_by_name(build, tmp_path, monkeypatch):
    (tmp_path / "users_module.py").write_text(
        "from polylib.callbacks import DefaultCallbacks\n"
        "class Mine(DefaultCallbacks):\n"
        "    def on_train_result(self, *, result, **kwargs):\n"
        "        result['mine'] = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    algo = build(callbacks="users_module:Mine")
    assert algo.train()["mine"] == 1 and algo.config["callbacks"] == "users_module:Mine"
    (mixed,) = [callback_classes(["users_module:Mine", First])]
    assert [cls.__name__ for cls in mixed] == ["Mine", "First"]
    sys.modules.pop("users_module")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "got 3, expected a subclass of polylib.callbacks.DefaultCallbacks"),
        (dict, "got <class 'dict'>, expected a subclass"),
        (First(), "expected a subclass"),
        (lambda: First, "expected a subclass"),
        ([First, 3], "got 3, expected a subclass"),
        ({"a": First}, "expected a subclass"),
        ("no_such_module:Mine", "can't import 'no_such_module:Mine' as 'module:Class': ModuleNotFoundError"),
        ("fakes:NoSuchClass", "can't import 'fakes:NoSuchClass' as 'module:Class': AttributeError"),
        ("fakes:MatchEnv", "got <class 'fakes.MatchEnv'>, expected a subclass"),
        ("fakes", "can't import 'fakes' as 'module:Class'"),
        ("", "can't import '' as 'module:Class'"),
    ],
)
def test_what_is_no_callbacks_class(value, said):
    """Said when the key is set, on every path."""
    for setting in (
        lambda: PPOConfig().callbacks(value),
        lambda: PPOConfig.from_dict({"callbacks": value}),
        lambda: PPOConfig().update_from_dict({"callbacks_class": value}),
        lambda: setattr(PPOConfig(), "callbacks_class", value),
        lambda: make_callbacks(value),
    ):
        with pytest.raises(ConfigTypeError) as caught:
            setting()
        assert str(caught.value).startswith("config key 'callbacks': ") and said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_module_that_raises(tmp_path, monkeypatch):
    (tmp_path / "raises_module.py").write_text("raise OSError('no\\nlicense')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="can't import 'raises_module:X' as 'module:Class': OSError: no license"):
        PPOConfig().callbacks("raises_module:X")


def raising(hook):
    """A class whose one hook raises."""

    def fail(self, **kwargs):
        raise ValueError(f"in {hook}")

    return type("Wrong", (DefaultCallbacks,), {hook: fail})


LIVE = [hook for hook in HOOKS if hook not in ("on_workers_recreated", "on_checkpoint_loaded")]


@pytest.mark.parametrize("hook", LIVE)
def test_a_hook_that_raises_is_named(build, hook):
    with pytest.raises(CallbackError) as caught:
        build(callbacks=[First, raising(hook)], evaluation_interval=1, evaluation_duration=1).train()
    assert str(caught.value) == f"callback Wrong.{hook} raised ValueError: in {hook}"
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_hook_that_raises_while_restoring_is_named(build, tmp_path):
    algo = build(callbacks=raising("on_checkpoint_loaded"))
    algo.save(tmp_path / "c")
    with pytest.raises(CallbackError, match="Wrong.on_checkpoint_loaded raised ValueError"):
        algo.restore(tmp_path / "c")


class NotMade(DefaultCallbacks):
    """Can't be made."""

    def __init__(self):
        raise ValueError("not today")


def test_a_class_that_cannot_be_made_is_named(build):
    with pytest.raises(CallbackError, match=r"callback NotMade\(\) raised ValueError: not today"):
        build(callbacks=NotMade)


class Remote(DefaultCallbacks):
    """Works in another process, which is told by what it leaves."""

    def __init__(self):
        self.made = 0

    def on_sub_environment_created(self, *, worker, sub_environment, env_context, **kwargs):
        self.made += 1
        sub_environment.place = 10 * env_context.worker_index + env_context.vector_index

    def on_episode_end(self, *, worker, base_env, episode, env_index, **kwargs):
        episode.custom_metrics["worker"] = worker.worker_index
        episode.custom_metrics["place"] = base_env.envs[env_index].place
        episode.custom_metrics["made"] = self.made
        episode.hist_data["place"] = [base_env.envs[env_index].place]

    def on_sample_end(self, *, worker, samples, **kwargs):
        samples["advantages"] = np.full_like(samples["advantages"], worker.worker_index)

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        result["advantages"] = train_batch["advantages"].tolist()


class WrongThere(DefaultCallbacks):
    """Raises in remote workers only."""

    def on_sub_environment_created(self, *, worker, env_context, **kwargs):
        if worker.worker_index == 2 and env_context.get("when") == "made":
            raise ValueError("while it was made")

    def on_episode_step(self, *, worker, episode, **kwargs):
        if worker.worker_index == 1 and episode.length == 3 and worker.config["env_config"]["when"] == "step":
            raise KeyError("in step 3")


def test_remote_workers(ray_session, build):
    keys = {"num_workers": 2, "num_envs_per_worker": 2, "num_cpus_per_worker": 0.1, "train_batch_size": 40}
    algo = build(callbacks=Remote, standardize_advantages=False, **keys)
    result = algo.train()
    metrics = result["custom_metrics"]
    assert (metrics["worker_min"], metrics["worker_max"], metrics["made_min"], metrics["made_max"]) == (1, 2, 2, 2)
    assert sorted(result["hist_stats"]["place"]) == [10, 11, 20, 21]
    assert sorted(result["info"]["learner"]["default_policy"]["advantages"]) == [1.0] * 20 + [2.0] * 20
    algo.stop()
    with pytest.raises(CallbackError) as caught:
        build(callbacks=WrongThere, env_config={"when": "step"}, **keys).train()
    assert str(caught.value) == "callback WrongThere.on_episode_step raised KeyError: 'in step 3'"
    with pytest.raises(CallbackError) as caught:
        build(callbacks=WrongThere, env_config={"when": "made"}, **keys)
    assert str(caught.value) == "callback WrongThere.on_sub_environment_created raised ValueError: while it was made"


# --- no cost


def calls_while(function):
    """How many Python functions are called."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


class PerSample(DefaultCallbacks):
    """Nothing per step."""

    def on_sample_end(self, **kwargs):
        pass

    def on_train_result(self, **kwargs):
        pass


class PerStep(DefaultCallbacks):
    """Something per step."""

    def on_episode_step(self, **kwargs):
        pass


def test_a_run_without_per_step_hooks_pays_nothing(monkeypatch):
    counts = {}
    for callbacks in (None, DefaultCallbacks, PerSample, [PerSample, First], PerStep):
        worker = make_worker(MatchEnv, callbacks, rollout_fragment_length=200, num_envs_per_worker=2, explore=False)
        worker.sample()
        counts[str(callbacks)] = calls_while(worker.sample)
        assert (worker._sampler.tracker is None) == (callbacks in (None, DefaultCallbacks, PerSample))
    none, default, per_sample, _, per_step = counts.values()
    assert none == default and per_sample - none <= 2
    assert per_step > none + 400

    class Forbidden:
        def __init__(self, *args):
            raise AssertionError("an EpisodeTracker is made")

    monkeypatch.setattr(rollout_worker, "EpisodeTracker", Forbidden)
    make_worker(MatchEnv, PerSample).sample()


def test_only_overridden_hooks_are_called():
    class Inherits(PerStep):
        """Overrides through its base."""

    callbacks = Callbacks([PerSample(), Inherits(), DefaultCallbacks()])
    assert callbacks.has("on_episode_step") and callbacks.has("on_sample_end", "on_episode_end")
    assert not callbacks.has("on_episode_end") and not callbacks.has()
    assert [len(found) for hook, found in callbacks._overriding.items() if found] == [1, 1, 1]


def test_every_hook_of_the_base_does_nothing_and_takes_more_arguments():
    for hook in HOOKS:
        assert callable(getattr(DefaultCallbacks, hook)) and getattr(DefaultCallbacks, hook).__doc__
    assert {name for name in vars(DefaultCallbacks) if name.startswith("on_")} == set(HOOKS)
