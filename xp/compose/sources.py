"""Hydra's sources of options: xp's own files, mixtures that no file holds, and the user's files, read as data first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from xp.compose.files import FileFault, read_file
from xp.compose.mixes import MIXED, SIGN, defaults_of, with_mixes_named
from xp.compose.values import KEPT_MISSING, MISSING

OWN_FILES, USER_FILES = "xp-own", "xp-user"
"""Schemes of Hydra's search path."""


def register_sources(reads: list[FileFault]) -> None:
    """Teach Hydra both schemes; what is wrong with a user's file goes into `reads`."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    class OwnFiles(FileConfigSource):
        @staticmethod
        def scheme() -> str:
            return OWN_FILES

        def is_config(self, config_path: str) -> bool:
            return _is_mix(config_path) or super().is_config(config_path)

        def load_config(self, config_path: str) -> ConfigResult:
            if _is_mix(config_path):
                mix = {"defaults": defaults_of(Path(config_path).name.removesuffix(".yaml"))}
                return ConfigResult(
                    self.provider, f"{OWN_FILES}://{self.path}", OmegaConf.create(mix), {"package": None}
                )
            loaded = super().load_config(config_path)
            _name_mixes(loaded)
            return loaded

    class UserFiles(FileConfigSource):
        into: list[FileFault] = reads

        @staticmethod
        def scheme() -> str:
            return USER_FILES

        def is_config(self, config_path: str) -> bool:
            # Whatever has the name: what it is and why it cannot be read is for read_file to say.
            return os.path.lexists(Path(self.path) / self._normalize_file_name(config_path))

        def load_config(self, config_path: str) -> ConfigResult:
            file = Path(self.path) / self._normalize_file_name(config_path)
            found = read_file(file)
            type(self).into.extend(fault for fault in found.faults if fault not in type(self).into)
            if any(fault.is_fatal for fault in found.faults):
                # Empty in its place, so that the files beside it are read too.
                place = f"{self.scheme()}://{self.path}"
                return ConfigResult(self.provider, place, OmegaConf.create({}), {"package": None})
            loaded = super().load_config(config_path)
            loaded.config = OmegaConf.create(_kept_missing(OmegaConf.to_container(loaded.config)))
            _name_mixes(loaded)
            return loaded

    SourcesRegistry.instance().types |= {OWN_FILES: OwnFiles, USER_FILES: UserFiles}


def _is_mix(config_path: str) -> bool:
    path = Path(config_path)
    return path.parent.name == MIXED and SIGN in path.name


def _name_mixes(loaded: Any) -> None:
    """Hydra merges the files of a list into one environment; a list of environments is a mixture of them."""
    from omegaconf import OmegaConf

    if "defaults" in loaded.config:
        plain: Any = OmegaConf.to_container(loaded.config)
        loaded.config["defaults"] = with_mixes_named(plain["defaults"])


def _kept_missing(node: Any) -> Any:
    """`???` as a text of our own: Hydra would keep the value of the file before, and the user asked for one."""
    if isinstance(node, dict):
        return {key: _kept_missing(child) for key, child in node.items()}
    if isinstance(node, list):
        return [_kept_missing(child) for child in node]
    return KEPT_MISSING if node == MISSING else node
