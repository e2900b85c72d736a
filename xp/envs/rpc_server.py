"""The child's side of `xp.envs.child_process`: answers requests until the parent closes the connection."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from xp.envs.base import EnvFault, ProtocolError
from xp.envs.pythons import bound_memory
from xp.errors import XpError


class RpcServer:
    """Answers requests `(number, verb, conversation, argument)`, each on its own thread, by `(number, kind, result)`.

    Args:
        connection: connection to the parent.
        handler: object whose method with the verb's name is called with `(conversation, argument)` for the result.
    """

    def __init__(self, connection: Connection, handler: Any) -> None:
        self._connection = connection
        self._handler = handler
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Answers requests until the parent closes the connection."""
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                return
            self._take(request)

    def _take(self, request: tuple[Any, ...]) -> None:
        threading.Thread(target=self._answer, args=request, name="rpc", daemon=True).start()

    def _answer(self, number: int, verb: str, conversation: int, argument: Any) -> None:
        try:
            result: tuple[str, Any] = ("ok", getattr(self._handler, verb)(conversation, argument))
        except XpError as error:
            result = ("xp", (str(error), int(error.code)))
        except EnvFault as error:
            result = ("fault", (type(error).__name__, str(error)))
        except BaseException as error:
            frame = traceback.extract_tb(error.__traceback__, limit=-1)[0]
            (text, *_) = traceback.format_exception_only(error)  # reads a text that fails, too
            result = ("raised", f"raised {text.strip()} ({frame.filename}:{frame.lineno})")
        with self._lock:
            try:
                self._connection.send((number, *result))
            except ConnectionError:
                pass  # The parent has closed the connection.
            except Exception as error:  # The user's classes decide what pickling does.
                fault = (ProtocolError.__name__, f"what `{verb}` returned cannot be sent: {error}")
                self._connection.send((number, "fault", fault))


def directory_kind(pid: int) -> str:
    """Kind of the directory of a child's temporary files, by its guard's id; see xp.lib.atomic."""
    return f"host-{pid}"


def to_stderr() -> None:
    """Prints what the user's code prints to stderr: it must not be part of a stage's output."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def serve(
    handler_of: Callable[[Any], Any],
    server_of: Callable[[Connection, Any], RpcServer] = RpcServer,
) -> None:
    """Main function of a child; its argument is the connection's descriptor.

    Args:
        handler_of: makes the handler of what the parent sends first: the environment's configuration, or None. Its
            method `end`, if there is one, is called at every end of the process.
        server_of: makes the server of the connection and the handler.
    """
    connection = Connection(int(sys.argv[1]))
    bound_memory(connection.recv())
    handler = handler_of(connection.recv())
    try:
        signal.signal(signal.SIGTERM, _leave)
        server_of(connection, handler).serve()
    except SystemExit:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        getattr(handler, "end", lambda: None)()
    os._exit(0)  # A thread that hangs must not keep the process alive.


def _leave(*_: Any) -> None:
    """Ends the process after its parent's end; ignores further signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit
