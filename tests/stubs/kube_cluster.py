"""Stands in for kubectl, a cluster and its operators: runs the script of a Job, a RayJob or a JobSet here.

    kube_cluster.py STATE COMMAND...

STATE is a directory: `volume/` is the claim, `secrets/` the secrets, `objects/` one directory an object. What a pod
would see below /outputs is the volume. Init containers, which make the pods' Pythons, and Ray are not started. The
status of an object is in the fields of its operator; FAIL in STATE makes every request fail, DENY the creation of an
object.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml
from cloud import replace_text, start_worker, tail


def main(state: Path, argv: list[str]) -> int:
    objects = state / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    (state / "secrets").mkdir(exist_ok=True)
    (state / "volume").mkdir(exist_ok=True)
    if (state / "FAIL").exists():
        print("Unable to connect to the server", file=sys.stderr)
        return 1
    match argv:
        case ["work", place]:
            return work(state, Path(place))
        case ["run", name, *words]:
            return unpack(state, name, words)
        case ["apply", "--server-side", "--force-conflicts", "--filename", "-"]:
            secret = json.loads(sys.stdin.read())
            replace_text(state / "secrets" / secret["metadata"]["name"], json.dumps(secret))
        case ["create", "--filename", file, "--output", "json"]:
            return create(state, Path(file))
        case ["get", "persistentvolumeclaim", _]:
            pass
        case ["get", "pods", "--selector", selector, *_]:
            started = (logs_of(objects, selector) / "log").exists()
            pods = [{"status": {"phase": "Running"}}] if started else []
            print(json.dumps({"items": pods}))
        case ["get", _, name, "--ignore-not-found", "--output", "json"]:
            if (objects / name / "status").exists():
                print(json.dumps({"status": json.loads((objects / name / "status").read_text())}))
        case ["get", _]:
            pass
        case ["logs", "--selector", selector, "--tail=-1", *more]:
            place = logs_of(objects, selector)
            if more:
                tail(place, lambda: not (place / "running").exists())
            elif (place / "log").exists():
                sys.stdout.write((place / "log").read_text())
        case ["delete", "secret", name, "--ignore-not-found"]:
            (state / "secrets" / name).unlink(missing_ok=True)
        case ["delete", _, name, "--ignore-not-found", "--wait=false", *_]:
            if (objects / name / "status").exists():
                (objects / name / "status").unlink()
                for place in objects.glob(f"{name}*/running"):  # which ends `logs --follow`
                    place.unlink()
                os.killpg(int((objects / name / "pid").read_text()), signal.SIGTERM)
        case _:
            print(f"no such thing: {argv}", file=sys.stderr)
            return 1
    return 0


def unpack(state: Path, name: str, words: list[str]) -> int:
    """The pod that copies files: what it runs and mounts is in its override."""
    (text,) = (word.partition("=")[2] for word in words if word.startswith("--overrides="))
    (container,) = json.loads(text)["spec"]["containers"]
    assert container["command"] == ["tar", "--extract", "--gzip", "--directory", "/outputs"]
    assert name.endswith("-files")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
        archive.extractall(state / "volume", filter="fully_trusted")
    for file in (state / "volume").rglob("*"):
        if file.name == "run.sh":
            file.write_text(here(state, file.read_text()))
        elif file.name == "job.json":
            spec = json.loads(file.read_text()) | {"root": str(state / "volume")}
            file.write_text(json.dumps(spec))
    return 0


def create(state: Path, file: Path) -> int:
    if (state / "DENY").exists():
        print("admission webhook denied the request: no such queue", file=sys.stderr)
        return 1
    manifest = yaml.safe_load(file.read_text())
    place = state / "objects" / manifest["metadata"]["name"]
    place.mkdir()
    (place / "manifest.json").write_text(json.dumps(manifest))
    (place / "status").write_text("{}")
    start_worker(place, __file__, state, "work", place)
    print(json.dumps({"metadata": {"uid": "uid-1"}}))
    return 0


def logs_of(objects: Path, selector: str) -> Path:
    """Directory with the log of the first pod that a selector names."""
    name = selector.partition(",")[0].removeprefix("batch.kubernetes.io/job-name=")
    return objects / name if (objects / name).exists() else objects / f"{name}-pods"


def work(state: Path, place: Path) -> int:
    """The operators' part: starts the pods of each job in its turn, and writes the status."""
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "running").touch()
    kind = manifest["kind"]
    spec = manifest["spec"]
    if kind == "JobSet":
        code = 0
        for job in spec["replicatedJobs"]:
            code = code or run_pods(state, place, job)
    elif kind == "RayJob":
        head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        command = ["bash", "-c", spec["entrypoint"]]
        hidden = {"CUDA_VISIBLE_DEVICES": ""}  # as Ray sets it for a job that reserves no GPU
        code = pod(
            state,
            {**head, "command": command},
            place / "log",
            hidden,
        ).wait()
    else:
        container = spec["template"]["spec"]["containers"][0]
        code = pod(state, container, place / "log", {}).wait()
    statuses: dict[str, Any] = {
        "JobSet": {"terminalState": "Failed" if code else "Completed"},
        "RayJob": {
            "jobDeploymentStatus": "Complete",
            "jobStatus": "FAILED" if code else "SUCCEEDED",
        },
        "Job": {"conditions": [{"type": "Failed" if code else "Complete", "status": "True"}]},
    }
    (place / "running").unlink(missing_ok=True)
    if (place / "status").exists():
        replace_text(place / "status", json.dumps(statuses[kind]))
    return 0


def run_pods(state: Path, place: Path, job: dict[str, Any]) -> int:
    """The pods of one replicated job; the log of the first one is kept under the job's name."""
    logs = place.parent / f"{place.name}-{job['name']}-0-pods"
    logs.mkdir()
    (logs / "running").touch()
    spec = job["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    pods = [
        pod(
            state,
            container,
            logs / ("log" if number == 0 else f"log_{number}"),
            {"JOB_COMPLETION_INDEX": str(number), "XP_MAIN_NODE": "127.0.0.1:29500"},
        )
        for number in range(spec["completions"])
    ]
    codes = [process.wait() for process in pods]
    (logs / "running").unlink(missing_ok=True)
    return next((code for code in codes if code), 0)


def pod(
    state: Path, container: dict[str, Any], log: Path, more: dict[str, str]
) -> subprocess.Popen[bytes]:
    """A container's process, which has its variables and secrets."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    for variable in container["env"]:
        if "valueFrom" in variable:
            key = variable["valueFrom"]["secretKeyRef"]
            secret = json.loads((state / "secrets" / key["name"]).read_text())
            environ[variable["name"]] = secret["stringData"][key["key"]]
        elif variable["name"] != "PATH":
            environ[variable["name"]] = variable["value"]
    words = [here(state, word) for word in container["command"]]
    with log.open("ab") as file:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environ, **more, "PYTHONPATH": here(state, environ.get("PYTHONPATH", ""))},
        )


def here(state: Path, text: str) -> str:
    """A text with this machine's places of a pod's volume and of its Pythons."""
    words = text.replace("/outputs", str(state / "volume"))
    parts = words.split("/xp/python/")
    tails = [part.partition("/bin/python")[2] for part in parts[1:]]
    return sys.executable.join([parts[0], *tails]) if tails else words


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
