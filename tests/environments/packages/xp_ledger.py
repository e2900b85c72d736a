"""A package as verifiers' docs describe one: tools with a state of each rollout, on a server of its own."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Ledger"]


class LedgerState(vf.State):
    balance: int = 0
    booked: int = 0


class LedgerTools(vf.Toolset[vf.ToolsetConfig, LedgerState]):
    TOOL_PREFIX = "ledger"

    @vf.tool
    async def book(self, amount: int) -> str:
        """Add an amount, which may be negative."""
        self.state.balance += amount
        self.state.booked += 1
        return f"balance {self.state.balance}"

    @vf.tool
    async def balance(self) -> str:
        """The balance now."""
        return str(self.state.balance)


class LedgerData(vf.TaskData):
    target: int


class LedgerConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class LedgerTask(vf.Task[LedgerData, LedgerState, LedgerConfig]):
    @classmethod
    def toolsets(cls, config: LedgerConfig) -> list[vf.Toolset]:
        return [LedgerTools(config.tools)]

    @vf.reward
    async def reached(self, trace) -> float:
        return float(trace.state.balance == self.data.target)

    @vf.reward(weight=0.25)
    async def few_bookings(self, trace) -> float:
        return float(0 < trace.state.booked <= 2)

    @vf.stop
    async def overdrawn(self, trace: vf.Trace) -> bool:
        return trace.state.balance < -100


class LedgerTasksetConfig(vf.TasksetConfig):
    task: LedgerConfig = LedgerConfig()
    size: int = 6


class Ledger(vf.Taskset[LedgerTask, LedgerTasksetConfig]):
    def load(self):
        for target in range(1, self.config.size + 1):
            prompt = f"Book amounts until the balance is {target}, then say done."
            yield LedgerTask(LedgerData(prompt=prompt, target=target), self.config.task)


if __name__ == "__main__":
    LedgerTools.run()
