"""Stands in for Modal's cloud and command: runs a generated app's functions here, by the real client's `.local()`.

    modal_cloud.py STATE COMMAND...

STATE is a directory: `volume/` is the volume, `secrets.json` the Modal Secrets, `apps/` one directory an app. What a
container would see below /outputs, /xp/code and /xp/jobs is found where it lies on this machine. FAIL in STATE holds
the name of a fault: `exit` (nonzero), `garbage` (an answer that says nothing), `accepts` (takes it, never answers),
`silent` (no answer about the volume).
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

from cloud import replace_text, start_worker, tail


def main(state: Path, argv: list[str]) -> int:
    apps = state / "apps"
    apps.mkdir(parents=True, exist_ok=True)
    (state / "volume").mkdir(exist_ok=True)
    match argv:
        case ["volume", *_] if (state / "FAIL").exists() and (
            state / "FAIL"
        ).read_text() == "silent":
            print("Could not connect to the Modal server.", file=sys.stderr)
            return 1
        case ["run", "--detach", "--quiet", file]:
            return submit(state, apps, Path(file))
        case ["work", app, file]:
            return work(state, Path(app), Path(file))
        case ["app", "list", "--json"]:
            print(
                json.dumps(
                    [json.loads((app / "app.json").read_text()) for app in sorted(apps.iterdir())]
                )
            )
        case ["app", "logs", app, "--follow"]:
            tail(
                apps / app,
                lambda: json.loads((apps / app / "app.json").read_text())["state"] == "stopped",
            )
        case ["app", "stop", "--yes", app]:
            os.killpg(int((apps / app / "pid").read_text()), signal.SIGTERM)
        case ["volume", "get", _, name, "-"] if (state / "volume" / name).is_file():
            sys.stdout.buffer.write((state / "volume" / name).read_bytes())
        case ["volume", "get", _, name, place] if (state / "volume" / name).is_dir():
            shutil.copytree(state / "volume" / name, Path(place, Path(name).name))
        case ["volume", "ls", "--json", _, name] if (state / "volume" / name).is_dir():
            entries = (state / "volume" / name).iterdir()
            rows = [
                {"filename": f"{name}/{one.name}", "type": "dir" if one.is_dir() else "file"}
                for one in entries
            ]
            print(json.dumps(rows))
        case _:
            print(f"no such thing: {argv}", file=sys.stderr)
            return 1
    return 0


def submit(state: Path, apps: Path, file: Path) -> int:
    fault = (state / "FAIL").read_text() if (state / "FAIL").exists() else ""
    if fault == "exit":
        print("Token missing", file=sys.stderr)
        return 1
    if fault == "garbage":
        print("<html>")
        return 0
    number = len(list(apps.iterdir())) + 1
    app = apps / f"ap-{number}"
    app.mkdir()
    name = ast.literal_eval(re.search(r"modal\.App\((.*)\)", file.read_text()).group(1))  # type: ignore[union-attr]
    tell(app, name, "ephemeral (detached)")
    start_worker(app, __file__, state, "work", app, file)
    if fault == "accepts":
        time.sleep(60)
    print(f"xp-submitted ap-{number} fc-{number}", flush=True)
    return 0


def work(state: Path, app: Path, file: Path) -> int:
    """The containers, one after the other."""
    name = json.loads((app / "app.json").read_text())["description"]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    text = file.read_text()
    for local, remote in re.findall(r"\.add_local_\w+\((.*), ('/xp/.*')\)", text):
        place = ast.literal_eval(local)
        if place.endswith(".json"):
            order = json.loads(Path(place).read_text()) | {"root": str(state / "volume")}
            (app / Path(ast.literal_eval(remote)).name).write_text(json.dumps(order))
        else:
            text = text.replace("'/xp/code'", repr(place))
    text = text.replace("/xp/jobs", str(app)).replace(
        '["python", "-m"', f'["{sys.executable}", "-m"'
    )
    warnings.simplefilter("ignore")  # .local() sees no volume
    space: dict[str, object] = {"__name__": "modal_app"}
    os.environ.update(
        json.loads((state / "secrets.json").read_text())
        if (state / "secrets.json").exists()
        else {}
    )
    exec(compile(text, str(file), "exec"), space)
    for key in [key for key in space if key.startswith("stage_")]:
        if space[key].local() or stopped:  # type: ignore[attr-defined]
            break
    tell(app, name, "stopped")
    return 0


def tell(app: Path, name: str, state: str) -> None:
    replace_text(
        app / "app.json", json.dumps({"app_id": app.name, "description": name, "state": state})
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
