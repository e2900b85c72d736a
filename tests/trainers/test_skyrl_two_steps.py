"""Two steps of SkyRL's real loop with Ray, an FSDP worker and its updates: the rehearsal's part in `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.skyrl_rehearsal import SMALL, lines, run
from tests.support.tiny import leave_untrained
from xp.composition import compose
from xp.errors import XpError
from xp.worker.places import model_place
from xp.worker.publish import check_there

pytestmark = pytest.mark.timeout(1800)


def test_two_steps_train_with_the_weights_that_write_and_publish_the_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    outputs = leave_untrained(tmp_path, *SMALL)
    done = run(outputs, "train", 1, "training.num_steps=2")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = lines(outputs)
    assert [line["step"] for line in found] == [1, 2]
    assert all(line["training/grad_norm"] > 0 for line in found)
    assert max(line["training/logprob_gap"] for line in found) < 1e-5
    base = load_file(outputs / model_place(compose(SMALL).model) / "model.safetensors")
    final = load_file(outputs / "runs/r/model/model.safetensors")
    assert all(not final[name].equal(base[name]) for name in base)
    export = outputs / "runs/r/checkpoints/huggingface/global_step_2/policy"
    check_there(str(export))
    with (export / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"oops")
    with pytest.raises(XpError, match=r"model\.safetensors does not match"):
        check_there(str(export))
