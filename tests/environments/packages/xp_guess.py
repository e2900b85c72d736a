"""A package as verifiers' docs describe one: an environment that speaks as the user, turn by turn."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Guess", "GuessEnv"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    pass


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        tries = 0
        won = False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                tries += 1
                said = segment.last_reply
                if not said.strip().isdigit():
                    break
                if int(said) == task.data.number:
                    won = True
                    break
                segment = await interaction.turn(
                    "higher" if int(said) < task.data.number else "lower"
                )
        interaction.trace.record_reward("won", float(won), 1.0)
        interaction.trace.record_reward("early", 1.0 / max(tries, 1), 0.5)


class Guess(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for number in (3, 7, 12, 18):
            yield GuessTask(GuessData(prompt="Guess my number between 1 and 20.", number=number))
