"""Makes the data of a page from runs, for `xp report` and `xp view`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from xp import __version__
from xp.envs.picture_store import DIRECTORY, PictureStore
from xp.episode.evaluation import EvaluationRecord
from xp.episode.metric_table import find, title_of_metric
from xp.errors import ExitCode, XpError
from xp.execution.notes import listed_notes
from xp.execution.record import read_record, status_of
from xp.lib.reading import json_of, recorded_spec
from xp.results.evaluation.records import REQUEST, line_of, listed
from xp.results.report.comparison import comparison
from xp.results.report.curves import curves, reward_intervals, tool_calls
from xp.results.report.episode_detail import detail
from xp.results.report.episodes import EpisodeEntry, EpisodeIndex
from xp.results.report.recipe import differences, flat
from xp.results.report.result import page_figures, results, verdict
from xp.results.report.run_facts import facts, plan_and_measured, stages, title_of
from xp.results.report.selection import Extent, chosen
from xp.results.report.web import page_name

FORMAT: Final = 1
NAMED: Final = ("phase", "env", "split", "status")
"""Columns of episodes with positions in a list of names."""
ROUNDED: Final = ("reward", "seconds")
COMPRESSION: Final = 6
USAGE: Final = ("prompt_tokens", "completion_tokens", "cost_usd")
"""Figures of an evaluation's usage on its page."""
MOST_WITH_EPISODES: Final = 6
"""Largest number of runs whose episodes a page has by default."""


class RunPage:
    """Data of one run for a page.

    Args:
        run: directory of the run, with its record.
        with_episodes: whether its trajectories are read.
    """

    def __init__(self, run: Path, *, with_episodes: bool = True) -> None:
        self.run = run
        self.index = EpisodeIndex(run)
        self.spec = self._spec()
        self._with_episodes = with_episodes
        self._names: dict[str, dict[str, int]] = {name: {} for name in NAMED}

    def _spec(self) -> dict[str, Any]:
        return recorded_spec(self.run / "spec.yaml")

    def thumbnail(self, digest: str) -> str | None:
        """A small picture as a data URI. None means that it is not in the outputs of the run."""
        return PictureStore(self.run.parent.parent / DIRECTORY).thumbnail(digest)

    def refresh(self) -> None:
        """Reads the episodes that were written since the last call."""
        if self._with_episodes:
            self.index.refresh()

    def data(self, rows_from: int = 0, chunk_of: Mapping[int, int] | None = None) -> dict[str, Any]:
        """All data except the episodes' texts.

        Args:
            rows_from: number of the first episode to include.
            chunk_of: number of an episode -> chunk with its text. None means that the page requests texts from the
                server.
        """
        record = read_record(self.run)
        lines = curves(self.run)
        status = status_of(self.run, record)
        base, changed = differences(self.spec)
        return {
            "id": page_name(record.run_id),
            "status": status,
            "title": title_of(self.spec),
            "facts": [*facts(record), *_notes(self.run)],
            "verdict": verdict(self.run, record, status, self.index.count),
            "stages": stages(record),
            "plan": plan_and_measured(self.spec, record, lines.get("train", {})),
            "spec": list(flat(self.spec).items()),
            "base": base,
            "differences": changed,
            "metrics": lines,
            "reward": reward_intervals(self.index),
            "calls": tool_calls(self.index),
            "held_out": results(self.run),
            "episodes": self._columns(rows_from, chunk_of),
            "unreadable": self.index.num_unreadable,
        }

    def _columns(self, rows_from: int, chunk_of: Mapping[int, int] | None) -> dict[str, Any]:
        entries = self.index.entries[rows_from:]
        names = enumerate(EpisodeEntry._fields)
        columns = {
            name: self._column(name, [entry[position] for entry in entries])
            for position, name in names
        }
        if chunk_of is not None:
            columns["chunk"] = [
                chunk_of.get(number, -1) for number in range(rows_from, len(self.index.entries))
            ]
        known = {name: list(map(page_name, names)) for name, names in self._names.items()}
        return {"from": rows_from, "columns": columns, "names": known}

    def _column(self, name: str, values: Sequence[Any]) -> list[Any]:
        if name in self._names:
            known = self._names[name]
            return [known.setdefault(value, len(known)) for value in values]
        if name in ROUNDED:
            return [None if value is None else round(value, 4) for value in values]
        return list(values)


class EvaluationPage(RunPage):
    """Data of one evaluation by `xp eval`: figures and episodes, without a training."""

    def _spec(self) -> dict[str, Any]:
        value = json_of(self.run / REQUEST, ExitCode.RUN_DIR, below=self.run)
        if not isinstance(value, dict) or not isinstance(value.get("model"), dict):
            raise XpError(
                f"{self.run / REQUEST} is not the request of an evaluation", ExitCode.RUN_DIR
            )
        return value

    def data(self, rows_from: int = 0, chunk_of: Mapping[int, int] | None = None) -> dict[str, Any]:
        """The keys of a run; `metrics`, `stages` and `plan` are empty, `held_out` has its result as `after`."""
        evaluation = listed(self.run)
        status = "unreadable" if evaluation.fault else "stopped"
        shown = []
        environments: list[dict[str, Any]] = []
        figures: dict[str, Any] = {}
        if evaluation.record is not None:
            status = evaluation.record.status
            environments = _environments(evaluation.record)
            figures = page_figures(evaluation.record.summary)
            content = evaluation.record.content
            known = {**content, **content["playing"], **content["usage"]}
            names = ("run", "task_set", *content["playing"], *USAGE)
            shown = [
                (name.replace("_", " "), page_name(known[name]))
                for name in names
                if known.get(name) is not None
            ]
        return {
            "is_evaluation": True,
            "environments": environments,
            "id": page_name(self.run.name),
            "status": page_name(status),
            "title": page_name(f"{self.spec.get('env')} · {self.spec['model'].get('name')}"),
            "facts": [*shown, *_notes(self.run)],
            "verdict": {
                "word": page_name(status),
                "sentence": page_name(line_of(evaluation).split("  ", 2)[-1]),
                "symptoms": [],
                "environment": [
                    page_name(line) for line in self.index.count.health.lines(self.run)
                ],
            },
            "spec": list(flat(self.spec).items()),
            "metrics": {},
            "reward": reward_intervals(self.index),
            "held_out": {"after": figures} if figures else {},
            "calls": {"step": [], "tools": {}},
            "episodes": self._columns(rows_from, chunk_of),
            "unreadable": self.index.num_unreadable,
            **{name: [] for name in ("stages", "plan", "differences")},
            "base": "",
        }


