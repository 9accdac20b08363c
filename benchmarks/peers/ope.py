"""Figures of other libraries' off-policy estimators, which tests/offline/estimators/test_peers.py compares with.

    ope.py logs FOLDER         writes logs.npz: a bandit's log, episodes of one length, and of several
    ope.py obp FOLDER          adds the estimates of Open Bandit Pipeline for the bandit to figures.json
    ope.py scope_rl FOLDER     those of SCOPE-RL for the episodes of one length
    ope.py rllib FOLDER        those of RLlib for all three

Each peer runs in an environment of its own; see setup.sh. FOLDER is tests/data/ope.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

STATES, ACTIONS, GAMMA, LENGTH = 4, 3, 0.95, 6


def make_logs(folder: Path) -> None:
    """Tables of a behaviour, a target and made-up values, and three logs of the behaviour in a random process."""
    rng = np.random.default_rng(20)
    tables = {
        "behavior": rng.dirichlet(np.full(ACTIONS, 3.0), STATES),
        "target": rng.dirichlet(np.full(ACTIONS, 3.0), STATES),
        "q": rng.normal(1.0, 1.0, (STATES, ACTIONS)),
    }
    moves = rng.dirichlet(np.ones(STATES), (STATES, ACTIONS))
    means = rng.normal(0.5, 1.0, (STATES, ACTIONS))
    columns: dict[str, np.ndarray] = dict(tables)
    for name, lengths in {
        "bandit": np.ones(300, np.int64),
        "even": np.full(80, LENGTH),
        "uneven": rng.integers(1, 9, 80),
    }.items():
        rows = []
        for episode, length in enumerate(lengths.tolist()):
            state = int(rng.integers(STATES))
            for t in range(length):
                action = int(rng.choice(ACTIONS, p=tables["behavior"][state]))
                reward = float(np.float32(rng.normal(means[state, action], 0.3)))
                rows.append((episode, t, state, action, reward, t == length - 1))
                state = int(rng.choice(STATES, p=moves[state, action]))
        eps_id, t, obs, actions, rewards, ends = (np.array(column) for column in zip(*rows, strict=True))
        found = {"eps_id": eps_id, "t": t, "obs": obs, "actions": actions, "rewards": rewards, "terminateds": ends}
        columns.update({f"{name}/{key}": column for key, column in found.items()})
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "logs.npz", **columns)


def read(folder: Path, name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The columns of one log, and the tables."""
    with np.load(folder / "logs.npz") as file:
        log = {key.split("/")[1]: file[key] for key in file.files if key.startswith(f"{name}/")}
        return log, {key: file[key] for key in ("behavior", "target", "q")}


def obp(folder: Path) -> dict[str, Any]:
    import obp
    from obp import ope

    log, tables = read(folder, "bandit")
    obs, actions = log["obs"], log["actions"]
    given = {
        "reward": log["rewards"],
        "action": actions,
        "pscore": tables["behavior"][obs, actions],
        "action_dist": tables["target"][obs][:, :, None],
        "position": np.zeros(len(obs), int),
        "estimated_rewards_by_reg_model": tables["q"][obs][:, :, None],
    }
    estimators = {
        "is": ope.InverseProbabilityWeighting(),
        "wis": ope.SelfNormalizedInverseProbabilityWeighting(),
        "dm": ope.DirectMethod(),
        "dr": ope.DoublyRobust(),
        "wdr": ope.SelfNormalizedDoublyRobust(),
    }
    found = {name: float(estimator.estimate_policy_value(**given)) for name, estimator in estimators.items()}
    return {"version": obp.__version__, "bandit": found}


def scope_rl(folder: Path) -> dict[str, Any]:
    import scope_rl
    from scope_rl.ope import discrete

    log, tables = read(folder, "even")
    obs, actions = log["obs"], log["actions"]
    target = tables["target"][obs]
    given = {
        "step_per_trajectory": LENGTH,
        "action": actions,
        "reward": log["rewards"],
        "pscore": tables["behavior"][obs, actions],
        "evaluation_policy_action_dist": target,
        "state_action_value_prediction": tables["q"][obs],
        "initial_state_value_prediction": (target * tables["q"][obs]).sum(1)[::LENGTH],
        "gamma": GAMMA,
    }
    estimators = {
        "is": discrete.TrajectoryWiseImportanceSampling(),
        "wis": discrete.SelfNormalizedTIS(),
        "pdis": discrete.PerDecisionImportanceSampling(),
        "wpdis": discrete.SelfNormalizedPDIS(),
        "dm": discrete.DirectMethod(),
        "dr": discrete.DoublyRobust(),
        "wdr": discrete.SelfNormalizedDR(),
    }
    found = {name: float(estimator.estimate_policy_value(**given)) for name, estimator in estimators.items()}
    return {"version": scope_rl.__version__, "even": found}


def rllib(folder: Path) -> dict[str, Any]:
    import gymnasium as gym
    import ray
    from ray.rllib.offline import estimators
    from ray.rllib.policy.sample_batch import SampleBatch

    class Table:
        """What RLlib's estimators ask of a policy."""

        action_space = gym.spaces.Discrete(ACTIONS)
        config: dict[str, Any] = {"framework": "torch"}

        def __init__(self, table: np.ndarray) -> None:
            self.table = table

        def compute_log_likelihoods(self, actions: Any, obs_batch: Any, **kwargs: Any) -> np.ndarray:
            return np.log(self.table[np.asarray(obs_batch), np.asarray(actions)])

    class Given:
        def __init__(self, policy: Any, q: np.ndarray, **kwargs: Any) -> None:
            self.policy, self.q = policy, q

        def estimate_q(self, batch: Any) -> np.ndarray:
            return self.q[batch["obs"], batch["actions"]]

        def estimate_v(self, batch: Any) -> np.ndarray:
            return (self.policy.table * self.q).sum(1)[batch["obs"]]

    figures: dict[str, Any] = {"version": ray.__version__}
    for name in ("bandit", "even", "uneven"):
        log, tables = read(folder, name)
        probabilities = tables["behavior"][log["obs"], log["actions"]]
        batch = SampleBatch({**log, "action_prob": probabilities})
        models = [{"type": Given, "q": tables["q"]} for _ in range(2)]  # RLlib takes the type out
        policy = Table(tables["target"])
        # RLlib's importance sampling is what others call per-decision; its bandit has no steps to decide in.
        made = {
            "pdis": estimators.ImportanceSampling(policy, GAMMA),
            "pdis_epsilon": estimators.ImportanceSampling(policy, GAMMA, epsilon_greedy=0.3),
            "wpdis": estimators.WeightedImportanceSampling(policy, GAMMA),
            "dm": estimators.DirectMethod(policy, GAMMA, q_model_config=models[0]),
            "dr": estimators.DoublyRobust(policy, GAMMA, q_model_config=models[1]),
        }
        figures[name] = {}
        for key, estimator in made.items():
            found = estimator.estimate(batch, split_batch_by_episode=name != "bandit")
            figures[name][key] = {k: float(np.asarray(v)) for k, v in found.items()}
    return figures


PEERS = {"obp": obp, "scope_rl": scope_rl, "rllib": rllib}


def main(what: str, folder: str) -> None:
    path = Path(folder)
    if what == "logs":
        return make_logs(path)
    file = path / "figures.json"
    figures = json.loads(file.read_text()) if file.exists() else {}
    figures[what] = PEERS[what](path)
    file.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
