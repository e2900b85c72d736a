"""Asks the service whether it can train a model with this SDK: `python -m xp.contrib.tinker.worker.examine MODEL`."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NotYet
from importlib.metadata import version

from xp.contrib.tinker.worker.service import KEY, PROBE, QUIET, URL, status_of
from xp.errors import ExitCode, XpError
from xp.lib.loopback import keyed_opener
from xp.worker.program import run_stage

TIMEOUT_S = 15.0


def main(argv: Sequence[str]) -> None:
    """Prints the versions of both sides; raises XpError(PLAN) where they do not fit, or the model is not served."""
    os.environ.update(QUIET)
    import tinker
    from tinker.types import ModelInput, SamplingParams

    model = argv[0]
    url = os.environ[URL].rstrip("/")
    sdk = f"tinker {version('tinker')}"
    server = f"the service at {URL} ({_name(url)})"
    clients = None
    try:
        clients = tinker.ServiceClient(base_url=url, api_key=os.environ[KEY])
        served = [entry.model_name for entry in clients.get_server_capabilities().supported_models]
        if model in served:
            sampler = clients.create_sampling_client(base_model=model)
            parameters = SamplingParams(max_tokens=1, seed=1)
            sampler.sample(ModelInput.from_ints(list(PROBE)), 1, parameters).result(timeout=1000)
    except Exception as error:  # whatever the SDK raises where the server is of another version
        raise _fault(error, sdk, server) from error
    if model not in served:
        names = ", ".join(map(str, served[:20]))
        raise XpError(
            f"model.path={model}: {server} does not serve it; it serves {names}; choose one, or set"
            " backend.overrides.base_model to the service's name of this model",
            ExitCode.PLAN,
        )
    print(f"{sdk}, {server}, {model}")


def _fault(error: Exception, sdk: str, server: str) -> XpError:
    """The fault of an SDK that got no sample: the key's, one of the moment, or versions that do not fit."""
    from tinker import APIConnectionError
    from tinker.lib.retryable_exception import RetryableException

    status = status_of(error)
    if status in (401, 403):
        return XpError(f"{server} refuses {KEY}; set the key of this service", ExitCode.SECRET)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    lost = (NotYet, TimeoutError, APIConnectionError, RetryableException)
    is_busy = isinstance(error, lost) if status is None else status in (408, 429) or status >= 500
    if is_busy:
        return XpError(
            f"{server} is busy or fails: {reason}; try again when it answers", ExitCode.ENGINE
        )
    return XpError(
        f"backend=tinker: the SDK {sdk} and {server} do not work together: {reason}; install the pinned SDK"
        " (backend.pins), or use a server of its version",
        ExitCode.PLAN,
    )


def _name(url: str) -> str:
    """What a server says of itself; raises XpError(PLAN) where nothing answers."""
    sent = urllib.request.Request(f"{url}/", headers={"X-API-Key": os.environ[KEY]})
    try:
        with keyed_opener().open(sent, timeout=TIMEOUT_S) as response:
            answer = json.load(response)
        return f"{answer['name']} {answer['version']}"
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise XpError(
                f"the service at {URL} refuses {KEY}; set the key of this service", ExitCode.SECRET
            ) from None
        return "which names no version"
    except (ValueError, LookupError, TypeError):
        return "which names no version"
    except OSError as error:
        raise XpError(
            f"backend=tinker: no service answers at {URL} ({error}); start it, or set its address",
            ExitCode.PLAN,
        ) from None


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
