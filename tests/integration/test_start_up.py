"""`plan` answers at once: it imports nothing heavy, opens no connection and writes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.child import ended
from xp.composition import compose
from xp.lib.verified import damaged
from xp.planning.stages import model_stages
from xp.worker.places import RunPaths
from xp.worker.tiny_model import MANIFEST, PLACE, SHIPPED

PLANS = """
import sys
written = []
def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        written.append(str(arguments[0]))
    if event in ("socket.connect", "subprocess.Popen", "os.mkdir"):
        written.append(event)
sys.addaudithook(audit)
from xp.__main__ import main
heavy = {"torch", "transformers", "trl", "openreward", "datasets", "pyarrow", "aiohttp", "ray", "matplotlib", "numpy", "sglang"}
for words in sys.argv[1:]:
    main(words.split())
    files = [name for name in written if not name.endswith(".pyc") and "__pycache__" not in name]
    print("\\nFOUND", words, sorted(heavy & set(sys.modules)), files)
"""
COMMANDS = (
    "plan",
    "plan -m seed=1,2",
    "plan env=nonsense",
    "plan recipes=whodunit-skyrl",
    "plan recipes=whodunit-slime",
    "--cfg job",
)


def test_planning_imports_nothing_heavy_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = ended([sys.executable, "-B", "-c", PLANS, *COMMANDS], cwd=tmp_path, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found == [f"FOUND {words} [] []" for words in COMMANDS]
    assert list(tmp_path.iterdir()) == []


XP = Path(__file__).parents[2] / "xp"


HEAVY = ("hydra", "numpy", "omegaconf", "pyarrow", "rich", "scipy", "torch", "transformers", "yaml")


LIMIT_S = 3.0
"""Seconds of the processor for the import, several times what it takes."""


def test_the_spec_loads_nothing_heavy_in_a_job() -> None:
    program = f"""
import json, sys, time
began = time.process_time()
import xp.spec, xp.envs.config, xp.worker.stage
print(json.dumps([[name for name in {HEAVY!r} if name in sys.modules], time.process_time() - began]))
"""
    done = ended([sys.executable, "-c", program], cwd=XP.parent, check=True)
    heavy, seconds = json.loads(done.stdout)
    assert heavy == []
    assert seconds < LIMIT_S


COPIES = """
import sys
from xp.worker.tiny_model import main
main(sys.argv[1:])
print("HEAVY", sorted({"torch", "transformers", "trl"} & set(sys.modules)))
"""


def test_the_model_stage_copies_it_without_importing_a_trainer(tmp_path: Path) -> None:
    (stage,) = model_stages(compose([]), RunPaths(run="runs/r", attempt=1, tasks="tasks/t"))
    (tmp_path / "config.json").write_text(*stage.job.files.values())
    done = ended([sys.executable, "-c", COPIES, "config.json"], cwd=tmp_path, check=True)
    assert "HEAVY []" in done.stdout
    assert damaged(tmp_path / PLACE / MANIFEST) is None
    assert (tmp_path / PLACE / "model.safetensors").read_bytes() == (
        SHIPPED / "model.safetensors"
    ).read_bytes()
