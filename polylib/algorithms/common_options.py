"""The config keys every algorithm has: names and defaults of RLlib 2.6 where it has the key.

The only place where these defaults stand. A row with `built=False` is a key that RLlib users have in their configs and
whose feature this version lacks: leaving it at its default is fine, anything else raises an error that names it.
"""

from __future__ import annotations

from polylib.algorithms.options import (
    Option,
    anything,
    boolean,
    callbacks,
    checked,
    choice,
    estimation_methods,
    function,
    initializer,
    integer,
    mapping,
    names,
    number,
    overrides,
    schedule_or_number,
    sizes,
)
from polylib.models.filters import FILTER_NAMES, check_clip_rewards, check_filter_name

GROUPS = (
    "training",
    "environment",
    "framework",
    "rollouts",
    "evaluation",
    "exploration",
    "offline_data",
    "multi_agent",
    "reporting",
    "checkpointing",
    "debugging",
    "callbacks",
    "resources",
    "experimental",
)

_ACTIVATIONS = ("tanh", "relu", "elu", "silu", "swish", "gelu", "sigmoid", "softplus", "linear", None)

MODEL_OPTIONS = (
    Option("fcnet_hiddens", "model", [256, 256], sizes(), "Sizes of the fully connected hidden layers."),
    Option("fcnet_activation", "model", "tanh", choice(*_ACTIVATIONS), "Activation of the hidden layers."),
    Option(
        "fcnet_weights_initializer",
        "model",
        None,
        initializer(),
        "First weights of the hidden layers: normc (also None), orthogonal, xavier_uniform, xavier_normal, he_uniform, "
        "he_normal or normal; biases start at 0.",
    ),
    Option(
        "fcnet_weights_initializer_config",
        "model",
        {},
        mapping(),
        "Its scale: {'gain': 1.414} ({'std': 1.0} for normc and normal).",
    ),
    Option("vf_share_layers", "model", False, boolean(), "Policy and value function share the hidden layers."),
    Option("free_log_std", "model", False, boolean(), "Log-std as a free variable, not a network output."),
    Option("no_final_linear", "model", False, boolean(), "The last hidden layer is the output."),
    Option("conv_filters", "model", None, anything(), "Convolutions as [channels, kernel, stride]."),
    Option("conv_activation", "model", "relu", choice(*_ACTIVATIONS), "Activation of convolutions."),
    Option("post_fcnet_hiddens", "model", [], sizes(), "Layers after `fcnet_hiddens` and the convolutions."),
    Option("post_fcnet_activation", "model", "relu", choice(*_ACTIVATIONS), "Their activation."),
    Option(
        "post_fcnet_weights_initializer", "model", None, initializer(), "First weights of those layers."
    ),
    Option("post_fcnet_weights_initializer_config", "model", {}, mapping(), "Its scale."),
    Option("use_lstm", "model", False, boolean(), "Wrap the network with an LSTM."),
    Option("use_gru", "model", False, boolean(), "Wrap the network with a GRU."),
    Option("max_seq_len", "model", 20, integer(1), "Longest sequence a recurrent loss sees."),
    Option("lstm_cell_size", "model", 256, integer(1), "Cells of the LSTM or GRU."),
    Option("lstm_use_prev_action", "model", False, boolean(), "Feed the previous action."),
    Option("lstm_use_prev_reward", "model", False, boolean(), "Feed the previous reward."),
    Option("use_attention", "model", False, boolean(), "Wrap the network with attention (GTrXL)."),
    Option("attention_num_transformer_units", "model", 1, integer(1), "GTrXL units, one after another."),
    Option("attention_dim", "model", 64, integer(1), "Width of a unit's inputs and outputs."),
    Option("attention_num_heads", "model", 1, integer(1), "Heads of a unit's attention."),
    Option("attention_head_dim", "model", 32, integer(1), "Width of a head."),
    Option("attention_memory_inference", "model", 50, integer(1), "Steps that a unit looks back."),
    Option("attention_memory_training", "model", 50, integer(1), "The same in training: the same number."),
    Option("attention_position_wise_mlp_dim", "model", 32, integer(1), "Width of the layer behind a unit's attention."),
    Option("attention_init_gru_gate_bias", "model", 2.0, number(), "How far a unit's gates are shut at the start."),
    Option("attention_use_n_prev_actions", "model", 0, choice(0, 1), "Feed the previous action (1) or none (0)."),
    Option("attention_use_n_prev_rewards", "model", 0, choice(0, 1), "Feed the previous reward (1) or none (0)."),
    Option("framestack", "model", True, boolean(), "'deepmind': observations are the last 4 frames."),
    Option("dim", "model", 84, integer(1), "Height and width of Atari's frames in pixels."),
    Option("grayscale", "model", False, boolean(), "'rllib': frames in grey ('deepmind': always)."),
    Option("zero_mean", "model", True, boolean(), "'rllib': pixels in [-1, 1), not in [0, 1]."),
    Option("custom_model", "model", None, anything(), "A user's own network: see docs/custom_models.md."),
    Option("custom_model_config", "model", {}, mapping(), "Keyword arguments of the custom model."),
    Option(
        "custom_action_dist", "model", None, anything(), "An action distribution: a name, a Distribution, or a factory."
    ),
    Option("custom_preprocessor", "model", None, anything(), "A user's own preprocessor.", built=False),
)

