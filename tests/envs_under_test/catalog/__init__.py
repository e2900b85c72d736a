"""Look-alikes of environments of the OpenReward catalog: splits, sizes, tools, arities, rewards and ends of its pages.

The tasks are made up and cheap, and nothing runs in a sandbox. No page gives prompts: theirs are short.
"""
