#!/usr/bin/env bash
# Makes the virtual environments of the libraries that polylib is measured against, and one that draws the picture.
#
#   benchmarks/peers/setup.sh [rllib] [rllib26] [sb3] [ope] [plot]      all if none is named
#
# They go into $POLYLIB_PEERS (default ~/.cache/polylib-peers), outside the repository. What is there already is kept;
# delete a folder to make it anew. $PYTHON is the Python that makes them: 3.11, which the versions below were tried with.
set -euo pipefail

peers="${POLYLIB_PEERS:-$HOME/.cache/polylib-peers}"
python="${PYTHON:-python3.11}"
pip_flags=(--disable-pip-version-check --quiet)
mkdir -p "$peers"

# make NAME REQUIREMENT... : torch goes first by its exact version, so that the later step keeps the build that is there.
make_env() {
    local name="$1" home="$peers/$1"
    shift
    if [ -e "$home/.complete" ]; then
        echo "$name: $home is there"
        return
    fi
    echo "$name: making $home (some minutes) ..."
    "$python" -m venv --clear "$home"
    for step in "$@"; do
        # shellcheck disable=SC2086
        "$home/bin/python" -m pip install "${pip_flags[@]}" $step
    done
    "$home/bin/python" -m pip freeze --disable-pip-version-check > "$home/versions.txt"
    touch "$home/.complete"
}

[ $# -gt 0 ] || set -- rllib rllib26 sb3 ope plot
for name in "$@"; do
    case "$name" in
        # RLlib's old stack needs Keras 2 (tf_keras) for tf and tf2, and lz4 for its compressed columns.
        rllib) make_env rllib "torch==2.13.0" \
            "ray[rllib]==2.60.0 tensorflow==2.21.0 tf_keras==2.21.0 tensorflow-probability==0.25.0 lz4" ;;
        # The last release with all of DQN, SAC and APEX, and the oldest packages that it runs with on Python 3.11.
        rllib26) make_env rllib26 "torch==2.13.0" \
            "ray[rllib]==2.6.0 tensorflow==2.13.1 tensorflow-probability==0.21.0 numpy<2 pandas<2.1 pyarrow<13 pydantic<2
            typer<0.10 click<8.2 setuptools<70" "typing_extensions==4.12.2" ;; # torch needs it, TensorFlow doesn't mind
        sb3) make_env sb3 "torch==2.13.0" "stable-baselines3==2.9.* box2d==2.3.10 pygame-ce==2.5.8" ;;
        # Both ask for older Pythons and packages than they need for their estimators, so they go in last and alone.
        ope) make_env ope "torch==2.13.0" \
            "numpy<2 scipy<1.15 pandas<2.3 scikit-learn<1.6 matplotlib<3.11 seaborn pyyaml tqdm" \
            "d3rlpy==2.0.4 gym pytorch-revgrad==0.2.0 hydra-core" \
            "--no-deps --ignore-requires-python obp==0.5.7 scope-rl==0.2.1" ;;
        plot) make_env plot "matplotlib>=3.9,<4" ;;
        *) echo "unknown peer '$name': rllib, rllib26, sb3, ope or plot" >&2; exit 2 ;;
    esac
done
