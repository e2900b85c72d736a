"""A package with verifiers' own types of pictures: in the prompt, in the turns of its environment, and of a tool."""

from __future__ import annotations

import base64
import struct
import zlib

import verifiers.v1 as vf
from mcp_types import ImageContent, TextContent

__all__ = ["Boards", "BoardsEnv"]

SIDE = 56
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def png(color: str) -> bytes:
    """A picture of one color."""
    row = b"\0" + bytes(COLORS[color]) * SIDE
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * SIDE)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def encoded(color: str) -> str:
    return base64.b64encode(png(color)).decode()


def shown(text: str, color: str) -> vf.UserMessage:
    """A text and a picture; another word than a color is an address."""
    url = f"data:image/png;base64,{encoded(color)}" if color in COLORS else color
    image = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=url))
    return vf.UserMessage(content=[vf.TextContentPart(text=text), image])


class BoardTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "board"

    @vf.tool
    async def show(self, color: str) -> list:
        """Show a board."""
        image = ImageContent(type="image", data=encoded(color), mime_type="image/png")
        return [TextContent(type="text", text="Here:"), image]


class BoardData(vf.TaskData):
    turns: list[str]


class BoardConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class BoardTask(vf.Task[BoardData, vf.State, BoardConfig]):
    @classmethod
    def toolsets(cls, config: BoardConfig) -> list[vf.Toolset]:
        return [BoardTools(config.tools)]


class BoardsConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class BoardsEnv(vf.Env[BoardsConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for color in task.data.turns:
                if segment.terminated:
                    break
                segment = await interaction.turn([shown("Now this.", color)])
        interaction.trace.record_reward("said", float(segment.last_reply == "blue"), 1.0)


class BoardsTasksetConfig(vf.TasksetConfig):
    task: BoardConfig = BoardConfig()
    address: str = "https://example.org/a.png"


class Boards(vf.Taskset[BoardTask, BoardsTasksetConfig]):
    def load(self):
        for first, turns in (("red", ["blue"]), (self.config.address, []), ("green", [])):
            data = BoardData(prompt=[shown("Which color?", first)], turns=turns)
            yield BoardTask(data, self.config.task)


if __name__ == "__main__":
    BoardTools.run()
