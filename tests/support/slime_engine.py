"""Arguments with which SGLang's server runs on a CPU, and the mark of tests that need it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from xp.lib.loopback import HOST

needs_server = pytest.mark.skipif(
    find_spec("xgrammar") is None, reason="SGLang's server is not here: make test-sglang"
)
ON_CPU = (
    *(
        "--sglang-device",
        "cpu",
        "--sglang-dtype",
        "float32",
        "--sglang-attention-backend",
        "torch_native",
    ),
    *(
        "--sglang-sampling-backend",
        "pytorch",
        "--sglang-grammar-backend",
        "none",
        "--sglang-disable-cuda-graph",
    ),
    *("--sglang-max-total-tokens", "20000", "--sglang-mem-fraction-static", "0.6"),
    # As xp.backends.slime.worker.program says it.
    *("--router-prometheus-host", HOST),
)
