"""Variables of jobs: those of the user's that they and served environments inherit, and secrets from a file.

Those of a list are inherited, no others; secrets are declared and passed by name. With `XP_PASS_ENV=NAME,OTHER_*` the
user passes further variables. A process that does not inherit its secrets reads them in a file of mode 0600, whose path
is in its environment: Ray stores a job's environment as plain text, so a launcher that uses Ray writes this file instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.reading import json_of
from xp.lib.secrets.shapes import looks_like_secret, looks_like_secret_value
from xp.lib.text import word_list

PASS: Final = "XP_PASS_ENV"
SECRETS_FILE: Final = "XP_SECRETS_FILE"
"""Variable with the path of a JSON file, variable -> value."""
STAGE_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN")
"""Tokens of stages, for gated models and for their Ray cluster; a served environment gets none of them."""


_NAMES: Final = word_list("""
    PATH HOME USER LOGNAME SHELL HOSTNAME PWD TERM COLORTERM COLUMNS LINES NO_COLOR FORCE_COLOR TTY_COMPATIBLE
    TTY_INTERACTIVE TZ LANG LANGUAGE TMPDIR TMP TEMP LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH CC CXX CFLAGS
    VIRTUAL_ENV PYTHONPATH PYTHONHASHSEED PYTHONUNBUFFERED PYTHONUTF8 PYTHONIOENCODING PYTHONWARNINGS
    PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONNOUSERSITE SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
    CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY MAX_JOBS KRB5CCNAME TOKENIZERS_PARALLELISM
    RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
    OPENREWARD_URL OPENREWARD_API_URL OPENREWARD_SESSION_URL
""")
_PREFIXES: Final = word_list("""
    LC_ XDG_ CONDA_ OMP_ KMP_ MKL_ OPENBLAS_ NUMEXPR_ RAYON_ CUDA_ CUBLAS_ CUDNN_ NVIDIA_ NVTE_ NCCL_ GLOO_ UCX_ FI_
    HSA_ HIP_ ROCR_ ROCM_ OMPI_ PMI_ PMIX_ TORCH_ TORCHINDUCTOR_ TORCHELASTIC_ PYTORCH_ TRITON_ ACCELERATE_ FSDP_ HF_
    TRANSFORMERS_ DATASETS_ VLLM_ SGLANG_ SGL_ FLASHINFER_ MEGATRON_ SKYRL_ SLIME_ WANDB_ RAY_ SLURM_ SBATCH_ SQUEUE_
    OPENENV_ DAYTONA_ E2B_ MODAL_ RUNLOOP_ XP_ APPTAINER_ APPTAINERENV_ SINGULARITY_ SINGULARITYENV_ ENROOT_
""")


def inherited(
    environ: Mapping[str, str], more: tuple[str, ...] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the variables that are passed: public ones, and secret ones (named by the user, or in `more`).

    Args:
        environ: environment of the starting process.
        more: names that are passed in addition to the list, if they are set.
    """
    passed = [name for name in re.split(r"[,\s]+", environ.get(PASS, "")) if name]
    # In XP_PASS_ENV, `*` matches any characters.
    patterns = [re.escape(name).replace(r"\*", "[A-Za-z0-9_]*") for name in (*passed, *more)]
    pattern = re.compile("|".join(patterns) or r"(?!)")
    plain: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for name, value in environ.items():
        looks_secret = looks_like_secret_value(value) or looks_like_secret(name)
        if pattern.fullmatch(name):
            (hidden if looks_secret else plain)[name] = value
        elif not looks_secret and (name.upper() in _NAMES or name.startswith(_PREFIXES)):
            plain[name] = value
    return plain, hidden


def with_secrets_file(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process's variables and those of the secrets file, if there is one; the file's values take precedence.

    Raises:
        XpError: (SECRET) the file is missing, readable by others, or not a JSON object of texts. The message has no
            value.
    """
    variables = dict(os.environ if environ is None else environ)
    if not variables.get(SECRETS_FILE):
        return variables
    path = Path(variables[SECRETS_FILE])
    values = json_of(path, ExitCode.SECRET)
    if path.stat().st_mode & 0o077:
        raise XpError(
            f"{SECRETS_FILE}={path} can be read by others; chmod 600 {path}", ExitCode.SECRET
        )
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise XpError(f"{SECRETS_FILE}={path} is no JSON object of texts", ExitCode.SECRET)
    return {**variables, **values}
