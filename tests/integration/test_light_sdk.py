"""The SDK without the vendors' clients: the same SDK, and everybody else finds the real packages."""

import sys

from tests.support.child import ended


def run(code: str) -> str:
    return ended([sys.executable, "-c", code], check=True).stdout


def test_the_vendors_clients_and_openenvs_page_are_imported_when_they_are_used() -> None:
    assert run(
        "import sys\n"
        "from xp.envs.light_sdk import import_openenv\n"
        "import_openenv()\n"
        "from openenv.core.env_server import create_web_interface_app\n"
        "from openenv.core.env_server.http_server import create_fastapi_app\n"
        "from importlib.util import find_spec\n"
        "print('gradio' in sys.modules, find_spec('openenv.core.env_server.web_interface').loader.name)\n"
        "from xp.envs.light_sdk import VENDORS, import_openreward\n"
        "import_openreward()\n"
        "import openreward\n"
        "print([name for name in VENDORS if name in sys.modules])\n"
        "from openreward.api.rollouts import rollout\n"
        "import anthropic.types, google.genai.types\n"
        "given = rollout.gdm_types.Content\n"
        "print(isinstance(3, given), isinstance(google.genai.types.Content(), given))\n"
        "print(rollout.gdm_types.Content is google.genai.types.Content, anthropic.__file__ is not None)\n"
        "from openreward.environments import _metrics\n"
        "print(type(_metrics.OTLPMetricExporter(endpoint='127.0.0.1:9', insecure=True)).__name__)\n"
        "from openreward.api.rollouts.serializers.ant import serialize_anthropic_message\n"
        "print(serialize_anthropic_message({'role': 'user', 'content': 'hello'})[0].content)\n"
    ).splitlines() == [
        "False openenv.core.env_server.web_interface",
        "[]",
        "False True",
        "True True",
        "OTLPMetricExporter",
        "hello",
    ]
