"""Ray reads its settings when it is imported, so they are set here, before any test module imports it."""

from importlib.util import find_spec

from xp.security import own_ray

if find_spec("skyrl") is not None:
    own_ray.close_to_others()
