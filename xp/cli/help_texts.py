"""Texts of `--help` that are longer than a line."""

from __future__ import annotations

from typing import Final

EPILOG: Final = """\
`python -m xp COMMAND --help` shows the arguments of one command.

examples:
  python -m xp                               train the default on this CPU
  python -m xp seed=2 training.num_steps=30  the same with other values
  python -m xp -m seed=1,2,3                 a sweep; repeat it to continue
  python -m xp plan --files                  show every stage and file
  python -m xp resume=RUN                    continue from the last checkpoint
  python -m xp run spec.yaml|BUNDLE.zip      do a recorded run again
  python -m xp report RUN                    curves and episodes as one page
"""

EVAL: Final = """\
models, one or several (separated by commas, or repeated):
  model=NAME              an option of the group model (model=tiny)
  model=DIR|ORG/NAME      a Hugging Face model, played on this machine
  model=endpoint model.url=URL model.name=NAME [model.key=VARIABLE]
                          any OpenAI-compatible API; VARIABLE holds its key
  run=RUN|RUN@STEP|RUN@best|RUN@0|RUN@sft
                          a run's model: trained, at a step, with the best
                          evaluation, before training, fine-tuned

environments: env=NAME|URL|Org/Name|package.module:Class, one or several
tasks: eval.tasks=held_out|train|all evaluation.num_tasks=N
       evaluation.samples_per_task=K

`python -m xp eval list` shows all evaluations.
More: docs/evaluation.md"""

LISTS: Final = """\
groups and options: python -m xp options [GROUP]; keys: python -m xp --cfg job
exit codes: docs/exit-codes.md"""

PROFILE: Final = """\
for example:
  python -m xp tasks profile env=whodunit_mini model=tiny --tries 8
  python -m xp env.train.profile=NAME env.train.pass_rate=[0.1,0.9]

Environments and models are given as in `python -m xp eval`. A profile is an
evaluation of the training tasks. The same command continues one that was
stopped; `python -m xp eval list` shows it. With --logged nothing is played:
the mean rewards are those of the rollouts that OpenReward has logged."""
