"""Public training scripts in xp: where each of their keys went, for docs/public-scripts.md and its test.

`python -m tools.public_scripts NAME` prints what became of each key of a script, and
`python -m tools.public_scripts NAME ORG/REPO@COMMIT/PATH FILE` writes its keys into `published/NAME.yaml`.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from xp.cli.explain import fields_of
from xp.composition import compose
from xp.composition.plan_keys import PlanKeys
from xp.contrib.native_diff.difference import Difference, KeyLine, KeyResult
from xp.contrib.native_diff.scripts import Script, read_script
from xp.lib.reading import yaml_value
from xp.lib.text import shortened
from xp.planning.plan import build_plan, build_sft

FACTS: Final = Path(__file__).parent / "published"
"""One file for each script: `source`, what it `shows`, xp's `words`, `reasons` for keys that are not equal, and the
script's `keys`."""
REASONS: Final = {
    "expert-tensor-parallel-size": "the model has no experts",
    "kl-loss-type": "of weight 0; `low_var_kl` is `k3` cut at 10, and `backend.overrides` opens it",
    "logging_steps": "xp writes its own metrics of every step",
    "max_steps": "`training.epochs` is set",
    "moe-layer-freq": "a loop of the script makes it, with the same layers",
    "project_name": "a name of the user's: `project`",
    "run_name": "a name of the user's: `name`",
    "save_strategy": "a checkpoint is made every `training.checkpoint_every` steps, and at the end",
    "sequence-parallel": "no effect with one tensor rank",
    "trainer.max_ckpts_to_keep": "`training.keep_checkpoints`",
    "trainer.project_name": "a name of the user's: `project`",
    "trainer.run_name": "a name of the user's: `name`",
    "use-kl-loss": "a penalty of weight 0 costs a forward of the reference and changes nothing",
}
"""Key -> why it differs, in any script."""
HEAD: Final = """\
# Public scripts

Made by `make docs`: public training scripts in xp's words, and how many of their keys are equal, different and taken by xp
([what these mean](configuration.md#porting-a-script)), with the names of those that are left over.
`python -m xp plan WORDS --native-diff SCRIPT` shows each key, with the sentence why it is not equal.
Data, graders and names of files are the environment's in xp; where a script's data is no option of xp's, another
environment is in its place. `tests/unit/test_public_scripts.py` plans them all.
"""
WITHOUT_A_FIELD: Final = {
    "`token_mean_legacy`, `bnpo`": "a mean of micro-batches' means depends on `training.micro_batch_size`;"
    " `backend.overrides` opens it on SkyRL and TRL",
    "`clip_cov`, `kl_cov`": "they choose tokens by their covariance within a micro-batch, and SkyRL alone has them;"
    " `backend.overrides` opens them there",
    "`dppo`": "SkyRL alone has it; `backend.overrides` opens it there",
    "`gmpo`": "none of the three trainers has the loss",
    "top-entropy tokens": "TRL alone has them: `backend.overrides.top_entropy_quantile`",
}
"""Knob -> why it is no field."""


@dataclass(frozen=True)
class PublicScript:
    """A script's facts."""

    name: str
    source: str
    """ORG/REPO@COMMIT/PATH."""
    shows: str
    words: tuple[str, ...]
    reasons: Mapping[str, str]
    keys: Mapping[str, Any]

    @property
    def address(self) -> str:
        place, _, path = self.source.partition("@")
        return f"https://github.com/{place}/blob/{path}"

    @cached_property
    def rows(self) -> list[KeyLine]:
        """What became of each key; raises XpError if xp refuses the words."""
        spec = compose([word for word in self.words if word != "--sft"])
        if "--sft" in self.words:
            plan = build_sft(spec, "r")
        else:
            plan = build_plan(spec, "r")
        fields = {path: field.value for path, field in fields_of(plan.spec).items()}
        return Difference(PlanKeys(plan), fields).lines(Script(self.keys))

    def reason(self, row: KeyLine) -> str:
        """xp's field or sentence, with the reason of the facts; empty for a difference that nobody explains."""
        reason = self.reasons.get(row.key, REASONS.get(row.key.removeprefix("--"), ""))
        is_explained = row.result is not KeyResult.DIFFERENT or row.in_xp.startswith(
            "the same for every run: "
        )
        if not reason:
            if is_explained:
                return row.in_xp.removeprefix("the same for every run: ")
            return ""
        if row.result is KeyResult.TAKEN:
            return f"{row.in_xp}; {reason}"
        return reason


@cache
def scripts() -> Mapping[str, PublicScript]:
    """Name -> script."""
    loaded = {
        file.stem: yaml_value(file.read_text(encoding="utf-8"))
        for file in sorted(FACTS.glob("*.yaml"))
    }
    return {
        name: PublicScript(
            name,
            facts["source"],
            facts["shows"],
            tuple(facts["words"]),
            facts.get("reasons") or {},
            facts["keys"],
        )
        for name, facts in loaded.items()
    }


def page() -> str:
    """Content of docs/public-scripts.md."""
    lines = [
        HEAD,
        "| script | in xp | equal | different | taken by xp | left over |",
        "|---|---|---|---|---|---|",
        *map(_line, scripts().values()),
    ]
    lines += ["", "Without a field, on purpose:", "", "| knob | reason |", "|---|---|"]
    lines += [f"| {knob} | {reason} |" for knob, reason in WITHOUT_A_FIELD.items()]
    return "\n".join([*lines, ""])


def _line(script: PublicScript) -> str:
    number = Counter(row.result for row in script.rows)
    left = [f"`{row.key}`" for row in script.rows if row.result is KeyResult.LEFT_OVER]
    cells = (
        f"[{script.name}]({script.address}): {script.shows}",
        f"`{shlex.join(script.words)}`",
        *(
            str(number[result])
            for result in (KeyResult.EQUAL, KeyResult.DIFFERENT, KeyResult.TAKEN)
        ),
        ", ".join(left),
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def show(name: str) -> None:
    """Prints what became of each key of a script, with the reason."""
    script = scripts()[name]
    for row in script.rows:
        print(f"{row.key}\t{row.script}\t{row.result}\t{script.reason(row)}")


def main(name: str, source: str, file: str) -> None:
    """Writes a script's keys into its facts, and leaves xp's words and the reasons as they are."""
    place = FACTS / f"{name}.yaml"
    if place.exists():
        facts = yaml.safe_load(place.read_text(encoding="utf-8"))
    else:
        facts = {"shows": "", "words": []}
    keys = {
        key: _short(value) for key, value in read_script(Path(file), lambda _: True).keys.items()
    }
    text = yaml.safe_dump(
        {
            "source": source,
            **{key: facts[key] for key in ("shows", "words")},
            "reasons": facts.get("reasons") or {},
        },
        sort_keys=False,
        width=160,
    )
    place.write_text(
        text + yaml.safe_dump({"keys": keys}, sort_keys=False, width=160, default_flow_style=None)
    )


def _short(value: Any) -> Any:
    """A flag without its list, and the beginning of a long text; true: a switch."""
    if isinstance(value, str):
        return shortened(value, 120)
    if isinstance(value, list):
        if not value:
            return True
        if len(value) == 1:
            return _short(value[0])
        return value
    return value


if __name__ == "__main__":
    if len(sys.argv) == 2:
        show(sys.argv[1])
    else:
        main(*sys.argv[1:])
