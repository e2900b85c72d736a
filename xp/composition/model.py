"""Fills in what a model's option leaves to the model's config.json: name, network and context."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.composition.faults import Fault
from xp.errors import nearest
from xp.lib.data_files import HUB, path_in
from xp.lib.models.clock import CLOCK, TODAY, asks_clock
from xp.lib.models.files import HUB_ID, commit_of, config_of, local_directory, missing_parts
from xp.lib.models.network import context_of, mismatches, network_of, not_causal
from xp.lib.models.template import template_fault
from xp.lib.nested import value_at
from xp.lib.reading import is_name
from xp.lib.text import first_of
from xp.planning.sft import ROOMS, sources_of
from xp.spec import LauncherName
from xp.spec.section import ADDRESS
from xp.spec.sft import SOLVE

Container = dict[str, Any]
"""Sections or fields of a configuration, or of a config.json."""
Faults = Iterator[Fault]
GENERAL: Final = "hf"
"""The option for any model."""
LOCAL: Final = LauncherName.LOCAL.value
_KEY: Final = "model.path"
_TEMPLATE: Final = "model.template"
NO_DIRECTORY: Final = "no such directory with a config.json; a hub's model is ORG/NAME"
_FILES: Final = ("config.json", "adapter_config.json")
"""Files of which a model's directory has one."""
_START: Final = "training.initial_checkpoint"
_TEACHER: Final = "algorithm.distill.teacher"


def _fault(key: str, value: Any, text: str) -> Fault:
    return Fault(key, f"{key}={value}: {text}")


def _faults_of_parts(key: str, value: str, directory: Path) -> Faults:
    """A fault for each file that a Hugging Face directory lacks."""
    for what in missing_parts(directory):
        yield _fault(
            key, value, f"the directory has no {what}; give a whole Hugging Face directory"
        )


def _outputs(container: Container) -> Path:
    return Path(str(container.get("outputs", "outputs")))


def complete_model(container: Container, options: Container) -> Faults:
    """Fills in place what the option leaves open; yields what is wrong with the model's path.

    Args:
        container: the sections, with the command line's values.
        options: the sections before these.
    """
    model = _below(container, "model")
    option = options["model"]
    outputs = _outputs(container)
    path = model.get("path")
    if path is None and option.get("name") is None:
        yield Fault(
            _KEY, f"model={GENERAL} needs {_KEY}=ORG/NAME, or the directory of a Hugging Face model"
        )
    if isinstance(path, str):
        directory = Path(path).expanduser()
    else:
        directory = Path()
    # No other machine could have the path.
    if (
        directory.is_absolute()
        and _is_local(container)
        and not any((directory / file).is_file() for file in _FILES)
    ):
        yield _fault(_KEY, path, NO_DIRECTORY)
        return
    yield from _pin(model, _KEY, outputs)
    is_whole = (
        path == option.get("path")
        and option.get("name") is not None
        and option.get("architecture") is not None
    )
    # An option with all fields needs no config.json; a URL is a fault that the schema reports.
    if not isinstance(path, str) or ADDRESS.match(path) or is_whole:
        return
    resolved = _resolved(path, outputs)
    if resolved is None:
        yield _fault(_KEY, path, NO_DIRECTORY)
        return
    model["path"] = path = resolved
    config = config_of(path, outputs, model.get("revision"))
    if config is not None:
        why = not_causal(config)
        if why:
            yield _fault(_KEY, path, f"not a causal language model: {why}")
            return
    if option.get("name") is not None and path != option.get("path"):
        yield from _same_network(model, option, config, f"set model={GENERAL} {_KEY}={path}")
    elif isinstance(model.get("architecture"), dict) and config is not None:
        for line in mismatches(model["architecture"], config):
            yield Fault(
                "model.architecture",
                f"{line} in {path}; correct it, or leave model.architecture out",
            )
    _fill(model, option, container, config)
    if option.get("name") is None:
        training = container.get("training")
        if isinstance(training, dict):
            _fit_lengths(training, options["training"], path, model["max_context_tokens"])


def _pin(section: Container, key: str, outputs: Path) -> Faults:
    """Replaces the revision of a hub's model by its commit in place; `key`: key of the model's name."""
    parent, _, name = key.rpartition(".")
    path = section.get(name)
    revision = section.get("revision")
    pin = f"{parent}.revision"
    if not isinstance(path, str) or not _is_of_hub(path, outputs):
        if revision is not None:
            yield _fault(pin, revision, f"only a hub's model ({key}=ORG/NAME) has revisions")
    elif revision is None or isinstance(revision, str):
        section["revision"] = commit_of(path, revision or "main")
        if revision is not None and section["revision"] is None:
            reason = f"it is neither on the hub nor in this machine's cache for {path}"
            yield _fault(
                pin, revision, f"{reason}; correct it, or give the commit, 40 hexadecimal digits"
            )


