"""`python -m xp report` in a real browser: it opens offline, shows episodes behind a curve, runs nothing foreign."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Watched, chromium, needs_chromium
from tests.support.report_run import episode, make_evaluation, make_run, write_episodes
from xp.cli.report import write_page
from xp.episode.metric_table import METRICS, find, title_of_metric
from xp.episode.metrics_file import MetricsFile
from xp.worker.tiny_model import SHIPPED

pytestmark = [pytest.mark.integration, needs_chromium]
HOSTILE = (
    "</script><script>window.hurt = 1; console.log('hurt')</script><img src=x onerror='window.hurt = 2'>"
    "<a href='javascript:window.hurt=3'>here</a> {{ 7 * 7 }} \x1b[31mred\x1b[0m \u202egnp.exe \ud800 \x00 ]]> <!--"
)
HUGE = "<b>" + "x" * 500_000 + "the end"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of one run, with hostile words in every place that takes them, and a message of half a megabyte."""
    outputs = tmp_path_factory.mktemp("page")
    run = make_run(outputs, "run-one")
    during = MetricsFile(run / "metrics.jsonl", "evaluate_during", 1)
    during.write(2, {"evaluation/during/reward/avg_raw_reward": 0.25})
    (run / "attempt_1/train/trajectories").mkdir(exist_ok=True)
    hostile = [
        episode("train", 3, 90, 0, 5.0, said=HOSTILE, answer=HOSTILE),
        episode("train", 3, 91, 0, None),
        episode("train", 3, 92, 0, -5.0, said=HUGE),
        episode("<script>window.hurt=4</script>", 0, 0, 0, 1.0),
    ]
    write_episodes(run / "attempt_1/train/trajectories/hostile.jsonl", hostile)
    (run / "model").mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SHIPPED / file, run / "model")
    target = outputs / "report.html"
    write_page([run], target, tokens=True)
    return target


@pytest.fixture(scope="module")
def shared(browser: Any) -> Watched:
    """A tab for all tests: a new one for each takes a process."""
    return Watched(browser, viewport={"width": 1200, "height": 900})


@pytest.fixture
def watched(shared: Watched, report: Path) -> Watched:
    shared.problems.clear()
    shared.requests.clear()
    shared.open(report.as_uri())
    return shared


def test_a_page_opens_without_a_complaint_and_asks_nobody_for_anything(
    watched: Watched, report: Path
) -> None:
    watched.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    assert "whodunit_mini" in watched.page.inner_text("header#head")
    assert "better" in watched.page.inner_text(".verdict")
    assert watched.problems == []
    assert watched.requests == [report.as_uri()]


