"""PyYAML's safe loader over libyaml, which reads in a tenth of the time."""

from __future__ import annotations

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""For `yaml.load(text, Loader=LOADER)`; PyYAML's own parser where it was built without libyaml."""


def over_libyaml(loader: type[yaml.SafeLoader]) -> Any:
    """A loader with the rules of another one, as OmegaConf's, over libyaml's parser."""
    if LOADER is yaml.SafeLoader:
        return loader
    return type(loader.__name__, (LOADER, loader), {})
