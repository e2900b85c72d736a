"""A Docker image of an OpenEnv server, made of this machine's own files: no registry, no network.

It holds the interpreter, the packages that the server imports, and the libraries that these are linked with, each at
the path that it has here. The images of OpenEnv's authors differ in what is inside, not in what is asked of them.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
SERVER = """
import os, sys
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from tests.envs_under_test.openenv_counter import Add, Count, Counter

class Mortal(Counter):
    def step(self, action, **rest):
        if action.amount == 99:
            os._exit(1)
        return super().step(action, **rest)

app = create_fastapi_app(Mortal, Add, Count, max_concurrent_envs=8)
if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=8000, log_level="warning")
"""
"""Counts as tests.envs_under_test.openenv_counter does; 99 ends the server."""
ASK = """
import json, sys
exec(sys.stdin.read())
import websockets, httptools, uvloop
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.websockets import websockets_impl
print(json.dumps({name.partition(".")[0]: getattr(m, "__file__", None) for name, m in sys.modules.items() if m}))
"""
LEFT_OUT = (
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "site-packages",
    "tkinter",
    "lib2to3",
)


def make_image(tag: str, server: str = SERVER) -> None:
    """Make the image `tag`, which runs `server` (Python source) when it is started."""
    program = "/server.py"
    packages = sysconfig.get_paths()["purelib"]
    settings = {"PYTHONPATH": f"{packages}:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"}
    changes = [f"ENV {name}={value}" for name, value in settings.items()]
    interpreter = str(Path(sys.executable).resolve())
    changes += [f"CMD {json.dumps([interpreter, program])}", "EXPOSE 8000"]
    importing = subprocess.Popen(
        [
            "docker",
            "import",
            *(part for change in changes for part in ("--change", change)),
            "-",
            tag,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert importing.stdin is not None
    with tarfile.open(fileobj=importing.stdin, mode="w|", dereference=True) as tar:
        for path in _files(server):
            tar.add(path, arcname=str(path), recursive=False)
        own = tarfile.TarInfo(program)
        own.size = len(server.encode())
        tar.addfile(own, io.BytesIO(server.encode()))
        tmp = tarfile.TarInfo("tmp")
        tmp.type = tarfile.DIRTYPE
        tmp.mode = 0o1777
        tar.addfile(tmp)
    importing.communicate()
    assert importing.returncode == 0


def _files(server: str) -> Iterator[Path]:
    """Everything that the server's process opens to run, links resolved to what they name."""
    paths = sysconfig.get_paths()
    packages = Path(paths["purelib"])
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        input=re.sub(r"if __name__ ==.*", "", server, flags=re.S),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    modules: dict[str, Any] = json.loads(asked.stdout)
    tops = [packages / name for name in modules]
    roots = [
        *tops,
        *(top.with_suffix(".py") for top in tops),
        *packages.glob("*.dist-info"),
        *packages.glob("*.so"),
    ]
    roots += [packages / f"{name}.libs" for name in modules]
    roots += [
        Path(paths["stdlib"]),
        REPOSITORY / "tests/__init__.py",
        REPOSITORY / "tests/envs_under_test",
    ]
    found = {file for root in roots for file in _below(root)}
    found |= {Path(sys.executable).resolve()}
    found |= set(
        _libraries([file for file in found if ".so" in file.name or os.access(file, os.X_OK)])
    )
    yield from sorted(found)


def _below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in LEFT_OUT or Path(directory) != root]
        names[:] = [name for name in names if name != "__pycache__"]
        yield from (Path(directory, file) for file in files if not file.endswith(".a"))


def _libraries(programs: Sequence[Path]) -> Iterator[Path]:
    said = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=False
    ).stdout
    for line in said.splitlines():
        if match := re.search(r"(?:=> |^\s+)(/\S+) \(0x", line):
            yield Path(os.path.normpath(match[1]))
