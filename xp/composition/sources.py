"""Hydra's sources of options: xp's files, mixtures and machines without a file, and the user's files, read as data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from xp.composition.files import FileFault, read_file
from xp.composition.mixes import MIXED, SIGN, defaults_of, with_mixes_named
from xp.composition.values import escaped, with_texts
from xp.lib.reading import yaml_loader
from xp.spec.hardware import AUTO, machine_of, this_machine

MAIN_FILES = "xp-main"
XP_FILES = "xp-own"
USER_FILES = "xp-user"
MACHINES = "xp-machines"
"""Schemes of Hydra's search path. The last is of words such as `8xB200`, after all files."""


def search_path(
    root: Path, config_dirs: Sequence[Path], reads: list[FileFault]
) -> ConfigSearchPathImpl:
    """Hydra's places to search for options, and their sources.

    Args:
        root: holds conf/ and recipes/.
        config_dirs: of the user and of plugins.
        reads: faults of a user's file are added to it.
    """
    UserFiles.into = reads
    kinds = {MAIN_FILES: Files, XP_FILES: XpFiles, USER_FILES: UserFiles, MACHINES: Machines}
    SourcesRegistry.instance().types |= kinds | {"structured": StructuredConfigSource}
    places = ConfigSearchPathImpl()
    places.append("main", f"{MAIN_FILES}://{root / 'conf'}")
    places.append("xp", f"{XP_FILES}://{root}")
    for directory in config_dirs:
        places.append("user", f"{USER_FILES}://{directory.resolve()}")
    places.append("machines", f"{MACHINES}://{root / 'conf'}")
    places.append("schema", "structured://")  # Hydra wants it at the end.
    return places


class Files(FileConfigSource):
    """Hydra's source of files, which reads a file once for all compositions of a process."""

    @staticmethod
    def scheme() -> str:
        return MAIN_FILES

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path).resolve() / self._normalize_file_name(config_path)
        if not file.is_file():  # a Hydra program that uses xp gets Hydra's own error
            return super().load_config(config_path)
        header, content = read_once(file, file.stat().st_mtime_ns)
        return self._result(content or {}, dict(header))

    def _result(self, content: Any, header: dict[str, str | None]) -> ConfigResult:
        return ConfigResult(
            self.provider, f"{self.scheme()}://{self.path}", OmegaConf.create(content), header
        )


class XpFiles(Files):
    """xp's own options, and mixtures of its environments."""

    @staticmethod
    def scheme() -> str:
        return XP_FILES

    def is_config(self, config_path: str) -> bool:
        return _is_mix(config_path) or super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        if _is_mix(config_path):
            mix = {"defaults": defaults_of(Path(config_path).name.removesuffix(".yaml"))}
            return self._result(mix, {"package": None})
        return _with_named_mixes(super().load_config(config_path))


class UserFiles(Files):
    """The user's options, read as data first."""

    into: ClassVar[list[FileFault]]

    @staticmethod
    def scheme() -> str:
        return USER_FILES

    def is_config(self, config_path: str) -> bool:
        # Anything with this name; read_file reports what it is and why it cannot be read.
        return os.path.lexists(Path(self.path) / self._normalize_file_name(config_path))

    def load_config(self, config_path: str) -> ConfigResult:
        user_file = read_file(Path(self.path) / self._normalize_file_name(config_path))
        self.into.extend(fault for fault in user_file.faults if fault not in self.into)
        if any(fault.is_fatal for fault in user_file.faults):
            return self._result(
                {}, {"package": None}
            )  # an empty file instead, so that the other files are read too
        loaded = super().load_config(config_path)
        plain: Any = OmegaConf.to_container(loaded.config)
        values = {
            key: value if key == "defaults" else with_texts(value, escaped)
            for key, value in plain.items()
        }
        loaded.config = OmegaConf.create(values)
        return _with_named_mixes(loaded)


class Machines(Files):
    """Words for machines, as options of the hardware group."""

    @staticmethod
    def scheme() -> str:
        return MACHINES

    def is_config(self, config_path: str) -> bool:
        word = _word(config_path)
        return word == AUTO or (word is not None and machine_of(word) is not None)

    def load_config(self, config_path: str) -> ConfigResult:
        word = _word(config_path) or ""
        machine = this_machine() if word == AUTO else machine_of(word)
        if machine is None:
            return super().load_config("hardware/cpu")
        return self._result(machine.option(), {"package": "_global_"})


@cache
def read_once(file: Path, changed_ns: int) -> tuple[dict[str, str | None], Any]:
    """Header and content of a file, as Hydra reads them.

    Args:
        file: its path.
        changed_ns: time of its last change; a changed file is read again.
    """
    del changed_ns
    text = file.read_text(encoding="utf-8")
    return ConfigSource._get_header_dict(text[:512]), yaml.load(
        text, Loader=over_libyaml(get_yaml_loader())
    )


def _is_mix(config_path: str) -> bool:
    path = Path(config_path)
    return path.parent.name == MIXED and SIGN in path.name


def _word(config_path: str) -> str | None:
    """The name of an option of the hardware group. None means that the path is of another group."""
    path = Path(config_path)
    if path.parent.name == "hardware":
        return path.name.removesuffix(".yaml")
    return None


def _with_named_mixes(loaded: ConfigResult) -> ConfigResult:
    """Hydra merges the files of a list into one environment; a list of environments is a mixture of them."""
    if "defaults" in loaded.config:
        plain: Any = OmegaConf.to_container(loaded.config)
        loaded.config["defaults"] = with_mixes_named(plain["defaults"])
    return loaded


def over_libyaml(loader: type[yaml.SafeLoader]) -> Any:
    """A loader with the rules of another one, as OmegaConf's, over libyaml's parser."""
    fast = yaml_loader()
    if fast is yaml.SafeLoader:
        return loader
    return type(loader.__name__, (fast, loader), {})
