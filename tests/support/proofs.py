"""The tests that the tables of limits name as proofs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.tables import rows
from xp.fields.field import OWN
from xp.fields.limits import Limit

ROOT = Path(__file__).parents[2]
TRAINERS = ("trl", "skyrl", "slime")


def missing_tests(limits: Iterable[Limit]) -> list[str]:
    """Proofs that name no test."""
    proofs = [limit.proof for limit in limits if limit.proof != OWN]
    assert proofs
    places = [(proof, *proof.split("::")) for proof in proofs]
    in_table = {
        (f"tests/limits/test_{section}.py", f"test_{row}")
        for section, row, _ in (case.values for case in rows("words"))
    }
    return [
        proof
        for proof, file, name in places
        if (file, name) not in in_table and f"\ndef {name}(" not in (ROOT / file).read_text()
    ]
