"""The planner's memory beside public configurations and measured runs, for docs/memory.md and its tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from tools.benchmarks.bench_card import cases
from xp.composition import compose
from xp.lib.reading import yaml_value
from xp.planning.memory.estimate import engine_stays_awake, estimate
from xp.planning.memory.fit import MemoryFit, fit
from xp.planning.memory.lengths import EpisodeLengths
from xp.planning.memory.pictures import FLOAT32, ROTATED, TYPED
from xp.spec import RunSpec

RECORDED: Final = Path(__file__).parents[1] / "tests/recorded"
ENTRIES: list[dict[str, Any]] = yaml_value(
    (RECORDED / "public_memory.yaml").read_text(encoding="utf-8")
)
CARD: dict[str, Any] = yaml_value((RECORDED / "card_memory.yaml").read_text(encoding="utf-8"))
VISION_PEAKS: Final = {"Qwen2-VL": 42.2, "Qwen2.5-VL": 42.2, "Qwen3-VL": 46.5}
"""Measured bytes of a patch and unit of width in a frozen vision part."""
RUNS: Final = "runs"
"""Outcome of a configuration that fits."""
GIB = 2**30
# Of each model's config.json on Hugging Face: hidden, layers, heads, key-value heads, feed-forward, vocabulary, tied.
NETWORKS = {
    "qwen3-0.6b": (1024, 28, 16, 8, 3072, 151936, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 6144, 151936, True),
    "qwen3-8b": (4096, 36, 32, 8, 12288, 151936, False),
    "qwen3-14b": (5120, 40, 40, 8, 17408, 151936, False),
    "qwen2.5-32b": (5120, 64, 40, 8, 27648, 152064, False),
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_layers": 61,
    "intermediate_size": 18432,
    "expert_intermediate_size": 2048,
    "shared_intermediate_size": 2048,
    "qkv_bias": "false",
    "rotary_fraction": 1.0,
    "rope_theta": 10000.0,
    "norm_eps": 1e-6,
    "head_dim": 192,
    "router.scaling": 2.5,
    "latent_attention": "{q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128}",
}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    # Of each model's config.json: the option whose network it changes, and what differs.
    "qwen3-235b-a22b": (
        "qwen3-30b-a3b",
        {
            "num_layers": 94,
            "hidden_size": 4096,
            "num_heads": 64,
            "intermediate_size": 12288,
            "expert_intermediate_size": 1536,
        },
    ),
    "glm-4.5-355b": (
        "glm-4.5-air",
        {
            "num_layers": 92,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "expert_intermediate_size": 1536,
            "shared_intermediate_size": 1536,
            "num_experts": 160,
            "dense_layers": 3,
            "qk_norm": "true",
            "router.scaling": 2.5,
        },
    ),
    "deepseek-r1": (
        "glm-4.5-air",
        DEEPSEEK
        | {"num_heads": 128, "num_experts": 256, "dense_layers": 3, "vocab_size": 129280}
        | {"router.groups": 8, "router.groups_per_token": 4, "rope_scaling": "'yarn x 40.0'"},
    ),
    "kimi-k2": (
        "glm-4.5-air",
        DEEPSEEK
        | {"num_heads": 64, "num_experts": 384, "dense_layers": 1, "vocab_size": 163840}
        | {
            "model_type": "kimi_k2",
            "rope_scaling": "'yarn x 32.0, beta_fast 1.0'",
            "router.scaling": 2.827,
        },
    ),
}
FIELDS = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
    "vocab_size",
)


@cache
def judged(name: str) -> MemoryFit:
    """The planner's word on an entry."""
    return fit(spec_of(name))


@cache
def spec_of(name: str) -> RunSpec:
    entry = next(one for one in ENTRIES if one["name"] == name)
    network: list[str] = []
    kind = entry.get("network")
    if kind in LARGE:
        option, fields = LARGE[kind]
        network = [
            f"model={option}",
            *(f"model.architecture.{field}={value}" for field, value in fields.items()),
        ]
    elif kind is not None:
        *sizes, is_tied = NETWORKS[kind]
        network = ["model=qwen2.5-7b-instruct" if kind.startswith("qwen2.5") else "model=qwen3-4b"]
        network += [
            f"model.architecture.{field}={size}" for field, size in zip(FIELDS, sizes, strict=True)
        ]
        network += [f"model.architecture.tied_embeddings={str(is_tied).lower()}"]
    return compose([*network, *entry["overrides"]])


STATES = ("weights", "adapters", "gradients", "optimizer")
LARGEST = [entry for entry in ENTRIES if "states" in entry]


def states_of(entry: dict[str, Any]) -> float:
    return sum(judged(entry["name"]).worst.training.get(name, 0) for name in STATES) / GIB


def peak_of(run: dict[str, Any]) -> float:
    """The plan's GiB of a measured run: of both phases at once, where its engine stays awake."""
    spec = compose(["hardware=h200x1", *run["overrides"]])
    found = estimate(spec)
    if engine_stays_awake(spec):
        beside = found.generation["engine"]
    else:
        beside = 0
    return max(found.generation_peak, beside and found.training_peak + beside) / GIB


def skyrls_update() -> float:
    """The plan's GiB of an update of short episodes."""
    spec = compose(["hardware=h200x1", *CARD["runs"][-1]["overrides"]])
    return (
        estimate(
            spec, EpisodeLengths(mean=77, deviation=8, longest=88, source="the run")
        ).training_peak
        / GIB
    )


