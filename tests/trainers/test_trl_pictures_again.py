"""A training with pictures done again: after a kill, as a replay, and of a bundle elsewhere; and its pages."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("trl")

from tests.support.embedded_default import xp
from tests.support.launching import ROOT
from tests.support.picture_trainings import played
from tests.support.resuming import SMALL as LOST
from tests.support.resuming import STEPS, lose_once, process_with
from tests.support.stages_here import stages_here as stages_here
from tests.support.view_server import served
from xp.__main__ import main
from xp.envs.builtin.shapes_mini import ShapesMini, drawn, puzzle
from xp.envs.picture_store import PictureStore
from xp.errors import ExitCode
from xp.tasks.picture_files import FILE

SMALL = (
    "model=tiny_vlm",
    "hardware=cpu",
    "hardware.num_cpus=1",
    "training.num_steps=2",
    "training.prompts_per_step=3",
    "training.group_size=4",
    "training.micro_batch_size=12",
    "training.checkpoint_every=1",
)
NUM_ROWS = 12
KEPT = ("task set     same", "first batch  same", "weights      same")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run that was trained on rows of a file, with their pictures beside it."""
    home = tmp_path_factory.mktemp("pictures") / "boards"
    (home / "shown").mkdir(parents=True)
    rows = []
    for number, row in enumerate(ShapesMini().rows()["train"][:NUM_ROWS]):
        (home / f"shown/{number}.png").write_bytes(row["image"])
        rows.append({**row, "image": f"shown/{number}.png"})
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("env=graded", "env.rows=./rows.jsonl", "env.grader=number", "env.held_out=null")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT))
        done = xp(home, *words, *SMALL, "name=seen")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return home


def run_of(home: Path) -> Path:
    """The run, which a replay of it begins after."""
    return min((home / "outputs/runs").glob("seen-*"))


@contextmanager
def another_picture(home: Path, number: int) -> Iterator[None]:
    """Another picture in the place of one that the rows name; the recorded spec has the absolute path of the rows."""
    file = home / f"shown/{number}.png"
    data = file.read_bytes()
    file.write_bytes(drawn(puzzle("another")[0]))
    yield
    file.write_bytes(data)


def test_a_replay_names_the_task_with_another_picture(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "boards"
    shutil.copytree(home, here)
    monkeypatch.chdir(here)
    assert main(["replay", run_of(here).name, "--no-training"]) == 0, capsys.readouterr()
    assert KEPT[0] in capsys.readouterr().out
    with another_picture(home, 3):
        assert main(["replay", run_of(here).name, "--no-training"]) == ExitCode.DIFFERS
    assert "boards/train/3: another messages" in capsys.readouterr().out


@pytest.mark.usefixtures("stages_here")
def test_a_bundle_has_the_pictures_and_replays_elsewhere(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "here/boards"
    shutil.copytree(home, here)
    monkeypatch.chdir(here)
    bundle = tmp_path / "there/seen.zip"
    bundle.parent.mkdir()
    # The bundle has the run's pictures, and not those that are there now.
    with another_picture(home, 0):
        assert main(["runs", "bundle", run_of(here).name, "--to", str(bundle)]) == 0
    assert "left out: picture" not in capsys.readouterr().out
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
        (digests,) = [
            json.loads(archive.read(name))["boards"] for name in names if name.endswith(FILE)
        ]
        assert set(digests) == {f"shown/{number}.png" for number in range(NUM_ROWS)}
        stored = {Path(name).name: archive.read(name) for name in names if name[:9] == "pictures/"}
    assert set(stored) == set(digests.values())
    assert all(hashlib.sha256(data).hexdigest() == digest for digest, data in stored.items())
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(bundle.parent)
    assert main(["replay", "seen.zip"]) == 0, capsys.readouterr()
    shown = capsys.readouterr().out
    assert all(line in shown for line in KEPT), shown
    store = PictureStore(bundle.parent / "outputs/pictures")
    assert all(store.data(digest) == stored[digest] for digest in stored)


def test_a_place_outside_of_a_bundle_gets_no_picture(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert main(["runs", "bundle", run_of(home).name, "--to", str(tmp_path / "a.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(content["bundle.json"])
    about["pictures"] = {"../../outside.png": next(iter(about["pictures"].values()))}
    content["bundle.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "b.zip"]) != 0
    assert not list(tmp_path.rglob("outside.png"))


URI = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


def is_picture(uri: str) -> bool:
    return base64.b64decode(uri.partition(",")[2])[1:4] == b"PNG"


def test_report_and_view_show_the_pictures_without_the_network(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    run = run_of(home)
    assert main(["report", run.name]) == 0
    page = html.unescape((run / "report.html").read_text())
    chunks = re.findall(r'id="chunk-[^>]*>([^<]*)<', page)
    texts = [gzip.decompress(base64.b64decode(chunk)).decode() for chunk in chunks]
    pictures = [uri for text in texts for uri in URI.findall(text)]
    assert len(pictures) >= NUM_ROWS
    assert all(map(is_picture, pictures))
    assert "img-src data:; connect-src 'none'" in page
    with served(home / "outputs", run.name) as server:
        server.json("/api/run?run=0&rows_from=0")
        (uri,) = server.json("/api/episode?run=0&row=0")["messages"][0]["pictures"]
    assert is_picture(uri)


WORDS = ("env=shapes_mini", *SMALL[:3], "training.warmup_updates=0")


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    broken = tmp_path / "broken"
    broken.mkdir()
    lose_once(
        broken, lambda tree: process_with("xp.backends.trl.worker.train", tree).kill(), *WORDS
    )
    done = xp(tmp_path, *LOST, *WORDS, f"outputs={tmp_path}/whole")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (killed,) = (broken / "runs").iterdir()
    (whole,) = (tmp_path / "whole/runs").iterdir()
    before = played(killed)
    after = played(whole)
    assert sorted({step for step, *_ in after}) == [*range(1, STEPS + 1)]
    assert before == after
    assert all(messages[0]["pictures"] for messages in after.values())
    weights = "model/model.safetensors"
    assert (killed / weights).read_bytes() == (whole / weights).read_bytes()
