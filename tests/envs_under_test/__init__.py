from xp.envs.light_sdk import import_openreward

# Environments here import openreward; without the vendors' clients that takes a third of the time.
import_openreward()
