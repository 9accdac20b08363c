"""The direct method: the value of the states that episodes start in, by a model of action values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from polylib.errors import BatchError, ConfigError, ConfigTypeError
from polylib.offline.estimators.bootstrap import Estimate
from polylib.offline.estimators.fqe import FittedQEvaluation
from polylib.offline.estimators.logged import Logged, take
from polylib.offline.estimators.off_policy_estimator import OffPolicyEstimator
from polylib.offline.estimators.q_models import GivenQ
from polylib.policy import columns as c


class ModelBasedEstimator(OffPolicyEstimator):
    """An estimator with a model of the policy's action values: the user's, or one by fitted Q evaluation.

    Args:
        policy: as for `OffPolicyEstimator`.
        gamma: as for `OffPolicyEstimator`.
        epsilon_greedy: as for `OffPolicyEstimator`.
        q_model: an object with `q_values(obs, actions)` (see `QModel`); None: fitted Q evaluation.
        q_model_config: settings of `FittedQEvaluation`; `type` may be it, or a subclass.
        action_samples: actions drawn for a state's value, where they can't be counted.
        **settings: of `OffPolicyEstimator`.

    Attributes:
        model: with `q_values(obs, actions)` and `v_values(obs)`.
    """

    def __init__(
        self,
        policy: Any,
        gamma: float,
        epsilon_greedy: float = 0.0,
        *,
        q_model: Any = None,
        q_model_config: Mapping[str, Any] | None = None,
        action_samples: int = 16,
        **settings: Any,
    ) -> None:
        super().__init__(policy, gamma, epsilon_greedy, **settings)
        if self.target.recurrent:
            raise ConfigError(
                f"{type(self).__name__} judges policies without memory only: the value of a state that the network "
                "remembers isn't a function of the observation. Importance sampling works"
            )
        if isinstance(action_samples, bool) or not isinstance(action_samples, int) or action_samples < 1:
            raise ConfigError(f"action_samples={action_samples!r}, expected an int >= 1")
        if q_model_config is not None and not isinstance(q_model_config, Mapping):
            raise ConfigTypeError(f"q_model_config={q_model_config!r}, expected a dict of settings")
        if q_model is not None and q_model_config:
            raise ConfigError("q_model_config is for fitted Q evaluation: leave it out where q_model is given")
        self.model: GivenQ | FittedQEvaluation
        if q_model is not None:
            self.model = GivenQ(q_model, self.target, action_samples)
        else:
            given = {"action_samples": action_samples, "seed": self.seed, **(q_model_config or {})}
            kind = given.pop("type", FittedQEvaluation)
            if not (isinstance(kind, type) and issubclass(kind, FittedQEvaluation)):
                raise ConfigError(
                    f"q_model_config: type is {kind!r}, expected a subclass of FittedQEvaluation; any other model is "
                    "given as q_model=, an object with q_values(obs, actions)"
                )
            self.model = kind(policy, self.gamma, target=self.target, **given)
        self._trained = q_model is not None

    def train(self, batch: Any, split_batch_by_episode: bool = True) -> dict[str, Any]:
        """Fits the model to a batch like that of `estimate`, going on from where it was.

        Returns:
            What fitting measured: `loss` of the last pass.
        """
        logged = self._logged(batch, split_batch_by_episode, (c.OBS, c.ACTIONS, c.REWARDS))
        self._check_mask(logged)
        self._trained = True
        return self.model.fit(logged)

    def _fitted(self, logged: Logged) -> None:
        """Makes sure that there is a model: without `train`, of the very episodes that are judged."""
        self._check_mask(logged)
        if not self._trained:
            self._trained = True
            self.model.fit(logged)

    def _check_mask(self, logged: Logged) -> None:
        if c.ACTION_MASK in logged.rows:
            raise BatchError(
                f"{type(self).__name__} can't use the column {c.ACTION_MASK!r}, which says nothing about next states: "
                "masks have to stand in the observations (a Dict with the key 'action_mask')"
            )


class DirectMethod(ModelBasedEstimator):
    """`mean_i V(s_i0)`: no weights, so little variance, and all the bias that the model has.

    Its interval tells how much starts differ, not how wrong the model is.
    """

    columns: ClassVar[tuple[str, ...]] = (c.OBS, c.REWARDS)

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        self._fitted(logged)
        values = self.model.v_values(take(logged.rows[c.OBS], logged.starts))
        return Estimate(values, float(logged.episodes))