def measured() -> list[str]:
    """The page's part about the card."""
    words = cases()
    rows = [
        *(
            (name, estimate(compose(words[name])).training_peak / GIB, peak)
            for name, peak in CARD["updates"].items()
        ),
        *((run["name"], peak_of(run), run["peak"]) for run in CARD["runs"]),
    ]
    return [
        "## One H200",
        "",
        "Peaks that nvidia-smi shows, in GiB, on 2026-11-27: torch 2.11.0, TRL 1.16.0, SkyRL 0.4.0, vLLM 0.30.0.",
        "First updates of TRL's trainer with random weights and no engine, four episodes a micro-batch"
        " (`make bench ARGS=card`), then whole runs.",
        "The plan's activations, `cast weights`, `fragmentation` and `overhead` are chosen to be at or above these, and"
        " at most 10 % above.",
        "",
        "| what | plan | card | ratio |",
        "|---|---|---|---|",
        *(f"| {name} | {plan:.1f} | {peak:.1f} | {plan / peak:.2f} |" for name, plan, peak in rows),
        "",
        f"SkyRL's update in that run, of episodes of at most 88 tokens: plan {skyrls_update():.1f}, card 7.3.",
    ]


def pictures() -> list[str]:
    """The page's part about pictures."""
    plan = TYPED * FLOAT32 + ROTATED
    return [
        "## Pictures",
        "",
        "With `model.images` an update has the part `pictures`: pixels in float32 (under TRL those of all episodes of a step,"
        " else of a micro-batch), the vision part's outputs, and what the part needs while it is computed.",
        "Without `model.train_vision` it is frozen: it keeps nothing for gradients, and is done before the text network"
        " begins. So the plan adds only what exceeds the activations and logits that follow.",
        f"A patch takes, at a time, width x ({TYPED} x bytes of the data type + {ROTATED}) for attention, or the"
        " feed-forward layer's values where these are more (`xp/planning/memory/pictures.py`).",
        "",
        "Peak of torch's allocator on the CPU in a forward and backward pass, float32, 8 layers of width 256, two pictures of"
        " 256 patches, in bytes of a patch and unit of width (`tests/unit/test_memory_pictures.py`):",
        "",
        "| vision part | plan | measured | ratio |",
        "|---|---|---|---|",
        *(
            f"| {name} | {plan:.1f} | {peak:.1f} | {plan / peak:.2f} |"
            for name, peak in VISION_PEAKS.items()
        ),
        "",
        "By default gradient checkpointing of transformers 5.23 computes gradients of a frozen Qwen2-VL's pixels too: 107"
        " bytes instead of 42. xp turns this off.",
        "Not tried: pictures on accelerators, whose kernels of attention may need less; the vision part of an engine is inside"
        " the engine's own share.",
    ]


def stages() -> list[str]:
    """The page's part about the largest stages."""
    lines = [
        "## Megatron's largest stage",
        "",
        "GiB of weights, adapters, gradients and optimizer on one accelerator of the pipeline stage that needs most:"
        " the plan's, and those of a count of the layers that was made elsewhere.",
        "GB of a machine's own memory: Adam's state, copies of the weights, and what moves there while colocated"
        " engines generate. Slime states 1,400 to 1,500 for DeepSeek-R1.",
        "",
        "| configuration | plan | count | ratio | host |",
        "|---|---|---|---|---|",
    ]
    for entry in LARGEST:
        found = states_of(entry)
        host = sum(judged(entry["name"]).worst.host.values()) / 1e9
        lines.append(
            f"| {entry['name']} | {found:.1f} | {entry['states']} | {found / entry['states']:.2f} | {host:,.0f} |"
        )
    return lines


def page() -> str:
    """Text of docs/memory.md."""
    lines = [
        "# Memory and public runs",
        "",
        "The verdict of `plan` ([memory](configuration.md#memory)) for public configurations that are known to run, or"
        " to run out of memory.",
        "Made by `make docs` from `tests/recorded/public_memory.yaml`; a test checks each verdict.",
        "Lengths are assumed (a quarter of the limits), since no source states them all. No constant is tuned to this"
        " first table.",
        "A configuration that runs must fit in the expected case; one that runs out of memory must not be called safe.",
        "",
        "| configuration | source says | plan: larger phase, expected to worst | verdict |",
        "|---|---|---|---|",
    ]
    notes = []
    for entry in ENTRIES:
        found = judged(entry["name"])
        cases = (found.expected, found.worst)
        peaks = [f"{max(case.training_peak, case.generation_peak) / GIB:.0f}" for case in cases]
        wrong = "" if "disagrees" not in entry else " (**wrong**)"
        if entry["outcome"] == RUNS:
            says = f"{entry['outcome']}: {entry['says']}"
        else:
            says = entry["says"]
        lines.append(
            f"| [{entry['name']}]({entry['source']}) | {says} | {' to '.join(dict.fromkeys(peaks))} of"
            f" {found.capacity / GIB:.0f} GiB | {found.verdict.value}{wrong} |"
        )
        text = entry.get("disagrees") or entry.get("note")
        if text:
            notes.append(f"* {entry['name']}: {' '.join(text.split())}")
    return "\n".join(
        [*lines, "", "Notes:", "", *notes, "", *stages(), "", *measured(), "", *pictures(), ""]
    )
