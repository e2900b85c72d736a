"""SkyRL's own vLLM server without Ray, by its own entry point, as its actor serves in a rehearsal.

python -m tests.engines.skyrl_server --model DIR --port N ...
"""

from __future__ import annotations

import os
import sys

from xp.backends.skyrl.worker.rehearsal import cpu_torch

if __name__ == "__main__":
    os.environ[cpu_torch.REAL_ENGINE] = "vllm"
    cpu_torch.prepare_process()
    from skyrl.backends.skyrl_train.inference_servers.vllm_server_actor import main

    main(sys.argv[1:])
