"""The child's side of `xp.envs.child_process`: answers requests until the parent closes the connection."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pickle import dumps
from typing import Any

from xp.envs.base import EnvFault, ProtocolError
from xp.envs.bounds import bound_memory
from xp.envs.config import EnvConfig
from xp.errors import XpError


class RpcServer:
    """Answers requests `(number, verb, conversation, argument)`, each on its own thread.

    An answer is `(number, kind, pickled result)`; a result that cannot be sent becomes a fault.

    Args:
        connection: connection to the parent.
        handler: object whose method with the verb's name is called with `(conversation, argument)` for the result.
    """

    def __init__(self, connection: Connection, handler: Any) -> None:
        self._connection, self._handler = connection, handler
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Answers requests until the parent closes the connection."""
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                return
            threading.Thread(target=self._answer, args=request, name="rpc", daemon=True).start()

    def _answer(self, number: int, verb: str, conversation: int, argument: Any) -> None:
        try:
            result: tuple[str, Any] = ("ok", getattr(self._handler, verb)(conversation, argument))
        except XpError as error:
            result = ("xp", (_text(error), int(error.code)))
        except EnvFault as error:
            result = ("fault", (type(error).__name__, _text(error)))
        except BaseException as error:
            result = ("raised", f"raised {type(error).__name__}: {_text(error)} ({_place_of(error)})")
        kind, value = result
        try:
            packed = dumps(value)
        except BaseException as error:  # The user's classes decide what pickling does.
            kind = "fault"
            packed = dumps((ProtocolError.__name__, f"what `{verb}` returned cannot be sent: {_text(error)}"))
        with self._lock:
            self._connection.send((number, kind, packed))


def _text(error: BaseException) -> str:
    """An exception's text, even if the user's class fails to give one."""
    try:
        return "".join(str(error))
    except BaseException:
        return "(no readable text)"


def _place_of(error: BaseException) -> str:
    """File and line that raised an exception."""
    place = traceback.extract_tb(error.__traceback__, limit=-1)[0]
    return f"{place.filename}:{place.lineno}"


def serve(handler_of: Callable[[EnvConfig], Any]) -> None:
    """Main function of a child; its argument is the connection's descriptor.

    A handler's method `end`, if there is one, is called at every end of the process.
    """
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # The user's printed text must not be part of a stage's output.
    connection = Connection(int(sys.argv[1]))
    config: EnvConfig = connection.recv()
    bound_memory(config.limits.memory_gb)
    handler = handler_of(config)
    if (end := getattr(handler, "end", None)) is None:
        RpcServer(connection, handler).serve()
    else:
        try:
            _serve_until_asked(RpcServer(connection, handler))
        finally:
            end()
    os._exit(0)  # A thread that hangs must not keep the process alive.


def _serve_until_asked(server: RpcServer) -> None:
    """Answers requests until the connection's end or TERM; a TERM after that does not disturb the shutdown."""
    try:
        signal.signal(signal.SIGTERM, _leave)
        try:
            server.serve()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except SystemExit:
        pass


def _leave(*_: Any) -> None:
    """Ends the process after its parent's end; ignores further signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit
