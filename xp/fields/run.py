"""The run itself, its machine and its launcher."""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field
from xp.fields.shared import is_on_cpu
from xp.spec import Placement

SEED_OF_TURNS = (
    "Each turn is drawn by a seed made of this one, the step, the task, the sample and the turn's number. The order of"
    " tasks is the same on every backend."
)
"""Note on `seed` where requests to the engine have seeds."""


RUN = (
    Field("name", skyrl="trainer.run_name", xp="xp.planning.plan"),
    Field(
        "seed",
        trl=Column(("seed", "data_seed"), note=SEED_OF_TURNS, proof=OWN),
        skyrl=Column("trainer.seed", note=SEED_OF_TURNS, proof=OWN),
        slime=Column(
            ("--seed", "--rollout-seed"),
            note="SGLang's sampling is seeded per engine, so episodes depend on the number of engines.",
            proof="slime::each_engine_has_a_seed_of_its_own",
        ),
    ),
    Field("outputs", xp="xp.run_records"),
    Field("project", skyrl="trainer.project_name", xp="xp.tracking"),
    Field("tracking", xp="xp.tracking"),
    Field("upload_rollouts", xp="xp.worker.stage"),
    Field("record_prompts", xp="xp.worker.tasks"),
    Field("preparation", xp="xp.tasks"),
    Field(
        "hardware",
        slime=Column(
            refuse_if=lambda s: is_on_cpu(s),
            refuse="Slime trains on GPUs only: choose for example hardware=h100x8",
            proof="slime::its_actors_need_a_gpu",
        ),
    ),
    Field("hardware.name", xp="xp.hardware"),
    Field(
        "hardware.accelerator", trl=Column(lambda s: {"use_cpu": is_on_cpu(s)}), xp="xp.hardware"
    ),
    Field(
        "hardware.accelerators_per_node",
        skyrl=Column(
            lambda s: {
                **{
                    f"trainer.placement.{role}_num_gpus_per_node": skyrl.workers(s).per_node
                    for role in skyrl.roles(s)
                },
                "trainer.use_expandable_segments": not is_on_cpu(s),
            }
        ),
        xp="xp.planning.stages",
        proof=OWN,
    ),
    Field("hardware.accelerator_memory_gb", xp="xp.planning.memory"),
    Field("hardware.usd_per_hour", xp="xp.worker.time_limit"),
    Field(
        "hardware.num_nodes",
        trl=Column(
            implemented_by="num_machines",
            refuse_if=lambda s: (
                s.hardware.num_nodes > 1 and s.backend.engine.placement is Placement.SEPARATE
            ),
            refuse="a vLLM server of TRL's is on one machine, and other machines cannot reach it; set"
            " placement=colocated and backend.engine.accelerators=null, or a hardware option of one node",
            proof=OWN,
        ),
        skyrl=Column(
            lambda s: {
                f"trainer.placement.{role}_num_nodes": skyrl.workers(s).num_nodes
                for role in skyrl.roles(s)
            },
            refuse_if=lambda s: is_on_cpu(s) and not skyrl.has_stub(s) and s.hardware.num_nodes > 1,
            refuse=skyrl.not_on_cpu("set 1, or engine.name=transformers"),
            proof=OWN,
        ),
        xp="xp.planning.stages",
    ),
    Field("hardware.num_cpus", xp="xp.planning.stages"),
    Field("hardware.memory_gb", xp="xp.planning.stages"),
    Field("launcher", xp="xp.launchers"),
    Field("launcher.container", proof=OWN),
)
