"""Every metric of metrics.jsonl: unit, meaning and interpretation. A metric without a row cannot be written."""

from __future__ import annotations

from typing import Final

from xp.episode.finite import MOST_IN_A_ROW
from xp.episode.metric import LEFT_OUT, Metric

METRICS: Final = (
    Metric(
        "reward/avg_raw_reward",
        "reward",
        "Mean reward of the scored episodes. Void episodes are in no reward.",
        "The learning curve: it rises while the policy learns. It has the noise of one step's episodes; compare runs"
        " by their evaluations.",
    ),
    Metric(
        "reward/mean_positive_reward",
        "reward",
        "Mean of the rewards above 0; 0 where there is none.",
        "How good a success is. Rising `avg_raw_reward` with this one constant: more episodes succeed, none better.",
    ),
    Metric(
        "reward/avg_pass_at_<n>",
        "share, 0 to 1",
        "Share of groups with an episode whose reward is at least `evaluation.pass_threshold`. A group is `n` episodes"
        " of one task in this step; `n` is `training.group_size`, and 1 in an evaluation.",
        "Far above `avg_raw_reward`: the policy can solve the tasks, but not reliably; there is much to learn.",
    ),
    Metric(
        "reward/avg_pass_at_<n>_from_<threshold>",
        "share, 0 to 1",
        "`reward/avg_pass_at_<n>` with an `evaluation.pass_threshold` other than 1.",
        "Two thresholds never share a name, so that their curves are not mixed up.",
    ),
    Metric(
        "reward/groups_without_variance",
        "share, 0 to 1",
        "Share of groups (`training.group_size` episodes of one task) whose episodes all have the same reward.",
        "These groups have no advantage and teach nothing. Near 1: the tasks are too hard (reward 0) or too easy."
        " Choose other tasks, raise `training.group_size` or `training.temperature`, or set"
        " `algorithm.dynamic_sampling`.",
    ),
    Metric(
        "reward_fn/<name>",
        "as the function gives it",
        "Mean of what the user's `env.reward_fn` gave under that name beside the reward, over the scored episodes that"
        " have it. Where `env.reward_fn` is a list of several: `reward_fn/<function>` is each function's own value"
        " before its weight, `reward_fn/<function>/<name>` its other entries.",
        "The parts of a reward: which of them rises.",
    ),
    Metric(
        "grader/<name>",
        "as the grader gives it",
        "Mean of what a grader returned under that name beside the score, over the scored episodes that have it.",
        "The parts of a score: which of them rises.",
    ),
    Metric(
        "judges/<name>",
        "tokens; US dollars",
        "Sum over this step's scored episodes of what judge models and simulated users read (`prompt_tokens`), wrote"
        " (`completion_tokens`) and cost (`cost_usd`: by the option `prices`, or as the endpoint reports it).",
        "Absent without judges; `cost_usd` is absent where the price of one is unknown.",
    ),
    Metric(
        "tasks/within_pass_rate",
        "tasks",
        "Training tasks within `env.train.pass_rate` by their latest measured rates (`env.train.refresh_every`).",
        "Falls towards 0: the tasks are learned, or still too hard.",
    ),
    Metric(
        "episodes/num",
        "episodes",
        "Number of episodes of this step or evaluation, void ones included.",
        "Constant while training: prompts per step times group size.",
    ),
    Metric(
        "episodes/void",
        "share, 0 to 1",
        "Share of episodes that met a failure of the environment and have no reward.",
        "Above 0: the environment fails; `void_reason` of the trajectories says how. Above"
        " `training.max_void_fraction` the run stops (exit code 8).",
    ),
    Metric(
        "episodes/truncated",
        "share, 0 to 1",
        "Share of episodes that a limit of turns or tokens ended, `training.max_tokens_per_turn` included.",
        "High: `env.max_turns`, `training.max_tokens_per_turn` or `training.max_response_tokens` is too small, or the"
        " policy does not come to an end.",
    ),
    Metric(
        "episodes/finished",
        "share, 0 to 1",
        "Share of episodes that the environment ended.",
        "The rest of 1, beside `episodes/truncated` and `episodes/void`: episodes that a turn without a well-formed"
        " call ended.",
    ),
    Metric(
        "episodes/malformed",
        "share, 0 to 1",
        "Share of episodes with at least one tool call that could not be read.",
        "It falls first when a policy learns. Stays high: `model.dialect` does not fit the model's way to write calls.",
    ),
    Metric(
        "episodes/tokens",
        "tokens",
        "Mean number of tokens that the policy wrote in one episode, over all turns.",
        "Sudden growth or collapse beside a falling reward is a sign of a policy that degenerates.",
    ),
    Metric(
        LEFT_OUT,
        "groups",
        "Groups without variance that dynamic sampling replaced by others in this step.",
        "The cost of `algorithm.dynamic_sampling`: each group was played for nothing.",
    ),
    Metric(
        "environment/turns",
        "turns",
        "Mean number of turns of an episode.",
        "Near `env.max_turns`: see `episodes/truncated`.",
    ),
    Metric(
        "environment/total_reward",
        "reward",
        "Sum of all step rewards that the environment gave, before `env.reward` reduces and clamps them.",
        "Differs from the rewards above where the environment gives several rewards in an episode.",
    ),
    Metric(
        "environment/num_rewards",
        "rewards",
        "Number of step rewards that the environment gave.",
        "Divided by `episodes/num`: rewards of one episode.",
    ),
    Metric(
        "tasks/trained_on",
        "share, 0 to 1",
        "Share of the held-out tasks that are trained on as well; written only where there are any.",
        "Above 0: the evaluation measures memory too, not only what carries over to new tasks.",
    ),
    Metric(
        "training/loss",
        "as the objective",
        "Mean over the step's updates of the loss that is minimised: policy, KL penalty and what the algorithm adds.",
        "Near 0 in policy gradients, whatever is learned: advantages have mean 0. Read the reward instead; a jump is a"
        " warning.",
    ),
    Metric(
        "training/policy_loss",
        "as the objective",
        "The part of `training/loss` without the KL penalty.",
        "As `training/loss`.",
    ),
    Metric(
        "training/grad_norm",
        "norm",
        "Norm of the gradient before it is clipped to `training.max_grad_norm`, mean over the step's updates.",
        "Above `training.max_grad_norm` the update is scaled down. A sudden rise often comes before a collapse: lower"
        " `training.learning_rate`.",
    ),
    Metric(
        "training/learning_rate",
        "per update",
        "Learning rate of the step's updates, mean over them.",
        "Constant, or the schedule that the spec asks for, from its warm-up on.",
    ),
    Metric(
        "training/kl",
        "nats per token",
        "Mean divergence of the policy from the model before training, by `algorithm.kl_estimator`; measured only where"
        " `training.kl_coef` is above 0.",
        "Grows slowly while the policy learns. Growth without end and a falling reward: raise `training.kl_coef` or"
        " lower `training.learning_rate`.",
    ),
    Metric(
        "training/entropy",
        "nats per token",
        "Mean entropy of the policy's next token, over the tokens that it wrote.",
        "Falls while the policy becomes sure. Near 0 early: it explores no more, groups lose their variance; raise"
        " `training.temperature` or `algorithm.clip_high`.",
    ),
    Metric(
        "training/clip_fraction",
        "share, 0 to 1",
        "Share of tokens whose ratio of new to old probability was beyond `algorithm.clip_low` or `clip_high`, where"
        " the limit changes the loss; mean over the step's updates.",
        "0 in the first update after a rollout, a few percent after. Large: the updates of one rollout go too far;"
        " lower `training.learning_rate` or the number of updates per rollout.",
    ),
    Metric(
        "training/logprob_gap",
        "nats per token",
        "Mean absolute difference between the engine's log-probabilities of its tokens and the trainer's, before the"
        " step's first update.",
        "1e-6 in float32 and 0.001 to 0.03 in bfloat16 are usual. Larger: the engine does not write with the weights"
        " that are trained. Above `training.max_logprob_gap` the run stops (exit code 12).",
    ),
    Metric(
        "training/staleness",
        "rollout steps",
        "Mean age of the step's episodes: rollout steps that the policy learned for between their first token and the"
        " step's first update; written only where `training.max_staleness` is above 0.",
        "At most `training.max_staleness`, and 0 in the first step. Below it: the trainer waits for episodes, and more"
        " staleness would not help.",
    ),
    Metric(
        "training/tokens",
        "tokens",
        "Tokens of all training episodes since the run began, read or written.",
        "The horizontal axis to compare runs by cost.",
    ),
    Metric(
        "training/updates_left_out",
        "updates",
        "Updates of this step that were not made, since the loss or gradient was not a finite number"
        " (`training.on_nonfinite=skip`); written only where there are any.",
        f"Rare ones do no harm. In {MOST_IN_A_ROW} steps in a row they stop the run.",
    ),
    Metric(
        "training/value_loss",
        "reward squared",
        "Loss of the critic (`algorithm=ppo`).",
        "Falls while the critic learns to predict returns; advantages are noise until then.",
    ),
    Metric(
        "training/value",
        "reward",
        "Mean value that the critic gives a token.",
        "Comes near the mean return.",
    ),
    Metric(
        "training/value_clip_fraction",
        "share, 0 to 1",
        "Share of tokens whose value moved beyond `algorithm.critic.value_clip` in an update.",
        "Large: the critic's updates are held back; lower `training.critic_learning_rate` or widen the clip.",
    ),
    Metric(
        "training/critic_grad_norm",
        "norm",
        "Norm of the critic's gradient before it is clipped.",
        "As `training/grad_norm`.",
    ),
    Metric(
        "training/critic_learning_rate",
        "per update",
        "Learning rate of the critic.",
        "Constant, or the schedule that the spec asks for, from its warm-up on.",
    ),
    Metric(
        "time/step_s",
        "seconds",
        "Wall-clock time of one rollout step, from its first episode to its last update.",
        "`time/rollout_s` is usually most of it.",
    ),
    Metric(
        "time/rollout_s",
        "seconds",
        "Wall-clock time of the step's episodes: generation, tool calls and the environment.",
        "Far above the engine's own time: the environment is slow; see `python -m xp env check`.",
    ),
    Metric(
        "time/logprobs_s",
        "seconds",
        "Forward passes before the first update: policy, reference and critic.",
        "Without a reference (`training.kl_coef=0`) it is shorter.",
    ),
    Metric(
        "time/update_s",
        "seconds",
        "Forward and backward passes of all updates of the step.",
        "Grows with tokens, and with updates per rollout.",
    ),
    Metric(
        "time/weight_sync_s",
        "seconds",
        "Sending the new weights to the engine.",
        "A large share of a step: fewer, larger steps.",
    ),
    Metric(
        "time/checkpoint_s",
        "seconds",
        "Writing a checkpoint; only in steps that write one.",
        "A large share of the run: raise `training.checkpoint_every`.",
    ),
    Metric(
        "time/export_s",
        "seconds",
        "Writing the checkpoint's Hugging Face directory; only in steps that write one.",
        "As `time/checkpoint_s`.",
    ),
)
"""All metrics, in the order of the docs. Metrics of an evaluation have the prefix
`evaluation/<before, during or after>/`, those of one environment in a mixture the prefix `<environment>/`."""
