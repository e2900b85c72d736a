"""SkyRL's server of the Tinker API on this machine's CPU, with JAX: `.venv-tinker/bin/python -m tools.tinker_server MODEL`.

It listens on 127.0.0.1 and requires the key in TINKER_API_KEY. SkyRL's own program starts only below `uv run`.
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

from xp.lib.asgi_key import KeyCheck

ROOT = Path(__file__).resolve().parents[1]
ENGINE = "--engine"
"""First word of the command of the engine's process, which the server starts."""


def main(argv: Sequence[str]) -> None:
    """Serves a model until it is stopped."""
    prepare_python()
    if argv[:1] == [ENGINE]:
        from skyrl.tinker import engine

        sys.argv = ["engine", *argv[1:]]
        engine.main()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="directory of a Hugging Face model")
    parser.add_argument("--name", help="name of the model for clients; default: its directory")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument(
        "--directory", type=Path, default=Path("outputs/tinker-server"), help="of its checkpoints"
    )
    parser.add_argument("--adapters", type=int, default=16, help="most adapters at a time")
    parser.add_argument("--rank", type=int, default=32, help="largest rank of an adapter")
    parser.add_argument(
        "--batch", type=int, default=64, help="sequences of a batch, to which JAX compiles"
    )
    parser.add_argument(
        "--idle-s", type=int, default=300, help="seconds until adapters of a lost client are freed"
    )
    serve(parser.parse_args(argv))


def serve(options: argparse.Namespace) -> None:
    """Runs SkyRL's API in this process, and its engine in another one."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    directory = options.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(directory / "compiled"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    model = options.model.absolute()
    name = options.name or str(model)
    os.chdir(directory)
    if name != str(model):
        # SkyRL's name of a model is the place that it loads it from.
        link = directory / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(model)
    api._build_uv_run_cmd_engine = lambda _, config: [
        sys.executable,
        "-m",
        "tools.tinker_server",
        ENGINE,
        *config_to_argv(config),
    ]
    api.app.state.engine_config = EngineConfig(
        base_model=name,
        backend="jax",
        backend_config={
            # The first one is the model without adapters.
            "max_lora_adapters": options.adapters + 1,
            "max_lora_rank": options.rank,
            "sample_max_num_sequences": options.batch,
            "train_micro_batch_size": options.batch,
        },
        checkpoints_base=str(directory / "checkpoints"),
        database_url=f"sqlite:///{directory / 'requests.db'}",
        session_cleanup_interval_sec=max(1, options.idle_s // 5),
        session_timeout_sec=options.idle_s,
    )
    app = KeyCheck(
        api.app, os.environ["TINKER_API_KEY"], header="x-api-key", open_paths=["/api/v1/healthz"]
    )
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


def prepare_python() -> None:
    """Lets SkyRL run on Python 3.11, though it asks for 3.12: a typing.TypedDict in a pydantic model."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict


if __name__ == "__main__":
    main(sys.argv[1:])