def complete_template(container: Container) -> Faults:
    """Replaces the file of a chat template by its text, in place, so that the spec needs the file no more."""
    model = _below(container, "model")
    arguments = model.get("chat_template")
    if isinstance(arguments, str):
        fix = "these are the arguments of a template, {KEY: VALUE}; a file with a template is model.template=FILE"
        yield _fault("model.chat_template", arguments, fix)
    name = model.get("template")
    if not isinstance(name, str):
        return
    text = name
    if "{" not in name:  # else it is the text already
        try:
            text = Path(name).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            fix = "give a file with a chat template, such as a model's chat_template.jinja"
            yield _fault(_TEMPLATE, name, f"cannot be read ({reason}); {fix}")
            return
    fault = template_fault(text)
    if fault:
        yield _fault(_TEMPLATE, name.partition("\n")[0], fault)
    else:
        model["template"] = text


def complete_clock(container: Container, options: Container) -> Faults:
    """Fills in the date for a chat template that asks for it, of the model or of a served judge, in place."""
    model = _below(container, "model")
    outputs = _outputs(container)
    arguments = model.get("chat_template")
    if not isinstance(arguments, dict):
        return
    day = arguments.get(CLOCK)
    if day is None:
        is_new = (
            options["model"].get("architecture") is None and model.get("architecture") is not None
        )
        names = [(section.get("serve"), None, True) for _, section in _judges(container)]
        asking = (
            isinstance(name, str) and asks_clock(name, outputs, at, asks_hub=is_new)
            for name, at, is_new in names
        )
        template = model.get("template")
        if isinstance(template, str):
            is_asked = CLOCK in template
        else:
            path = model.get("path")
            commit = model.get("revision")
            is_asked = isinstance(path, str) and asks_clock(path, outputs, commit, asks_hub=is_new)
        day = TODAY if is_asked or any(asking) else None
    if day == TODAY:
        arguments[CLOCK] = day = date.today().isoformat()
        _note(
            f"the chat template always gets the date {day}; model.chat_template.{CLOCK} sets another"
        )
    try:
        if day is not None:
            date.fromisoformat(day)
    except (TypeError, ValueError):
        yield _fault(f"model.chat_template.{CLOCK}", day, "expected a date, YYYY-MM-DD")


def _is_of_hub(path: str, outputs: Path) -> bool:
    directories = (Path(path).expanduser(), outputs / path)
    is_here = any((directory / "config.json").is_file() for directory in directories)
    return (
        not is_here
        and not path.startswith(("runs/", "models/"))
        and HUB_ID.fullmatch(path) is not None
    )


def _fit_lengths(training: Container, default: Container, path: str, context: Any) -> None:
    """Shortens the lengths that nobody set to the model's context, with a note on standard error."""
    keys = ("max_prompt_tokens", "max_response_tokens", "max_tokens_per_turn")
    prompt, response, turn = keys
    if not all(isinstance(value, int) for value in (context, *map(training.get, keys))):
        return  # the schema reports it
    unset = [key for key in keys if training[key] == default.get(key)]
    if (
        not {prompt, response}.intersection(unset)
        or training[prompt] + training[response] <= context
    ):
        return
    if prompt in unset:
        if response in unset:
            limit = context // 4
        else:
            limit = context - training[response]
        training[prompt] = max(1, min(training[prompt], limit))
    if response in unset:
        training[response] = max(1, min(training[response], context - training[prompt]))
    if turn in unset:
        training[turn] = min(training[turn], training[response])
    lengths = " ".join(f"training.{key}={training[key]}" for key in unset)
    _note(f"{path} takes {context:,} tokens, hence {lengths}; set other values to change this")


@cache
def _note(line: str) -> None:
    """Prints a note, once for all compositions of a command."""
    print(f"xp: note: {line}", file=sys.stderr)


def _is_local(container: Container) -> bool:
    return _below(container, "launcher").get("name") == LOCAL


def _resolved(path: str, outputs: Path) -> str | None:
    """A directory of the user's as an absolute one, since stages run elsewhere. None means that it is not there."""
    directory = Path(path).expanduser()
    if (directory / "config.json").is_file():
        return str(directory.absolute())
    is_named = path.startswith(("runs/", "models/")) or HUB_ID.fullmatch(path)
    if is_named or directory.is_absolute() or (outputs / path / "config.json").is_file():
        return path
    return None


