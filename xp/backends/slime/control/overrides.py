"""Checks the user's own flags: refuses flags that xp renders, that would undo xp's, or that Slime does not accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xp.backends.slime.control.flags import catalog, fault, override_flags
from xp.planning.backend import Refusal
from xp.planning.rows import Row, not_overridable
from xp.spec import Estimator, RunSpec

TAKEN: Mapping[str, str] = {
    "--custom-config-path": "xp's own functions read it",
    "--custom-rm-path": "the reward is the EpisodeResult's; set env.reward or env.reward_fn",
    "--rm-type": "the reward is the EpisodeResult's; set env.reward or env.reward_fn",
    "--rm-url": "the reward is the EpisodeResult's; set env.reward or env.reward_fn",
    "--group-rm": "the reward is the EpisodeResult's; set env.reward or env.reward_fn",
    "--num-epoch": "set training.epochs",
    "--rollout-shuffle": "the order of tasks is xp's; set training.shuffle",
    "--rollout-max-prompt-len": "set training.max_prompt_tokens",
    "--apply-chat-template": "xp renders prompts itself; set model.chat_template",
    "--apply-chat-template-kwargs": "set model.chat_template",
    "--rollout-stop-token-ids": "a turn ends at the model's own end tokens; set training.stop for other texts",
    "--partial-rollout": "an episode is played in one step",
    "--fp16": "set model.dtype",
    "--recompute-activations": "set training.gradient_checkpointing",
    "--lr-warmup-fraction": "set training.warmup_updates",
    "--lr-warmup-samples": "set training.warmup_updates",
    "--disable-rewards-normalization": "set algorithm.advantage_scale",
    "--disable-compute-advantages-and-returns": "the update needs them; set algorithm.estimator",
    "--custom-loss-function-path": "Slime would ignore it beside its policy loss; set algorithm.policy_loss",
    "--use-wandb": "set tracking=[wandb]",
    "--wandb-key": "a key belongs in the environment; set tracking=[wandb]",
    "--debug-rollout-only": "the run would not train",
    "--debug-train-only": "the run would play no episode",
    "--load-debug-rollout-data": "the run would play no episode",
}
"""Flag that xp does not write, but that would conflict with xp -> what to do instead."""


def override_refusals(spec: RunSpec, rows: Sequence[Row], owned: Mapping[str, str]) -> Iterator[Refusal]:
    """Faults of `backend.overrides`; must be called only if the rest of the spec can be rendered.

    Args:
        spec: the spec, with its overrides.
        rows: Slime's.
        owned: flag -> its field.
    """
    by_dest = {catalog().flags[name].dest: name for name in owned}
    for name, values in override_flags(spec.backend.overrides).items():
        key = name.removeprefix("--")
        field = f"backend.overrides.{key}"
        known = catalog().flags.get(name)
        mine = name if name in owned else by_dest.get(known.dest) if known else None
        if name in TAKEN:
            yield Refusal(field, f"not beside xp: {TAKEN[name]}")
        elif mine is not None and (way_out := not_overridable(rows, owned, mine)) is not None:
            as_what = "" if mine == name else f" as {mine}"
            yield Refusal(field, f"xp renders this flag itself{as_what}; {way_out}")
        elif name == "--release-train" and spec.algorithm.estimator is Estimator.GAE:
            yield Refusal(field, "Slime cannot release a critic; use another algorithm.estimator")
        elif wrong := fault(name, values):
            yield Refusal(field, wrong)
