"""A judge that a run serves for itself: its accelerators, its server beside the stage's program, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.child import Fork
from tests.support.fake_vllm import FAKE
from xp.composition import compose
from xp.errors import XpError
from xp.fields.batch_shape import batch_shape
from xp.planning.plan import build_plan
from xp.results.evaluation.local import check_engine
from xp.results.evaluation.settings import settings
from xp.spec import RunSpec
from xp.worker.engines import judge_server, server
from xp.worker.engines.config import JudgeServer, VLLMServer
from xp.worker.program import run_stage

JUDGE = "env.judge={rubric: Is it kind?, model: {serve: ORG/A-MODEL, accelerators: 2}}"
SIZES = ("hardware=a100x4", "env=multiply", "model=qwen2.5-1.5b-instruct")


def spec_of(*words: str) -> RunSpec:
    return compose([*SIZES, JUDGE, *words])


@pytest.mark.parametrize("backend", ["trl", "slime"])
def test_a_served_judge_has_the_last_accelerators_and_the_trainer_the_others(backend: str) -> None:
    spec = spec_of(
        f"backend={backend}", *(["backend.parallel.tensor=2"] if backend == "slime" else [])
    )
    stages = {stage.name: stage.job for stage in build_plan(spec, "run").stages}
    assert batch_shape(spec).per_node == 2
    for name, program in (
        ("train", f"xp.backends.{backend}.worker."),
        ("evaluate", "xp.worker.engines.evaluate"),
    ):
        job = stages[name]
        assert job.resources.num_accelerators == 4
        assert job.argv[:3] == ("python", "-m", "xp.worker.engines.judge_server")
        assert job.argv[4] == "-m"
        assert job.argv[5].startswith(program)
        server = JudgeServer.from_json(job.files[job.argv[3]])
        assert server.judge.serve == "ORG/A-MODEL"
        assert server.trainer_accelerators == 2
        assert server.server.num_accelerators == 2
        assert server.is_sglang is (backend == "slime")
        judge = json.loads(job.files[f"{job.argv[3].rpartition('/')[0]}/episode.json"])["members"][
            "multiply"
        ]["judge"]
        assert judge["model"]["url"] is judge["model"]["key"] is None
        assert "XP_JUDGE_KEY" not in job.secrets
    assert "xp.worker.engines.judge_server" not in stages["prepare"].argv


def test_a_judge_whose_weights_exceed_its_accelerators_is_refused(tmp_path: Path) -> None:
    shape = {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }
    network = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "intermediate_size": 28672,
    }
    (tmp_path / "config.json").write_text(json.dumps({**shape, **network, "vocab_size": 152064}))
    word = f"env.judge={{rubric: r, model: {{serve: {tmp_path}, accelerators: 1}}}}"
    with pytest.raises(
        XpError, match=r"has 1[23]\d GiB of weights in bfloat16, more than the memory of 1 x 80 GiB"
    ):
        build_plan(compose([*SIZES, "backend=trl", word]), "run")


@pytest.mark.parametrize(
    ("words", "engine", "reason"),
    [
        (["hardware=cpu"], "sglang", "eval.engine=sglang cannot serve it; set eval.engine=vllm"),
        (["hardware=a100x1"], "vllm", "leaves the evaluated model no accelerator"),
    ],
)
def test_an_evaluation_that_cannot_serve_its_judge_is_refused(
    words: list[str], engine: str, reason: str
) -> None:
    judged = "env.judge={rubric: r, model: {serve: ORG/A}}"
    spec = compose(["env=multiply", *words, judged])
    how = settings({"eval.engine": engine}).eval
    with pytest.raises(XpError, match=reason):
        check_engine(spec, how, is_local=True)


PROGRAM = """
import json, os, sys
from tests.support.judges import config
from xp.spec.dialect import Dialect
from xp.spec.judge import JudgeScoring
from xp.episode.judge import Judge, JudgeLog
judged = config(type("Server", (), {"url": None}), JudgeScoring.POINTWISE, name="a", serve="ORG/MODEL")
scores = Judge(judged, os.environ, lambda _: {}, JudgeLog(), Dialect.HERMES).score_answers([], ["x"], "r", "t")
print(json.dumps([scores.values, os.environ["CUDA_VISIBLE_DEVICES"], sys.argv[1:]]))
sys.exit(7)
"""


def test_a_program_is_judged_by_the_server_beside_it_and_its_code_is_the_stages(
    tmp_path: Path,
) -> None:
    (tmp_path / "a_program.py").write_text(PROGRAM)
    log = tmp_path / "judge.log"
    file = tmp_path / "judge.json"
    vllm = VLLMServer(("--tensor-parallel-size", "1"), 1, 300.0, 600.0)
    spec = spec_of("env.judge.model={serve: some/model, name: a}")
    judge = spec.served_judge
    assert judge is not None
    file.write_text(
        JudgeServer(
            judge,
            spec.launcher,
            False,
            vllm,
            2,
            str(log),
        ).to_json()
    )
    root = Path(__file__).parents[2]
    path = f"{FAKE}:{root}:{tmp_path}"
    environ = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "4,5,6"}

    def program() -> int:
        server.SETTLE_S = 0.2  # type: ignore[misc]
        return run_stage(judge_server.main, [str(file), "-m", "a_program", "word"])

    done = Fork(program, tmp_path, environ).end()
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[0.5], "4,5", ["word"]]
    begun = json.loads(log.read_text().splitlines()[0])
    assert begun["devices"] == "6"
    assert begun["argv"][begun["argv"].index("--served-model-name") + 1] == "a"