def _notes(directory: Path) -> list[tuple[str, str]]:
    """The user's tags and note, where there are any."""
    notes = listed_notes(directory)
    return [
        (name, page_name(text))
        for name, text in (("tags", " ".join(notes.tags)), ("note", notes.note))
        if text
    ]


def _environments(record: EvaluationRecord) -> list[dict[str, Any]]:
    """A row of figures for each environment of an evaluation."""
    names = (
        "num_tasks",
        "num_episodes",
        "num_void",
        "turns_mean",
        "tool_calls_mean",
        "tokens_mean",
        "seconds_mean",
    )
    return [
        {
            "env": page_name(env),
            **{name: record.content["environments"][env].get(name) for name in names},
            **page_figures(figures),
        }
        for env, figures in record.environments.items()
    ]


def page_of(directory: Path, *, with_episodes: bool = True) -> RunPage:
    """The data of a run, or of an evaluation, by its directory."""
    kind = EvaluationPage if (directory / REQUEST).is_file() else RunPage
    return kind(directory, with_episodes=with_episodes)


def report(
    runs: Sequence[Path], episodes: str | None = None, *, tokens: bool = False
) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """Title and data of a self-contained page, and the compressed texts of its episodes by element.

    Args:
        runs: directories of the runs.
        episodes: an `Extent`. None means that it depends on the number of runs.
        tokens: whether the episodes with text also have tokens; raises XpError if that is impossible.
    """
    if episodes:
        extent = Extent(episodes)
    elif len(runs) <= MOST_WITH_EPISODES:
        extent = Extent.CHOSEN
    else:
        extent = Extent.NONE
    page_data = []
    chunks: dict[str, bytes] = {}
    pages = [page_of(run, with_episodes=extent is not Extent.NONE) for run in runs]
    for number, run_page in enumerate(pages):
        run_page.refresh()
        chunk_of: dict[int, int] = {}
        for part, numbers in enumerate(chosen(run_page.index.entries, extent).values()):
            chunk_of |= dict.fromkeys(numbers, part)
            records = run_page.index.records(numbers)
            shown = [detail(record, thumbnail=run_page.thumbnail) for record in records]
            texts = dict(zip(numbers, shown, strict=True))
            chunks[f"chunk-{number}-{part}"] = compressed(texts)
        if tokens:
            chunks |= _token_chunks(run_page, number, chunk_of)
        page_data.append(run_page.data(chunk_of=chunk_of))
    return (
        title_of_page(runs),
        frame(page_data, comparison(runs, [page.spec for page in pages])),
        chunks,
    )


def _token_chunks(page: RunPage, number: int, chunk_of: Mapping[int, int]) -> dict[str, bytes]:
    """Compressed tokens of a run's episodes by element, with the text of each token."""
    from xp.results.report.tokens import TokenReader

    reader = TokenReader(page.run)
    by_chunk: dict[int, dict[int, Any]] = {}
    ids: set[int] = set()
    for episode, record in zip(chunk_of, page.index.records(chunk_of), strict=True):
        tokens = reader.tokens(record, page.index.file_of(episode))
        by_chunk.setdefault(chunk_of[episode], {})[episode] = tokens
        ids.update(tokens["ids"])
    chunks = {f"tokens-{number}-{part}": compressed(rows) for part, rows in by_chunk.items()}
    return chunks | {f"tokens-{number}-names": compressed(reader.names(ids))}


def title_of_page(runs: Sequence[Path]) -> str:
    """Title of the page."""
    return page_name(runs[0].name if len(runs) == 1 else f"{len(runs)} runs")


def frame(
    runs: Sequence[Mapping[str, Any]], compared: Mapping[str, Any] | None, *, live: bool = False
) -> dict[str, Any]:
    """The runs, with data about the page itself and the meaning of each metric."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    names = {name for run in runs for lines in run["metrics"].values() for name in lines["values"]}
    meanings = {}
    for name in sorted(names):
        metric = find(name)
        if metric is not None:
            meanings[name] = [metric.unit, metric.meaning, metric.reading]
    titles = {name: page_name(title_of_metric(name)) for name in sorted(names)}
    return {
        "format": FORMAT,
        "made": created,
        "xp": __version__,
        "live": live,
        "runs": runs,
        "comparison": compared,
        "meanings": meanings,
        "titles": titles,
    }


def compressed(value: Any) -> bytes:
    return gzip.compress(
        json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode(), COMPRESSION, mtime=0
    )