def test_a_page_of_an_evaluation_shows_its_episodes_and_no_training(
    browser: Any, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    write_page([make_evaluation(tmp_path, "whodunit_mini-mine-abc")], target)
    found = Watched(browser, viewport={"width": 1200, "height": 900})
    found.page.goto(target.as_uri())
    found.page.wait_for_selector("#episodes tbody tr, #episodes ul.groups li")
    ids = found.page.locator("#main > section").evaluate_all("all => all.map((one) => one.id)")
    assert ids == ["overview", "episodes", "spec"]
    assert found.problems == []
    found.page.close()


def test_a_click_on_the_curve_opens_step_group_and_episode(watched: Watched) -> None:
    page = watched.page
    plot = page.locator(".chart.large .u-over")
    plot.click(
        position={"x": plot.bounding_box()["width"] * 2 / 4, "y": 50}
    )  # steps 0 (before training) to 4
    page.wait_for_selector("ul.groups li")
    assert page.eval_on_selector("#step", "box => box.value") == "2"
    assert page.locator("ul.groups li").count() == 2
    page.locator(".chip:not(.bare)").first.click()
    assert "in train step 1, sample 0." in page.inner_text(".message.assistant")
    assert "reward 1" in page.inner_text(".row-head")
    assert page.inner_text(".reward-steps").split() == ["reward", "step", "reward", "reduce", "1"]
    page.get_by_role("button", name="its group of 4").click()
    page.wait_for_selector(".side-part")
    assert [part.inner_text().split("\n")[0] for part in page.locator(".side-part").all()] == [
        f"sample {number}" for number in range(4)
    ]
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")
    page.go_back()
    page.wait_for_selector(".side-part")
    assert watched.problems == []


def test_words_of_models_and_servers_run_nothing_and_hide_nothing(watched: Watched) -> None:
    page = watched.page
    page.evaluate("XP.go({phase: 'train', step: 4, filter: 'best'})")
    page.locator("#episodes tr.open").first.click()
    page.wait_for_selector(".message.assistant")
    words = page.inner_text(".message.assistant > pre")
    for part in (
        "</script><script>window.hurt = 1;",
        "onerror=",
        "{{ 7 * 7 }}",
        "\\u001b[31mred",
        "\\u202egnp.exe",
        "\\u0000",
    ):
        assert part in words
    assert page.evaluate("window.hurt") is None
    assert page.locator("dialog img, dialog a, main script").count() == 0
    assert watched.problems == []


def test_tokens_are_shown_with_the_mask_when_they_are_asked_for(watched: Watched) -> None:
    page = watched.page
    page.evaluate("XP.go({phase: 'train', step: 2})")
    page.locator(".chip:not(.bare)").first.click()
    page.get_by_text("Tokens and mask").click()
    page.wait_for_selector(".tokens .token.trained")
    trained = "".join(page.locator(".tokens .token.trained").all_inner_texts())
    masked = "".join(page.locator(".tokens .token:not(.trained)").all_inner_texts())
    assert "I accuse number 0 in train step 1, sample 0." in trained
    assert "Who did it?" in masked
    assert "Who did it?" not in trained
    assert watched.problems == []


CHARTS = """XP.charts.map(({ given, figure }) => ({
    title: given.title, caption: figure.querySelector("figcaption").textContent, metric: given.metric,
    lines: given.lines.filter((line) => !line.isBound).map(
        ({ label, x, y }) => ({ label, points: x.map((at, place) => [at, y[place]]) })),
}))"""


def test_every_chart_shows_the_values_of_the_metrics_file_under_their_title_and_unit(
    browser: Any, tmp_path: Path
) -> None:
    run = make_run(tmp_path, "charts", num_steps=2)
    (run / "metrics.jsonl").unlink()
    names = [
        row.name
        for row in METRICS
        if "<" not in row.name and not row.name.startswith(("sft/", "tasks/"))
    ]
    of_title = {title_of_metric(name): name for name in names}
    of_title["training"] = "reward/avg_raw_reward"
    train = MetricsFile(run / "metrics.jsonl", "train", 1)
    for step in (1, 2):
        train.write(step, {name: step * 100.0 + place for place, name in enumerate(names)})
    write_page([run], tmp_path / "report.html")
    found = Watched(browser)
    found.open((tmp_path / "report.html").as_uri())
    shown = []
    for chart in found.page.evaluate(CHARTS):
        if chart["metric"] is None:
            continue
        main = find(chart["metric"])
        assert main is not None
        assert chart["caption"] == f"{chart['title']} {main.unit}"
        for line in chart["lines"]:
            if line["label"] == "held-out":
                continue  # of the evaluations
            name = of_title[line["label"]]
            row = find(name)
            assert row is not None
            assert row.unit == main.unit, "one axis, one unit"
            place = names.index(name)
            assert line["points"] == [[1, 100.0 + place], [2, 200.0 + place]]
            shown.append(name)
    assert sorted(shown) == sorted(names)
    found.page.close()


def test_void_episodes_have_their_reason_and_no_reward(watched: Watched) -> None:
    page = watched.page
    page.select_option("#filter", "void")
    page.locator("#episodes tr.open").first.click()
    page.wait_for_selector("dialog .warn")
    assert "the server was gone" in page.inner_text("dialog .warn")
    assert "reward void" in page.inner_text(".row-head")


def test_a_policy_stands_against_scripts_that_are_not_the_pages_own(watched: Watched) -> None:
    page = watched.page
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hurt = 5'}))"
    )
    page.evaluate("fetch('http://127.0.0.1:1/').catch(() => null)")
    assert page.evaluate("window.hurt") is None
    assert any("Content Security Policy" in problem for problem in watched.problems)
