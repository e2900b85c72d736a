"""Writes catalog_VERSION_inner.json again: names that SkyRL passes on to vLLM, its router and Megatron unchecked.

It reads the classes from sources and imports nothing. The commits are those of SkyRL's pyproject.toml:

VLLM_PATH=... ROUTER_PATH=... MEGATRON_PATH=... BRIDGE_PATH=... python -m tools.catalogs.skyrl_inner
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xp.backends.skyrl.control.overrides import VERSION

FILE = Path(__file__).parents[2] / f"xp/backends/skyrl/control/catalog_{VERSION}_inner.json"
ENGINE = "generator.inference_engine"
MEGATRON = ("trainer.policy.megatron_config", "trainer.ref.megatron_config")
CORE = "megatron/core"
CLASSES: Mapping[str, Sequence[tuple[str, str, Sequence[str]]]] = {
    f"{ENGINE}.engine_init_kwargs": [
        ("VLLM_PATH", "vllm/engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))
    ],
    f"{ENGINE}.router_init_kwargs": [
        ("ROUTER_PATH", "vllm_router/router_args.py", ("RouterArgs",))
    ],
    **{
        f"{place}.optimizer_config_kwargs": [
            ("MEGATRON_PATH", f"{CORE}/optimizer/optimizer_config.py", ("OptimizerConfig",))
        ]
        for place in MEGATRON
    },
    **{
        f"{place}.transformer_config_kwargs": [
            (
                "MEGATRON_PATH",
                f"{CORE}/transformer/transformer_config.py",
                ("TransformerConfig", "MLATransformerConfig"),
            ),
            ("MEGATRON_PATH", f"{CORE}/model_parallel_config.py", ("ModelParallelConfig",)),
            ("BRIDGE_PATH", "src/megatron/bridge/models/gpt_provider.py", ("GPTModelProvider",)),
        ]
        for place in MEGATRON
    },
}
"""Key with a mapping -> the classes whose fields are its names: the variable of a checkout, a file and its classes."""


def fields(file: Path, name: str) -> Iterator[str]:
    """Public fields of a dataclass."""
    (found,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    for line in found.body:
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.startswith("_")
        ):
            yield line.target.id


def main() -> None:
    keys = {
        f"{key}.{field}"
        for key, sources in CLASSES.items()
        for root, file, names in sources
        for name in names
        for field in fields(Path(os.environ[root]) / file, name)
    }
    found = {"fields": {key: {"type": "Any"} for key in sorted(keys)}}
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
