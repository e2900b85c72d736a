"""One try at a task: turns, tool calls, rewards, records and metrics."""
