"""`vllm serve` as far as xp goes: health, completions that write the prompt's last token and the end token, and the
verdict of a judge, 5 for every answer.

The model's name decides what is wrong with it: `dies` ends before it answers, `silent` never answers. With the variable
FAKE_VLLM_HANGS, it has a worker that ignores TERM, names it in that file when it is asked, and answers no completion.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORKERS: list[subprocess.Popen[bytes]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/health", "/is_sleeping") else 404)
        self.end_headers()

    def do_POST(self) -> None:
        if (
            self.headers["Authorization"] != f"Bearer {os.environ['XP_ENGINE_KEY']}"
        ):  # by xp's middleware
            self.send_response(401)
            self.end_headers()
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/chat/completions":
            check = re.search(r'\{"check": "(\w+)"', asked["messages"][0]["content"])
            content = json.dumps({"check": check and check[1], "score": 5})
            self._answer({"choices": [{"message": {"role": "assistant", "content": content}}]})
            return
        ids = [asked["prompt"][-1], 2][: asked["max_tokens"]]
        if (file := os.environ.get("FAKE_VLLM_HANGS")) is not None:
            Path(f"{file}.part").write_text(f"{os.getpid()} {WORKERS[0].pid}")
            Path(f"{file}.part").rename(file)
            time.sleep(600)
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
        self._answer({"choices": [choice]})

    def _answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main(model: str, port: int) -> None:
    print(
        json.dumps({"argv": sys.argv[1:], "devices": os.environ["CUDA_VISIBLE_DEVICES"]}),
        flush=True,
    )
    if Path(model).name == "dies":
        sys.exit("no kernel for this GPU")
    if Path(model).name == "silent":
        time.sleep(600)
    if "FAKE_VLLM_HANGS" in os.environ:
        WORKERS.append(subprocess.Popen(["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]))
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    assert sys.argv[1] == "serve"
    main(sys.argv[2], int(sys.argv[sys.argv.index("--port") + 1]))
