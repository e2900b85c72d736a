"""SGLang's real HTTP server on this machine's CPU; started by tests/engines/test_slime.py.

python -m tests.engines.sglang_server --model-path DIR --port N ...
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# Reads and writes sound: SGLang imports it with its server, and a text model needs none.
sys.modules["soundfile"] = ModuleType("soundfile")
sys.modules["soundfile"].__spec__ = ModuleSpec("soundfile", None)


if __name__ == "__main__":
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(sys.argv[1:]))
