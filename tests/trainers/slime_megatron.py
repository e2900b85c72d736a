"""Two of Slime's own updates of Megatron's own GPT model on the CPU, for tests/trainers/test_slime_megatron.py.

python -m tests.trainers.slime_megatron DIRECTORY

Slime's initialize, set-up of model and optimizer, packing, loss, train_one_step and export run as they are, with
Megatron's local layers. Not real: CUDA (the CPU), NCCL (gloo), TransformerEngine's attention over packed sequences,
which is computed here sequence by sequence, and the bfloat16 of the weights.
"""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from tests.support.slime_arguments import parse
from tests.support.slime_rehearsal import spec_of
from tests.trainers.slime_setup import tiny_directory
from tests.trainers.slime_update import batch_of, drawn
from tests.unit.slime_config import PLACES
from tools.parity.slime_rehearsal.megatron import LOCAL, name_norms, packed_attention, without_cuda
from xp.backends.slime.worker.config import WorkerConfig
from xp.backends.slime.worker.models import check_quantized
from xp.backends.slime.worker.training import exporting
from xp.spec import RunSpec

OWN = {
    **LOCAL,
    "custom_megatron_init_path": None,
    "load": "nothing: the weights are random",
    "lr": 1e-3,
    "lr_warmup_iters": 0,
}
"""For random weights, over what xp renders."""


FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
SAID = "said.pt"
"""What Megatron's model says of the tokens, beside each export."""


def log_probs(args: Any, model: Any, data: dict[str, Any]) -> list[torch.Tensor]:
    """Log-probabilities of the responses, by Slime's own forward pass."""
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
    from slime.backends.megatron_utils.model import forward_only

    found = forward_only(
        get_log_probs_and_entropy,
        args,
        model,
        get_data_iterator(data),
        [1],
    )["log_probs"]
    return [one.float() for one in found]


def export(args: Any, model: Any, data: dict[str, Any], directory: Path) -> None:
    """Slime's own, as a Hugging Face model, with Megatron's log-probabilities of the same weights beside it."""
    from slime.backends.megatron_utils.hf_checkpoint_saver import save_hf_model_to_path

    save_hf_model_to_path(args, directory, model, model_name="qwen3")
    said = {"tokens": data["tokens"], "log_probs": log_probs(args, model, data)}
    torch.save(said, directory / SAID)


def export_beside_twin(args: Any, spec: RunSpec, model: Any, root: Path) -> None:
    """By xp's hook, where --hf-checkpoint is a model with FP8 weights."""
    from slime.backends.megatron_utils.hf_checkpoint_saver import save_hf_model_to_path

    twin = Path(shutil.copytree(args.hf_checkpoint, root / "twin"))
    config = json.loads((twin / "config.json").read_text())
    (twin / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    assert spec.model.architecture is not None
    check_quantized(twin, spec.model.architecture.model_dump(mode="json"))
    engine = spec.backend.engine.model_copy(
        update={"quantization": "fp8", "quantized_model": str(twin)}
    )
    spec = spec.model_copy(update={"backend": spec.backend.model_copy(update={"engine": engine})})
    own = WorkerConfig(
        root=str(root),
        spec=spec,
        places=PLACES,
        stage="train",
        steps=1,
    )
    with_twin = Namespace(**{**vars(args), "hf_checkpoint": str(twin), "model_name": "qwen3"})
    exporting(own, save_hf_model_to_path)(with_twin, root / "exports/0", model)


def begin(args: Any, root: Path) -> None:
    """Slime's own initialization of Megatron, in a group of this process alone."""
    store = torch.distributed.FileStore(str(root / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    import numpy

    numpy.__version__ = "1.26.4"  # Slime's assertion; nothing here differs
    from slime.backends.megatron_utils import initialize
    from slime.utils.distributed_utils import init_gloo_group

    init_gloo_group()
    initialize._build_tokenizer = lambda _: None
    initialize.init(args)


def main(root: Path) -> None:
    """Export the model before and after each update, and print what Slime reported of each."""
    torch._dynamo.config.disable = True
    spec = spec_of(tiny_directory(root))
    args = parse(spec, root)
    tiny_directory(root)  # the parser's test leaves a configuration without the rest
    for name, value in OWN.items():
        setattr(args, name, value)
    # Megatron's dummy tokens are part of its softmax: with untrained weights they take a tenth of the probability.
    args.padded_vocab_size = args.vocab_size
    without_cuda()
    packed_attention()
    name_norms()
    begin(args, root)
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import setup_model_and_optimizer, train_one_step

    model, optimizer, scheduler = setup_model_and_optimizer(args, "actor")
    batch = batch_of(drawn())
    data = {
        **batch,
        "tokens": batch["unconcat_tokens"],
        "micro_batch_indices": [[*range(len(batch["rewards"]))]],
    }
    export(args, model, data, root / "export-0")
    export_beside_twin(args, spec, model, root)
    reported = []
    for step in (1, 2):
        data["log_probs"] = log_probs(args, model, data)
        losses, norm = train_one_step(
            args,
            step,
            0,
            get_data_iterator(data),
            model,
            optimizer,
            scheduler,
            1,
            len(batch["rewards"]),
        )
        reported.append(
            {**{name: float(value) for name, value in losses.items()}, "grad_norm": float(norm)}
        )
        export(args, model, data, root / f"export-{step}")
    print("RESULT", json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
