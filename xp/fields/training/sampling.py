"""The section `training`: how episodes are sampled, and their lengths."""

from __future__ import annotations

from collections.abc import Mapping

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Condition, Field
from xp.fields.shared import (
    has_own_decoding,
    longest_episode,
    longest_in_engine,
    past_context,
    uses_vllm,
)
from xp.fields.skyrl import sampling_keys
from xp.fields.slime import sequence_length
from xp.spec import RunSpec

CUTS: Mapping[str, Condition] = {
    "top_p": lambda s: s.training.top_p < 1,
    "top_k": lambda s: s.training.top_k is not None,
    "min_p": lambda s: s.training.min_p > 0,
    "repetition_penalty": lambda s: s.training.repetition_penalty != 1,
}
"""Field that changes the tokens' probabilities -> whether it does."""

# TRL
AFTER_THE_CUT = "With vLLM, log-probabilities are those after it; with transformers, before it."

# SkyRL
SKYRL_CUT = "The engine's log-probabilities are those after it, the trainer's those before it."

# Slime
ROLLOUT = "xp.backends.slime.worker.rollout"
SLIME_CUT = "Tokens are drawn from these; log-probabilities, SGLang's and the trainer's, are those of all tokens."


def _read_as_flag(spec: RunSpec) -> str | None:
    flag_like = next((text for text in spec.training.stop if text.startswith("-")), None)
    return flag_like and (
        f"Slime's command line would read {flag_like!r} as a flag of its own; begin it with another character, or"
        " use backend=skyrl or trl"
    )


SAMPLING = (
    Field(
        "training.temperature",
        trl="temperature",
        skyrl=Column(("generator.sampling_params.temperature", f"{skyrl.ALGORITHM}.temperature")),
        slime="--rollout-temperature",
    ),
    Field(
        "training.top_p",
        trl=Column(
            "top_p",
            note=AFTER_THE_CUT,
            note_if=CUTS["top_p"],
            proof="trl::an_engines_log_probabilities_are_after_the_cut",
        ),
        skyrl=Column(
            "generator.sampling_params.top_p",
            note=SKYRL_CUT,
            note_if=CUTS["top_p"],
            proof="skyrl::an_engines_log_probabilities_are_after_the_cut",
        ),
        slime=Column(
            "--rollout-top-p",
            only=1,
            refuse="Slime would need each token's nucleus for the update; set it to 1, or use backend=skyrl or trl",
            proof="slime::a_nucleus_is_needed_for_the_update",
        ),
    ),
    Field(
        "training.top_k",
        trl=Column(
            "top_k",
            lambda top_k: top_k or 0,
            note=AFTER_THE_CUT,
            note_if=CUTS["top_k"],
            proof="trl::an_engines_log_probabilities_are_after_the_cut",
        ),
        skyrl=Column(
            "generator.sampling_params.top_k",
            lambda top_k: top_k or -1,
            note=SKYRL_CUT,
            note_if=CUTS["top_k"],
            proof="skyrl::an_engines_log_probabilities_are_after_the_cut",
        ),
        slime=Column(
            "--rollout-top-k",
            lambda top_k: top_k or -1,
            note=SLIME_CUT,
            note_if=CUTS["top_k"],
            proof="slime::sglangs_log_probabilities_are_of_all_tokens",
        ),
    ),
    Field(
        "training.min_p",
        trl=Column(
            "min_p",
            note=AFTER_THE_CUT,
            note_if=CUTS["min_p"],
            proof="trl::an_engines_log_probabilities_are_after_the_cut",
        ),
        skyrl=Column(
            "generator.sampling_params.min_p",
            note=SKYRL_CUT,
            note_if=CUTS["min_p"],
            proof="skyrl::an_engines_log_probabilities_are_after_the_cut",
        ),
        slime=Column(
            implemented_by=lambda s: (
                f"min_p of each turn, by {ROLLOUT}" if s.training.min_p > 0 else ""
            ),
            note=SLIME_CUT,
            note_if=CUTS["min_p"],
            proof="slime::sglangs_log_probabilities_are_of_all_tokens",
        ),
        xp=Column(
            refuse_if=lambda s: (
                s.backend.engine.speculative is not None
                and not has_own_decoding(s)
                and s.training.min_p > 0
            ),
            refuse="engines that guess tokens have no min_p; set 0, or backend.engine.speculative=null",
            proof={"engines that guess tokens": "engines::guessed_tokens_have_no_min_p"},
        ),
    ),
    Field(
        "training.repetition_penalty",
        trl=Column(
            "repetition_penalty",
            note=AFTER_THE_CUT,
            note_if=CUTS["repetition_penalty"],
            proof="trl::an_engines_log_probabilities_are_after_the_cut",
        ),
        # SkyRL does not send sampling_params.repetition_penalty to the engine.
        skyrl=Column(
            lambda s: {
                "generator.sampling_params.additional_kwargs": (
                    None
                    if s.training.repetition_penalty == 1
                    else {"repetition_penalty": s.training.repetition_penalty}
                )
            },
            note=SKYRL_CUT,
            note_if=CUTS["repetition_penalty"],
            proof="skyrl::an_engines_log_probabilities_are_after_the_cut",
        ),
        slime=Column(
            refuse="SGLang penalises only what the turn itself repeats, not the conversation; set 1, or use backend=skyrl"
            " or trl",
            proof="slime::sglang_penalises_the_turn_alone",
        ),
    ),
    Field(
        "training.max_prompt_tokens",
        trl=Column(
            lambda s: {"vllm_max_model_length": longest_in_engine(s)} if uses_vllm(s) else {},
            implemented_by="xp.tasks.load, which leaves longer prompts out",
        ),
        # xp excludes long prompts itself, by the model's tokens; SkyRL's own filter is disabled by a large limit.
        skyrl=Column(
            lambda s: {"trainer.max_prompt_length": longest_episode(s)},
            implemented_by="xp.tasks.load, which leaves longer prompts out",
        ),
        xp="xp.tasks.load",
    ),
    Field(
        "training.max_tokens_per_turn",
        skyrl="generator.sampling_params.max_generate_length",
        slime=Column(
            "--rollout-max-response-len",
            implemented_by=f"max_new_tokens of each turn, by {ROLLOUT}",
        ),
        xp="xp.worker.token_budget",
    ),
    Field(
        "training.stop",
        skyrl=Column(lambda s: sampling_keys("stop", list(s.training.stop) or None)),
        # The string stays in the turn: Slime sets SGLang's no_stop_trim.
        slime=Column(
            "--rollout-stop",
            lambda stop: stop or None,
            refuse=_read_as_flag,
            proof="slime::a_stop_text_is_a_word_of_the_command_line",
        ),
        xp="xp.worker.engines.conversation",
    ),
    Field(
        "training.max_response_tokens",
        trl="max_completion_length",
        # SkyRL limits prompt and response together; xp's generator also limits the response alone.
        skyrl=Column(
            lambda s: {
                "generator.max_input_length": longest_in_engine(s),
                f"{skyrl.ENGINE}.engine_init_kwargs.max_model_len": longest_in_engine(s),
            },
            implemented_by="xp.backends.skyrl.worker.generator, which gives a turn what is left",
        ),
        slime=Column(
            lambda s: {"--seq-length": sequence_length(s, longest_episode(s))},
            implemented_by=ROLLOUT,
        ),
        xp=Column(refuse=lambda s: past_context(s, s.training.max_response_tokens), proof=OWN),
    ),
)
