"""Plays Modal's builder and its containers for one app: the real client says which commands an image is made of.

    modal_container.py APP ROOT PYTHON UV

Below ROOT each image gets an environment made on PYTHON, in which its layers are executed as they are; the function's
body then runs with that environment's `python`. What Modal puts below the first layer of ours (a slim Debian, CUDA's
image) is not executed: PYTHON stands for it. Prints one line a layer, and one a function.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Layer = Callable[[str], Any]
BUILDER = "2025.06"
"""Version of Modal's image builder."""


def main(app: Path, root: Path, python: str, uv: str) -> int:
    text = (
        app.read_text()
        .replace("'/outputs'", repr(str(root / "outputs")))
        .replace("/xp/", f"{root}/xp/")
    )
    (root / "outputs").mkdir()
    images, space = recorded(text, app)
    for local, remote in re.findall(r"\.add_local_\w+\((.*), ('.*/xp/.*')\)", text):
        mount(Path(eval(local)), Path(eval(remote)), root)
    warnings.simplefilter("ignore")  # .local() sees no volume
    made: dict[str, tuple[Path, dict[str, str]]] = {}
    stages = [name for name in space if name.startswith("stage_")]
    for name, layers in zip(stages, images, strict=False):
        specs = [layer(BUILDER) for layer in layers]
        files = [Path(file).read_text() for spec in specs for file in spec.context_files.values()]
        key = str([spec.commands for spec in specs]) + "".join(files)
        if key not in made:
            place = root / f"image_{len(made)}"
            made[key] = place, build(layers, place, python, uv)
        place, variables = made[key]
        os.environ.update({"PATH": f"{place}/bin:{os.environ['PATH']}", **variables})
        code = space[name].local()
        print(f"{name} in {place.name}: {code}", flush=True)
        if code:
            return int(code)
    return 0


def recorded(text: str, app: Path) -> tuple[list[list[Layer]], dict[str, Any]]:
    """The layers of ours of every image of the app, in order, and the app's names."""
    from modal._image import _Image

    images: list[list[Layer]] = []
    make = _Image._from_args

    def record(**arguments: Any) -> Any:
        if not arguments.get("base_images"):
            images.append([])
        elif arguments.get("dockerfile_function") is not None:
            images[-1].append(arguments["dockerfile_function"])
        return make(**arguments)

    _Image._from_args = staticmethod(record)  # type: ignore[method-assign, assignment]
    space: dict[str, Any] = {"__name__": "modal_app"}
    exec(compile(text, str(app), "exec"), space)
    return images, space


def build(layers: list[Layer], place: Path, python: str, uv: str) -> dict[str, str]:
    """Execute the layers, one after the other, in an environment of their own; returns the variables that they set."""
    variables: dict[str, str] = {}
    subprocess.run([uv, "venv", "--quiet", "--seed", "--python", python, str(place)], check=True)
    for layer in layers:
        spec = layer(BUILDER)
        for command in spec.commands:
            word, _, rest = command.partition(" ")
            print(f"{place.name}: {command[:160]}", flush=True)
            if word == "COPY":
                source, target = rest.split()[-2:]
                file = place / target.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(uv if source == "/uv" else spec.context_files[source], file)
            elif word == "RUN":
                environ = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}
                subprocess.run(
                    ["sh", "-c", rest.replace("/.uv", f"{place}/.uv")], check=True, env=environ
                )
            elif word == "ENV":
                variables.update(part.split("=", 1) for part in shlex.split(rest))
            else:
                assert word == "FROM", command
    return variables


def mount(local: Path, remote: Path, root: Path) -> None:
    """Put local files where a container sees them; the order's root is the volume."""
    remote.parent.mkdir(parents=True, exist_ok=True)
    if local.is_dir():
        shutil.copytree(local, remote, dirs_exist_ok=True)
    else:
        remote.write_text(
            local.read_text().replace('"root": "/outputs"', f'"root": "{root}/outputs"')
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
