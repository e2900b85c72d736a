"""The line at the end of `make test`."""

from __future__ import annotations

from tests.real_code import real_code


def test_a_run_says_whose_real_code_it_ran() -> None:
    passed = [
        "tests/trainers/test_trl_loss.py::a",
        "tests/trainers/test_trl.py::b",
        "tests/trainers/test_slime_x.py::c",
    ]
    said = real_code(passed, is_here={"trl", "vllm"}.__contains__)
    assert said.startswith(
        "Real code that ran: TRL (2 tests). Not run: SkyRL (make test-skyrl, a part of make test), Slime (make"
    )
    assert "vLLM (make test-vllm)" in said  # it is installed, and none of its tests ran


def test_an_engine_of_two_trainers_counts_for_both() -> None:
    said = real_code(["tests/engines/test_skyrl.py::a"], is_here=lambda _: True)
    assert said.startswith("Real code that ran: SkyRL (1 test), vLLM (1 test). Not run: TRL (make test), Slime")
