"""The run itself, its machine and its launcher."""

from __future__ import annotations

from xp.fields.field import OWN, Column, Field, by_xp
from xp.fields.shared import is_colocated, is_on_cpu
from xp.fields.skyrl import has_stub, not_on_cpu, roles, workers

SEED_OF_TURNS = (
    "Each turn is drawn by a seed made of this one, the step, the task, the sample and the turn's number. The order of"
    " tasks is the same on every backend."
)
"""Note on `seed` where requests to the engine have seeds."""
NO_TOKENS = Column(
    refuse="the price of tokens limits nothing where no service counts them; set null, and hardware.usd_per_hour=N",
    proof=OWN,
)


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
    Field("outputs", xp="xp.execution"),
    Field("project", skyrl="trainer.project_name", xp="xp.execution.tracking"),
    *by_xp(
        {
            "tracking": "xp.execution.tracking",
            "upload_rollouts": "xp.worker.stage",
            "record_prompts": "xp.worker.tasks",
            "preparation": "xp.tasks",
        }
    ),
    Field(
        "hardware",
        slime=Column(
            refuse_if=is_on_cpu,
            refuse="Slime trains on GPUs only: choose for example hardware=h100x8",
            proof="slime::its_actors_need_a_gpu",
        ),
    ),
    Field("hardware.name", xp="xp.spec.hardware"),
    Field(
        "hardware.accelerator",
        trl=Column(lambda s: {"use_cpu": is_on_cpu(s)}),
        xp="xp.spec.hardware",
    ),
    Field(
        "hardware.accelerators_per_node",
        skyrl=Column(
            lambda s: {
                **{
                    f"trainer.placement.{role}_num_gpus_per_node": workers(s).per_node
                    for role in roles(s)
                },
                "trainer.use_expandable_segments": not is_on_cpu(s),
            }
        ),
        xp=Column(implemented_by="xp.planning.stages", proof=OWN),
    ),
    *by_xp(
        {
            "hardware.accelerator_memory_gb": "xp.planning.memory",
            "hardware.usd_per_hour": "xp.worker.time_limit",
        }
    ),
    Field(
        "hardware.usd_per_million_tokens",
        trl=NO_TOKENS,
        skyrl=NO_TOKENS,
        slime=NO_TOKENS,
        xp="xp.spec.launcher",
    ),
    Field(
        "hardware.num_nodes",
        trl=Column(
            implemented_by="num_machines",
            refuse_if=lambda s: s.hardware.num_nodes > 1 and not is_colocated(s),
            refuse="a vLLM server of TRL's is on one machine, and other machines cannot reach it; set"
            " placement=colocated and backend.engine.accelerators=null, or a hardware option of one node",
            proof=OWN,
        ),
        skyrl=Column(
            lambda s: {
                f"trainer.placement.{role}_num_nodes": workers(s).num_nodes for role in roles(s)
            },
            refuse_if=lambda s: is_on_cpu(s) and not has_stub(s) and s.hardware.num_nodes > 1,
            refuse=not_on_cpu("set 1, or engine.name=transformers"),
            proof=OWN,
        ),
        xp="xp.planning.stages",
    ),
    *by_xp(
        {
            "hardware.num_cpus": "xp.planning.stages",
            "hardware.memory_gb": "xp.planning.stages",
            "launcher": "xp.execution.launchers",
        }
    ),
    Field("launcher.container", xp=Column(proof=OWN)),
)
