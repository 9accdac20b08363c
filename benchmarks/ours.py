"""polylib, timed for bench.py: the same cases as the peers serve."""

from __future__ import annotations

from peers.protocol import serve
from rows.acting import Act
from rows.learning import SGD, Reward, Train
from rows.networks import NetworkSample, NetworkSGD
from rows.off_policy import DQN, SAC
from rows.offline import BC
from rows.replay import Replay
from rows.sampling import Sample, SampleWorkers
from rows.starting import Build, DriverMemory, WorkerMemory, imports

if __name__ == "__main__":
    serve(
        {
            "act": Act,
            "sample": Sample,
            "sample_workers": SampleWorkers,
            "sgd": SGD,
            "network_sample": NetworkSample,
            "network_sgd": NetworkSGD,
            "replay": Replay,
            "dqn": DQN,
            "sac": SAC,
            "bc": BC,
            "train": Train,
            "build": Build,
            "driver_memory": DriverMemory,
            "worker_memory": WorkerMemory,
            "reward": Reward,
            "import": imports,
        }
    )
