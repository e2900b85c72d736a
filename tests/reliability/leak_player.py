"""Plays episodes on one environment until it is killed: `python -m tests.reliability.leak_player KIND FOLDER LOG SEED`.

Each episode that begins is one line of LOG. FOLDER has Harbor's tasks; `ors` serves an environment with a sandbox.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.fake_session import call
from tests.support.harbor_tasks import harbor
from tests.support.ors_server import rules
from xp.envs.base import Task
from xp.envs.config import EnvConfig, load_provider
from xp.episode.episode import Episode

AT_ONCE = 8
SANDBOXED = "tests.envs_under_test.sandboxed:Sandboxed"
TURNS = {
    "harbor": [
        call("bash", command="sleep 600 & touch left"),
        call("bash", command="echo hello > hello.txt"),
        "Done.",
    ],
    "ors": [call("run"), call("run"), call("submit")],
}
"""Each episode leaves a process in its sandbox."""


def main(kind: str, folder: str, log: str, seed: int) -> None:
    rule: EnvConfig = harbor(Path(folder)) if kind == "harbor" else rules(serve=SANDBOXED)
    provider = load_provider(rule, os.environ)
    draws = random.Random(seed)
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def play(turns: int) -> None:
        task = Task("x", "train", 0)
        episode = Episode(task, lambda: provider.open(task), rule)
        os.write(lines, b"begun\n")
        for text in TURNS[kind][:turns]:
            episode.step(text)
        if turns:  # Others are left as they are: their trainer has forgotten them.
            episode.settle()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            list(
                pool.map(play, [draws.randrange(len(TURNS[kind]) + 1) for _ in range(4 * AT_ONCE)])
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