COMMON_OPTIONS = (
    # --- training
    Option("gamma", "training", 0.99, number(0, 1), "Discount per environment step."),
    Option("lr", "training", 0.001, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
    Option("grad_clip", "training", None, number(0, above=True, optional=True), "Largest global norm of a gradient."),
    Option("grad_clip_by", "training", "global_norm", choice("global_norm"), "How gradients are clipped."),
    Option(
        "train_batch_size",
        "training",
        32,
        integer(1),
        "Environment steps per training batch.",
        aliases=("train_batch_size_per_learner",),
    ),
    Option("model", "training", {}, mapping(), "The default network, see `polylib.algorithms.common_options`."),
    Option("optimizer", "training", {}, mapping(), "Settings of a user's optimizer.", built=False),
    Option(
        "max_requests_in_flight_per_sampler_worker",
        "training",
        2,
        integer(1),
        "Sample calls under way per worker.",
        built=False,
    ),
    # --- environment
    Option("env", "environment", None, anything(), "A Gymnasium id, a registered name, or a class/function of a dict."),
    Option("env_config", "environment", {}, mapping(), "Passed to the environment (keyword arguments of an id)."),
    Option("observation_space", "environment", None, anything(), "The space, where there is no environment."),
    Option("action_space", "environment", None, anything(), "The space, where there is no environment."),
    Option("env_task_fn", "environment", None, function(), "Curriculum function.", built=False),
    Option("render_env", "environment", False, boolean(), "Show or record the environment.", built=False),
    Option("monitor", "environment", False, boolean(), "Record videos of episodes.", built=False),
    Option(
        "clip_rewards",
        "environment",
        None,
        checked(check_clip_rewards),
        "Learn from signs of rewards (True), or rewards clipped to [-c, c] (a number); None: signs for Atari.",
    ),
    Option("normalize_actions", "environment", True, boolean(), "Policies act in [-1, 1] of bounded Box spaces."),
    Option("clip_actions", "environment", False, boolean(), "Clip Box actions (normalised ones always are)."),
    Option("disable_env_checking", "environment", False, boolean(), "Skip the check of the first observations."),
    Option("is_atari", "environment", None, choice(None, True, False), "Wrap for Atari; None: games of ale-py."),
    # --- framework
    Option(
        "framework",
        "framework",
        None,
        choice("tf", "tf2", "torch", None),
        "tf (graph), tf2 or torch; None: tf2 where TensorFlow is installed, else torch.",
    ),
    Option("eager_tracing", "framework", True, boolean(), "Compile tf2 with tf.function; False: plain eager."),
    Option("eager_max_retraces", "framework", 20, integer(0, optional=True), "More traces of a function raise."),
    Option(
        "tf_xla",
        "framework",
        False,
        boolean(),
        "tf and traced tf2: compile each SGD update with XLA (seconds at the start, faster updates after).",
    ),
    Option(
        "torch_compile_learner",
        "framework",
        False,
        boolean(),
        "torch: compile the loss with torch.compile (needs a C++ compiler; up to a minute at the start).",
    ),
    Option("tf_session_args", "framework", {}, mapping(), "Fields of the ConfigProto of a tf policy's session."),
    Option("local_tf_session_args", "framework", {}, mapping(), "The same, for the local worker only."),
    # --- rollouts
    Option(
        "num_workers",
        "rollouts",
        0,
        integer(0),
        "Ray actors that sample; 0: the local worker samples, without Ray.",
        aliases=("num_rollout_workers", "num_env_runners"),
    ),
    Option(
        "num_envs_per_worker",
        "rollouts",
        1,
        integer(1),
        "Environments stepped together in a worker.",
        aliases=("num_envs_per_env_runner",),
    ),
    Option("create_env_on_local_worker", "rollouts", False, boolean(), "Make environments on the local worker too."),
    Option(
        "rollout_fragment_length",
        "rollouts",
        200,
        integer(1, or_text=("auto",)),
        "Steps per environment and sample call; 'auto': what fills train_batch_size.",
    ),
    Option(
        "batch_mode",
        "rollouts",
        "truncate_episodes",
        choice("truncate_episodes", "complete_episodes"),
        "Cut episodes at the fragment's end, or hand out whole ones only.",
    ),
    Option(
        "vectorization_mode",
        "rollouts",
        "auto",
        choice("auto", "sync", "vector_entry_point"),
        "One environment after another ('sync'), or Gymnasium's own vectorised one; 'auto': that from 16 on.",
    ),
    Option(
        "worker_policy_backend",
        "rollouts",
        "auto",
        choice("auto", "same"),
        "Remote workers act in NumPy and import no framework ('auto'), or with the algorithm's own ('same').",
    ),
    Option("sample_async", "rollouts", False, boolean(), "Sample in a thread.", built=False),
    Option("sample_collector", "rollouts", None, anything(), "A user's own collector.", built=False),
    Option("remote_worker_envs", "rollouts", False, boolean(), "Each environment in an actor.", built=False),
    Option("remote_env_batch_wait_ms", "rollouts", 0, number(0), "Wait for more environments, ms.", built=False),
    Option(
        "preprocessor_pref",
        "rollouts",
        "deepmind",
        choice("deepmind", "rllib", None),
        "Atari's frames: 84x84, grey, 4 at a time ('deepmind'), one of floats ('rllib'), or as they are (None).",
    ),
    Option(
        "observation_filter",
        "rollouts",
        "NoFilter",
        checked(check_filter_name),
        f"Normalises observations by what was seen so far: {', '.join(FILTER_NAMES)}.",
    ),
    Option(
        "use_worker_filter_stats",
        "rollouts",
        True,
        boolean(),
        "The filter learns from what all workers observed; False: from the local worker's observations only.",
    ),
    Option(
        "update_worker_filter_stats",
        "rollouts",
        True,
        boolean(),
        "Workers take over the filter of all workers with the weights; False: each keeps its own.",
        aliases=("synchronize_filters",),
    ),
    Option("compress_observations", "rollouts", False, boolean(), "Compress observations.", built=False),
    Option(
        "ignore_worker_failures",
        "rollouts",
        False,
        boolean(),
        "Go on without lost workers.",
        aliases=("ignore_env_runner_failures",),
        built=False,
    ),
    Option(
        "recreate_failed_workers",
        "rollouts",
        False,
        boolean(),
        "Replace lost workers.",
        aliases=("restart_failed_env_runners",),
        built=False,
    ),
    Option("restart_failed_sub_environments", "rollouts", False, boolean(), "Replace a lost sub-env.", built=False),
    # --- evaluation
    Option("evaluation_interval", "evaluation", None, integer(1, optional=True), "Evaluate every so many iterations."),
    Option(
        "evaluation_duration",
        "evaluation",
        10,
        integer(1, or_text=("auto",)),
        "How much to evaluate; 'auto': as long as the last iteration trained, beside training.",
    ),
    Option(
        "evaluation_duration_unit",
        "evaluation",
        "episodes",
        choice("episodes", "timesteps"),
        "What the duration counts; begun episodes are always finished.",
    ),
    Option(
        "evaluation_num_workers",
        "evaluation",
        0,
        integer(0),
        "Ray actors that evaluate; 0: in this process, after training.",
        aliases=("evaluation_num_env_runners",),
    ),
    Option("evaluation_parallel_to_training", "evaluation", False, boolean(), "Evaluate while training goes on."),
    Option("evaluation_config", "evaluation", None, overrides(), "Keys changed for evaluation, a dict."),
    Option("evaluation_sample_timeout_s", "evaluation", 180.0, number(0), "Longest wait, s.", built=False),
    Option(
        "custom_evaluation_function",
        "evaluation",
        None,
        function(),
        "f(algorithm, evaluation workers) -> dict of metrics, instead.",
    ),
    Option(
        "always_attach_evaluation_results",
        "evaluation",
        False,
        boolean(),
        "Repeat the last evaluation in results of iterations that didn't evaluate.",
    ),
    Option(
        "off_policy_estimation_methods",
        "evaluation",
        {},
        estimation_methods(),
        "Estimates of the return from recorded episodes (evaluation_config's input, or input): {name: {'type': 'is', "
        "'wis', 'pdis', 'wpdis', 'dm' or 'dr'}}; see docs/offline.md.",
    ),
    Option(
        "ope_split_batch_by_episode",
        "evaluation",
        True,
        boolean(),
        "False: these estimates take each recorded row for an episode of its own.",
    ),
    # --- exploration
    Option("explore", "exploration", True, boolean(), "Sample actions; False: take the most likely one."),
    Option("exploration_config", "exploration", {"type": "StochasticSampling"}, mapping(), "How: `type` and its keys."),
    # --- offline data
    Option(
        "input",
        "offline_data",
        "sampler",
        anything(),
        "Where experiences come from: 'sampler' (the environment), a file, folder, pattern or list of them, a mix "
        "{source: share}, a name of register_input, or f(IOContext) -> reader.",
        ("input_",),
    ),
    Option("input_config", "offline_data", {}, mapping(), "Settings of the input: see docs/offline.md."),
    Option(
        "actions_in_input_normalized",
        "offline_data",
        False,
        boolean(),
        "The files' Box actions are in [-1, 1], as RLlib writes them, and not in the environment's units.",
    ),
    Option(
        "postprocess_inputs",
        "offline_data",
        False,
        boolean(),
        "Postprocess what is read as what is sampled, also where the algorithm could do without.",
    ),
    Option(
        "shuffle_buffer_size", "offline_data", 0, integer(0), "Rows read ahead and handed out in random order; 0: none."
    ),
    Option(
        "output",
        "offline_data",
        None,
        anything(),
        "Where episode traces go: a folder, 'logdir' (the run's own), or f(IOContext) -> writer.",
    ),
    Option(
        "output_config",
        "offline_data",
        {},
        mapping(),
        "{'format': 'polylib'} writes packed columns, for speed; {'on_error': 'warn'} goes on when a disk is full.",
    ),
    Option("output_compress_columns", "offline_data", ["obs", "new_obs"], names(), "Columns to compress, [] for none."),
    Option("output_max_file_size", "offline_data", 64 * 1024**2, integer(1), "Bytes after which a new file begins."),
    # --- multi-agent
    Option("policies", "multi_agent", None, anything(), "Policies by id.", built=False),
    Option("policy_mapping_fn", "multi_agent", None, function(), "Agent to policy id.", built=False),
    Option("policies_to_train", "multi_agent", None, anything(), "Policies that learn.", built=False),
    Option("observation_fn", "multi_agent", None, function(), "Rewrites observations.", built=False),
    Option(
        "count_steps_by", "multi_agent", "env_steps", choice("env_steps", "agent_steps"), "Unit of sizes.", built=False
    ),
    # --- reporting
    Option(
        "keep_per_episode_custom_metrics",
        "reporting",
        False,
        boolean(),
        "Report custom metrics as lists instead of mean, min and max.",
    ),
    Option(
        "metrics_num_episodes_for_smoothing", "reporting", 100, integer(1), "Episodes that the episode means cover."
    ),
    Option(
        "min_time_s_per_iteration", "reporting", None, number(0, optional=True), "A train() call lasts this long, s."
    ),
    Option("min_train_timesteps_per_iteration", "reporting", 0, integer(0), "Trained env steps per train() call."),
    Option("min_sample_timesteps_per_iteration", "reporting", 0, integer(0), "Sampled env steps per train() call."),
    # --- checkpointing
    Option("export_native_model_files", "checkpointing", False, boolean(), "Native model files too.", built=False),
    Option("checkpoint_trainable_policies_only", "checkpointing", False, boolean(), "Only those.", built=False),
    # --- debugging
    Option("seed", "debugging", None, integer(0, optional=True), "Seed of everything random; None: from the clock."),
    Option("log_level", "debugging", "WARN", choice("DEBUG", "INFO", "WARN", "ERROR"), "Least severe log line shown."),
    Option(
        "profile",
        "debugging",
        False,
        boolean(),
        "Write pyinstrument reports of the trial's process and of worker 1 into the run's folder.",
    ),
    Option("log_sys_usage", "debugging", False, boolean(), "CPU and memory of the node in results (needs psutil)."),
    Option("logger_config", "debugging", None, anything(), "Settings of a logger.", built=False),
    Option("logger_creator", "debugging", None, function(), "Makes a logger.", built=False),
    # --- callbacks
    Option(
        "callbacks",
        "callbacks",
        None,
        callbacks(),
        "A subclass of DefaultCallbacks, its 'module:Class', or a list of them.",
        aliases=("callbacks_class",),
    ),
    # --- resources
    Option("num_gpus", "resources", 0, number(0), "GPUs of the local worker.", built=False),
    Option(
        "num_gpus_per_worker",
        "resources",
        0,
        number(0),
        "GPUs of a worker.",
        aliases=("num_gpus_per_env_runner",),
        built=False,
    ),
    Option(
        "num_cpus_per_worker",
        "resources",
        1,
        number(0),
        "CPUs that Ray reserves per worker.",
        aliases=("num_cpus_per_env_runner",),
    ),
    Option(
        "num_cpus_for_local_worker",
        "resources",
        1,
        number(0),
        "CPUs that Tune reserves for the trial's own process.",
        aliases=("num_cpus_for_driver", "num_cpus_for_main_process"),
    ),
    Option(
        "custom_resources_per_worker",
        "resources",
        {},
        mapping(),
        "Custom Ray resources per worker.",
        aliases=("custom_resources_per_env_runner",),
    ),
    Option(
        "placement_strategy",
        "resources",
        "PACK",
        choice("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
        "How Ray spreads a trial's workers over nodes.",
    ),
    Option("placement_timeout_s", "resources", 60.0, number(0), "Wait for cluster resources this long, s."),
    # --- experimental
    Option("_disable_preprocessor_api", "experimental", False, boolean(), "Raw observations.", built=False),
    Option("_disable_action_flattening", "experimental", False, boolean(), "Nested actions.", built=False),
)

# Pairs of keys that exclude each other when both are truthy, and why.
CONFLICTS = (
    (
        "ignore_worker_failures",
        "recreate_failed_workers",
        "a lost worker is either ignored or replaced: set only one of them",
    ),
)
