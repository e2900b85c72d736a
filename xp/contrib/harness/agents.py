"""Published agent programs: how each is installed in an image, and started without questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True)
class Agent:
    """One program."""

    command: str
    """With `{prompt_file}`, `{program}`, `{url}`, `{model}` and `{tools}`."""
    environ: Mapping[str, str]
    """Its variables, with `{url}`, `{key}` and `{model}`."""
    setup: str | None
    """Command that installs it in an image; those here need Python, or Node.js for one of npm's."""
    tools_option: str | None = None
    """Further words of its command for a session's tools, in place of `{tools}`; None: it has no client of MCP."""
    tools_environ: Mapping[str, str] = field(default_factory=dict)
    """Variables in place of those in `environ` for a session's tools."""
    harbor_name: str | None = None
    """Name of an agent of Harbor's, which its package plays in place of `command`."""


OPENCODE: Final = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
    "models": {"{model}": {}},
}
"""Entry of a provider in opencode's configuration."""
CODEX_TOOLS: Final = """ -c 'mcp_servers.env={url="{url}/mcp",bearer_token_env_var="OPENAI_API_KEY",tool_timeout_sec=3600}'"""
"""A session's tools in Codex' configuration."""
CLAUDE_TOOLS: Final = {
    "env": {
        "type": "http",
        "url": "{url}/mcp",
        "headers": {"Authorization": "Bearer ${ANTHROPIC_API_KEY}"},
    }
}
"""A session's tools in Claude Code's configuration, which fills in the variable."""
OPENCODE_TOOLS: Final = {
    "env": {
        "type": "remote",
        "url": "{url}/mcp",
        "headers": {"Authorization": "Bearer {key}"},
        "oauth": False,
        "timeout": 3_600_000,
    }
}
"""A session's tools in opencode's configuration; the limit is in milliseconds."""
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
            command='claude -p --dangerously-skip-permissions{tools} --model {model} "$(cat {prompt_file})" </dev/null',
            environ={
                "IS_SANDBOX": "1",
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            setup="npm install --global @anthropic-ai/claude-code@2.1.197",
            tools_option=f" --strict-mcp-config --mcp-config='{json.dumps({'mcpServers': CLAUDE_TOOLS})}'",
        ),
        "codex": Agent(
            command="codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m {model}"
            " -c model_provider=xp"
            """ -c 'model_providers.xp={name="xp",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}'{tools}"""
            ' "$(cat {prompt_file})" </dev/null',
            environ={},
            setup="npm install --global @openai/codex@0.171.0",
            tools_option=CODEX_TOOLS,
        ),
        # Without a title it asks for one, which would be a second conversation.
        "opencode": Agent(
            command='opencode run --title task -m xp/{model} "$(cat {prompt_file})" </dev/null',
            environ={"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"xp": OPENCODE}})},
            setup="npm install --global opencode-ai@1.18.33",
            tools_option="",
            tools_environ={
                "OPENCODE_CONFIG_CONTENT": json.dumps(
                    {"provider": {"xp": OPENCODE}, "mcp": OPENCODE_TOOLS}
                )
            },
        ),
    }
)
HARBOR_OUTSIDE: Final = ("terminus-2",)
"""Agents of Harbor's that run beside its client and reach into a sandbox, which need not reach the policy."""
HARBOR_AGENTS: Final = (
    *HARBOR_OUTSIDE,
    "aider",
    "goose",
    "kimi-cli",
    "openhands",
    "openhands-sdk",
    "pi",
    "qwen-coder",
    "swe-agent",
    "trae-agent",
)
"""Agents of Harbor's (harbor 0.26) that ask an endpoint with the wire of chat completions."""


def harbor_agent(
    name: str, options: Mapping[str, Any], max_rows: int
) -> tuple[Agent, Mapping[str, Any]]:
    """An agent of Harbor's, and the arguments of its class: the user's, and those that follow from the episode's rows.

    Args:
        name: one of `HARBOR_AGENTS`.
        options: arguments of the user's.
        max_rows: rows of tokens of an episode; a summary of the history begins a new one.
    """
    defaults: dict[str, Any] = {}
    if name == "terminus-2":
        defaults = {
            "enable_summarize": max_rows > 1,
            "record_terminal_session": False,
            "suppress_max_turns_warning": True,
        }
    return Agent("", {}, None, harbor_name=name), {**defaults, **options}