def _same_network(model: Container, option: Container, config: Any, fix: str) -> Faults:
    """An option's name is in every record, its network in every plan: another model is another option."""
    path = model["path"]
    name = option["name"]
    if config is None or not isinstance(model.get("architecture"), dict):
        yield _fault(_KEY, path, f"xp cannot tell that it is the network of model={name}; {fix}")
    elif lines := mismatches(model["architecture"], config):
        yield _other_network(_KEY, path, name, lines, fix)


def _other_network(key: str, path: str, name: Any, lines: Sequence[str], fix: str) -> Fault:
    return _fault(key, path, f"not the network of model={name}: {first_of(lines, 3, '; ')}; {fix}")


def _fill(
    model: Container,
    option: Container,
    container: Container,
    config: Container | None,
) -> None:
    if model.get("name") is None:
        model["name"] = name_of(model["path"])
    if (
        model.get("architecture") is None
        and option.get("architecture") is None
        and config is not None
    ):
        model["architecture"] = network_of(config)
    if model.get("max_context_tokens") is None:
        training = _below(container, "training")
        longest = [training.get(key) for key in ("max_prompt_tokens", "max_response_tokens")]
        total = sum(value for value in longest if isinstance(value, int))
        model["max_context_tokens"] = (context_of(config) if config else None) or total


def name_of(path: str) -> str:
    """A short name for records: the last part that says something."""
    parts = [part for part in Path(path).parts if part not in ("/", ".", "..")]
    if len(parts) > 2 and parts[-2] == "snapshots":
        parts = parts[-3].split("--")
    if len(parts) > 1 and (
        parts[-1] in ("model", "latest") or parts[-1].startswith(("checkpoint", "global_step"))
    ):
        parts = [*parts[:-2], f"{parts[-2]}-{parts[-1]}"]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "model").strip("-._").lower()
    return name[:80] or "model"


def complete_checkpoint(container: Container) -> Faults:
    """Makes the directory's path absolute in place, since stages run elsewhere; yields what is wrong with it."""
    training = _below(container, "training")
    outputs = _outputs(container)
    start = training.get("initial_checkpoint")
    if not isinstance(start, str) or ADDRESS.match(start):
        return  # None, or a fault that the schema reports
    directories = (Path(start).expanduser(), outputs / start)
    chosen = next((directory for directory in directories if directory.is_dir()), None)
    if chosen is None:
        yield _fault(
            _START, start, "no such directory; give a Hugging Face directory, as runs/ID/model"
        )
        return
    training["initial_checkpoint"] = str(chosen.absolute())
    config = None
    if (chosen / "config.json").is_file():
        config = config_of(str(chosen), outputs)
    if config is None:
        reason = "the directory has no readable config.json; a Megatron checkpoint must be exported first"
        if (chosen / "adapter_config.json").is_file():
            reason = "the directory has adapters; merge them into their model first, in float32 (peft's merge_and_unload)"
        yield _fault(_START, start, reason)
        return
    yield from _faults_of_parts(_START, start, chosen)
    yield from _network_of_start(start, config, _below(container, "model"), outputs)


def complete_teacher(container: Container) -> Faults:
    """Makes the teacher's path absolute in place; yields what is wrong with it."""
    distill = _below(container, "algorithm.distill")
    outputs = _outputs(container)
    teacher = distill.get("teacher")
    if distill.get("url") is not None or not isinstance(teacher, str) or ADDRESS.match(teacher):
        return  # a server has it, or the schema reports a fault
    resolved = _resolved(teacher, outputs)
    directory = local_directory(teacher, outputs)
    is_path = teacher.startswith(("runs/", "models/")) or Path(teacher).is_absolute()
    if resolved is None or (is_path and directory is None and _is_local(container)):
        yield _fault(_TEACHER, teacher, NO_DIRECTORY)
        return
    distill["teacher"] = resolved
    yield from _pin(distill, _TEACHER, outputs)
    if directory is not None and is_path:
        yield from _faults_of_parts(_TEACHER, teacher, directory)


def complete_served_models(container: Container) -> Faults:
    """Makes the paths of an engine's draft and of served judges absolute in place; yields a Fault for one that is not
    there."""
    draft = ("backend.engine.speculative.model", _below(container, "backend.engine.speculative"))
    for path, section in (draft, *_judges(container)):
        key = path.rpartition(".")[2]
        value = section.get(key)
        if not isinstance(value, str) or ADDRESS.match(value):
            continue  # there is none, or the schema reports a fault
        resolved = _resolved(value, _outputs(container))
        if resolved is None:
            yield _fault(path, value, NO_DIRECTORY)
        else:
            section[key] = resolved


