"""Contract of backends: a subclass of `BackendSuite` that sets a spec's overrides inherits the tests."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import ClassVar

from xp.contrib.contracts.fields import PLACES, composed, dropped
from xp.fields.support import Support, meant_fields
from xp.planning.backend import Backend, backend_of
from xp.planning.job import Stage
from xp.spec import RunSpec


class BackendSuite:
    """Base of a backend's tests. Subclasses set `words`; the backend's package must be installed."""

    words: ClassVar[tuple[str, ...]]
    """Overrides of a spec that the backend accepts, including `backend=...`."""

    @property
    def spec(self) -> RunSpec:
        return composed(self.words)

    @property
    def backend(self) -> Backend:
        return backend_of(self.spec)

    def stages(self) -> tuple[Stage, ...]:
        return self.backend.render(self.spec, PLACES)

    def test_it_takes_the_spec(self) -> None:
        assert [str(refusal) for refusal in self.backend.check(self.spec)] == []

    def test_it_says_what_it_makes_of_every_field(self) -> None:
        assert set(self.backend.meanings(self.spec)) == set(meant_fields(self.spec))

    def test_what_is_not_exact_has_a_note(self) -> None:
        for field, meaning in self.backend.meanings(self.spec).items():
            assert (meaning.support is Support.EXACT) or meaning.note, field

    def test_a_field_that_changes_changes_the_job_or_is_refused(self) -> None:
        assert dropped(self.words, meant_fields(self.spec)) == []

    def test_a_key_of_the_trainers_that_does_not_exist_is_refused(self) -> None:
        spec = composed((*self.words, "++backend.overrides.no_such_key_of_a_trainer=1"))
        assert [refusal.field.partition(".")[0] for refusal in self.backend.check(spec)] == [
            "backend"
        ]

    def test_its_stages_have_names_of_their_own_and_need_what_comes_before(self) -> None:
        known = {"prepare"}
        for stage in self.stages():
            assert stage.name not in known
            assert {*stage.needs} <= known
            known.add(stage.name)
        assert "train" in known

    def test_training_promises_a_model_and_metrics(self) -> None:
        (train,) = (stage for stage in self.stages() if stage.name == "train")
        assert PLACES.metrics in train.job.outputs
        assert any(output.startswith(f"{PLACES.model}/") for output in train.job.outputs)

    def test_files_and_outputs_stay_below_the_outputs_root(self) -> None:
        for stage in self.stages():
            for name in (*stage.job.files, *stage.job.outputs):
                path = PurePosixPath(name)
                assert not path.is_absolute(), name
                assert ".." not in path.parts, name

    def test_the_same_spec_makes_the_same_stages(self) -> None:
        assert self.stages() == self.stages()
