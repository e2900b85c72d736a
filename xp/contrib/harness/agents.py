"""Published agent programs: how each is installed in an image, and started without questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Agent:
    """One program."""

    command: str
    """With `{prompt_file}`, `{program}`, `{url}` and `{model}`."""
    environ: Mapping[str, str]
    """Its variables, with `{url}`, `{key}` and `{model}`."""
    setup: str | None
    """Command that installs it in an image; those here need Python, or Node.js for one of npm's."""


OPENCODE: Final = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
    "models": {"{model}": {}},
}
"""Entry of a provider in opencode's configuration."""
AGENTS: Final[Mapping[str, Agent]] = MappingProxyType(
    {
        "mini-swe-agent": Agent(
            command='mini -m openai/{model} -t "$(cat {prompt_file})" -y --exit-immediately -l 0',
            environ={
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            setup="pip install 'mini-swe-agent==2.4.6'",
        ),
        # It may be root in a container, its prompt has no number that changes with each request, and it asks for no
        # title, which would be a second conversation.
        "claude-code": Agent(
            command='claude -p --dangerously-skip-permissions --model {model} "$(cat {prompt_file})" </dev/null',
            environ={
                "IS_SANDBOX": "1",
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            setup="npm install --global @anthropic-ai/claude-code@2.1.197",
        ),
        "codex": Agent(
            command="codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m {model}"
            " -c model_provider=xp"
            """ -c 'model_providers.xp={name="xp",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}'"""
            ' "$(cat {prompt_file})" </dev/null',
            environ={},
            setup="npm install --global @openai/codex@0.171.0",
        ),
        # Without a title it asks for one, which would be a second conversation.
        "opencode": Agent(
            command='opencode run --title task -m xp/{model} "$(cat {prompt_file})" </dev/null',
            environ={"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"xp": OPENCODE}})},
            setup="npm install --global opencode-ai@1.18.33",
        ),
    }
)