def _judges(container: Container) -> Iterator[tuple[str, Container]]:
    """Key of the served model of each environment's judge, and its section."""
    for key, member in _members(container):
        yield f"{key}.judge.model.serve", _below(member, "judge.model")


def _members(container: Container) -> Iterator[tuple[str, Any]]:
    """Key of each environment as the user types it, and its section."""
    env = _below(container, "env")
    members = env.get("members", {"": env} if env else {})
    for name, member in members.items() if isinstance(members, dict) else ():
        yield "env" if len(members) == 1 else f"env.members.{name}", member


def _below(container: Any, path: str) -> Container:
    """The section at a key path; empty where there is none."""
    section = value_at(container, path)
    return section if isinstance(section, dict) else {}


def complete_demonstrations(container: Container) -> Faults:
    """Makes the source of dialogues whole, in place: a path becomes absolute, and the beginning of a run's name becomes
    its whole name, since a later run may begin alike. Yields a Fault if there is no such file."""
    sft = _below(container, "sft")
    data = sft.get("data")
    if not isinstance(data, str) or data.partition(":")[0] == SOLVE or data.startswith(HUB):
        return
    path, colon, config = data.partition(":")
    if path in ROOMS:
        runs = sources_of(data, _outputs(container)) if is_name(config) else []
        if len(runs) == 1:
            sft["data"] = f"{path}:{runs[0].name}"
        return
    file = Path(path).expanduser()
    if file.exists():
        sft["data"] = f"{file.absolute()}{colon}{config}"
    elif "." in path or "/" in path:
        reason = "no such file or directory, whose rows have `messages`; a data set of the hub is hf:ORG/NAME"
        yield _fault("sft.data", data, reason)


def complete_recorded(container: Container, recorded: Container) -> Faults:
    """Makes the paths whole that a recorded spec did not have, in place, as the functions above do; another place of the
    model must have its network.

    Args:
        container: the sections, with other values than the recorded ones.
        recorded: the sections before these.
    """
    model = _below(container, "model")
    outputs = _outputs(container)
    for key in (_KEY, _TEACHER):
        above, _, name = key.rpartition(".")
        section = _below(container, above)
        before = _below(recorded, above)
        # A commit of the other model is none of this one.
        if section.get(name) != before.get(name) and section.get("revision") == before.get(
            "revision"
        ):
            section["revision"] = None
    path = model.get("path")
    if isinstance(path, str) and path != recorded["model"]["path"]:
        model["path"] = _resolved(path, outputs) or path
        yield from _pin(model, _KEY, outputs)
        config = config_of(model["path"], outputs, model.get("revision"))
        yield from _same_network(model, recorded["model"], config, "start a new run for it")
    for key, complete in (
        (_START, complete_checkpoint),
        (_TEACHER, complete_teacher),
        ("sft.data", complete_demonstrations),
    ):
        if value_at(container, key) != value_at(recorded, key):
            yield from complete(container)
    yield from complete_served_models(container)


def _network_of_start(start: str, config: Container, model: Container, outputs: Path) -> Faults:
    """Checks that the checkpoint has the model's network, which the reference, memory and Slime's flags rely on."""
    network = model.get("architecture")
    if not isinstance(network, dict):
        path = model.get("path")
        why = "is not on this machine: download the model first"
        if isinstance(path, str) and local_directory(path, outputs):
            why = "cannot be read by xp"
        yield _fault(_START, start, f"cannot be compared with the model, whose config.json {why}")
    elif lines := mismatches(network, config):
        fix = f"to train it alone, set model=hf model.path={start}"
        yield _other_network(_START, start, model.get("name"), lines, fix)


def complete_rows(container: Container) -> Faults:
    """Makes paths absolute in place, from the working directory; yields a fault for each file that is not there."""
    for key, member in _members(container):
        rows = value_at(member, "rows")
        if isinstance(rows, str):
            member["rows"] = yield from _absolute(rows, f"{key}.rows")
        elif isinstance(rows, dict):
            for split, file in rows.items():
                if isinstance(file, str):
                    rows[split] = yield from _absolute(file, f"{key}.rows.{split}")


def _absolute(name: str, key: str) -> Generator[Fault, None, str]:
    """Yields the fault of a name of rows; returns the name with an absolute path, if it has a path."""
    path = path_in(name)
    if path is None:
        return name
    file = Path(path).expanduser().absolute()
    if not os.path.exists(file):
        files = [other.name for other in file.parent.glob("*")]
        hub = ""
        if "." not in name and name.count("/") == 1:
            hub = f"; a data set of the hub is {HUB}{name}"
        guess = nearest(file.name, sorted(files))
        yield _fault(key, name, f"there is no file {file.name} in {file.parent}{guess}{hub}")
    return name.replace(path, str(file), 1)
