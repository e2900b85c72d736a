"""SGLang's HTTP server on 127.0.0.1, for requests with its key only.

    python -m xp.worker.sglang_server --model-path MODEL --port PORT ...

The arguments are those of `sglang.launch_server`. SGLang's own `--api-key` would be visible in the process list and in
the server's log (sglang 0.5.15 logs all arguments); here the variable `XP_SGLANG_KEY` has the key.
"""

from __future__ import annotations

import os
import sys

from xp.security import loopback
from xp.security.web_origin import OwnOrigin
from xp.security.with_key import WantsKey

KEY = "XP_SGLANG_KEY"


def main(arguments: list[str]) -> None:
    """Serves until the process is stopped.

    Raises:
        KeyError: the variable with the key is not set.
    """
    from sglang.srt.entrypoints import http_server
    from sglang.srt.server_args import prepare_server_args

    key = os.environ.pop(KEY)
    http_server.app.add_middleware(WantsKey, key=key)
    http_server.app.add_middleware(OwnOrigin)
    http_server.launch_server(prepare_server_args(arguments))


if __name__ == "__main__":
    loopback.stay()
    main(sys.argv[1:])
