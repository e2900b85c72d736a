"""One sequence of a request of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def datum(ids: Sequence[int], **tails: Sequence[float]) -> Any:
    """A Datum of the API.

    Args:
        ids: all tokens.
        tails: inputs of the loss, such as `advantages`, of the last tokens; 0 for those before.
    """
    from tinker.types import Datum, ModelInput, TensorData

    size = len(ids) - 1
    inputs = {"target_tokens": TensorData(data=list(ids[1:]), dtype="int64", shape=[size])}
    for name, tail in tails.items():
        values = [*[0.0] * (size - len(tail)), *tail]
        inputs[name] = TensorData(data=values, dtype="float32", shape=[size])
    return Datum(model_input=ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=inputs)
