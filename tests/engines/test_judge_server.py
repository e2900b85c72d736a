"""The real vLLM as the server of a run's own judge: its API, its key, and the code of the program beside it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.engines import needs_vllm
from tests.support.child import ended
from tests.support.tiny import leave_model
from xp.composition import compose
from xp.worker.engines.config import JudgeServer, VLLMServer

pytestmark = needs_vllm
PROGRAM = """
import json, os, sys, urllib.error, urllib.request
from xp.envs.judges import SERVER_KEY, SERVER_URL

def status(key):
    body = {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.0}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{os.environ[SERVER_URL]}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, isinstance(json.load(response)["choices"][0]["message"]["content"], str)
    except urllib.error.HTTPError as error:
        return error.code

print(json.dumps([status(os.environ[SERVER_KEY]), status("another")]))
sys.exit(7)
"""


def test_a_program_beside_vllm_is_answered_with_the_key_alone(tmp_path: Path) -> None:
    leave_model(tmp_path / "judge")
    (tmp_path / "a_program.py").write_text(PROGRAM)
    words = (
        "--tensor-parallel-size",
        "1",
        "--generation-config",
        "vllm",
        "--gpu-memory-utilization",
        "0.2",
    )
    server = VLLMServer(words, 0, 1200.0, 600.0)
    spec = compose(
        ["env=multiply", f"env.judge={{rubric: Long, model: {{serve: {tmp_path}/judge, name: a}}}}"]
    )
    judge = spec.served_judge
    assert judge is not None
    config = JudgeServer(judge, spec.launcher, False, server, 0, str(tmp_path / "judge.log"))
    (tmp_path / "judge.json").write_text(config.to_json())
    command = [
        sys.executable,
        "-m",
        "xp.worker.engines.judge_server",
        str(tmp_path / "judge.json"),
        "-m",
        "a_program",
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    done = ended(command, cwd=tmp_path, env=environ)
    assert done.returncode == 7, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[200, True], 401]
