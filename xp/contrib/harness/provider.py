"""`provider: harness`: an agent program plays tasks, and the policy answers its requests to a model."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

from pydantic import BaseModel, ConfigDict, Field, model_validator

from xp.contrib.harbor.cloud_options import (
    CloudOptions,
    account_variables,
    check_cloud,
    check_variables,
)
from xp.contrib.harbor.cloud_sandbox import CloudSandboxes
from xp.contrib.harbor.docker_sandbox import DockerImages, DockerSandbox, docker
from xp.contrib.harbor.local_sandbox import LocalSandbox
from xp.contrib.harbor.provider import (
    check_declared,
    check_local,
    longest_verifier_s,
    names_in,
    read_folder,
    remove_left,
    resolved,
    variables_of,
    variables_of_folder,
)
from xp.contrib.harbor.sandbox import CommandSandbox
from xp.contrib.harbor.task_folder import HarborTask
from xp.contrib.harness.agents import AGENTS, HARBOR_AGENTS, HARBOR_OUTSIDE, Agent, harbor_agent
from xp.contrib.harness.server import ProgramServer
from xp.contrib.harness.session import HarnessSession, put_place
from xp.contrib.harness.tool_server import ToolServer
from xp.envs.base import (
    EnvUnavailable,
    Message,
    ProtocolError,
    Provider,
    Session,
    Task,
    ToolSpec,
)
from xp.envs.config import EnvConfig, load_provider
from xp.envs.docker import NO_SANDBOX, check_daemon
from xp.envs.indexed import IndexedProvider
from xp.envs.loop import run
from xp.envs.picture_store import store_of
from xp.envs.pictures import pictures_of, unread
from xp.envs.rows import load_rows, messages_of, reader_of
from xp.errors import ExitCode, XpError, nearest
from xp.lib.data_files import files_in
from xp.lib.digest import digest_of, file_digest, text_digest
from xp.lib.loopback import address_of
from xp.spec.env import PromptSource, SandboxKind

START_S: Final = 60.0
LOOPBACK: Final = "127.0.0.1"
PORTS: Final = 64
"""Ports from `options.listen` on that the processes of a run may take, one each, where `endpoint` has `{port}`."""


class HarnessOptions(BaseModel):
    """`env.options` of `provider: harness`; conf/env/harness.yaml has the defaults."""

    model_config = ConfigDict(extra="forbid")

    agent: str | None
    """A published program or an agent of Harbor's (terminus-2, ...), in place of `command`."""
    agent_options: dict[str, Any]
    """Arguments of the class of an agent of Harbor's: max_turns, parser_name, llm_kwargs, ..."""
    command: Annotated[str, Field(min_length=1)] | None
    """Command of your own program. `{prompt_file}`, `{program}`, `{url}` and `{model}` are filled in."""
    program: str | None
    """File or folder of your program on this machine, copied to `{program}`; None: it is where the command finds it."""
    env: dict[str, str]
    """Further variables of the program, with `{url}`, `{key}` and `{model}`."""
    setup: str | None
    """Command that installs the program in each image (a container or a cloud's sandbox); None: the agent's own, or nothing."""
    image: str | None
    """Image of rows and of a server's tasks, where there is a sandbox."""
    timeout_s: Annotated[float, Field(gt=0)]
    """Seconds that the program may take for its own work; then what it left is scored."""
    grade: str | None
    """Command that scores a row.

    `{row_file}`, `{output_file}`, `{answer_file}`, `{program}` and `{grader}` are filled in.
    """
    grader: str | None
    """File or folder of your grading script, copied to `{grader}` after the program's end; None: a file of the current
    directory that `grade` names."""
    reward: Annotated[str, Field(min_length=1)]
    """Name of the reward, if reward.json has several."""
    max_rows: Annotated[int, Field(ge=1)]
    """Rows of tokens of an episode, each a history of the program; 1: the program only appends to its history."""
    endpoint: Annotated[str, Field(pattern="^https?://[^/ ]+/?$")] | None
    """Address at which programs elsewhere reach the policy: of a tunnel of yours, or of this machine. `{port}` is filled
    in. None: they are on this machine."""
    listen: Annotated[str, Field(pattern=r"^[0-9A-Za-z.:-]+:[0-9]+$")]
    """Address and port of this machine to which `endpoint` leads."""
    cloud: CloudOptions
    """Limits of sandboxes in a cloud."""
    train_auxiliary: bool
    """Whether messages beside the program's own loop (titles, summaries, sub-agents) are trained, see `auxiliary_of`."""

    @model_validator(mode="after")
    def _whole(self) -> HarnessOptions:
        if (self.agent is None) == (self.command is None):
            raise ValueError(
                f"give exactly one of agent ({', '.join((*AGENTS, *HARBOR_AGENTS))}) and command"
            )
        if self.agent is not None and self.agent not in (*AGENTS, *HARBOR_AGENTS):
            raise ValueError(
                f"agent={self.agent} is not there{nearest(self.agent, (*AGENTS, *HARBOR_AGENTS))}; set one of"
                f" {', '.join((*AGENTS, *HARBOR_AGENTS))}, or command"
            )
        if self.agent_options and self.agent not in HARBOR_AGENTS:
            raise ValueError(
                f"agent_options are for an agent of Harbor's; set agent to one of {', '.join(HARBOR_AGENTS)}"
            )
        if self.max_rows == 1 and not self.train_auxiliary:
            raise ValueError(
                "train_auxiliary=false needs max_rows above 1; set env.options.max_rows"
            )
        # A file of the current directory is the program or the grading script; a sandbox has other directories.
        if self.command is not None and self.program is None:
            self.command, self.program = _with_place(self.command, "program")
        if self.grade is not None and self.grader is None:
            self.grade, self.grader = _with_place(self.grade, "grader")
        if self.program is not None:
            self.program = str(Path(self.program).expanduser().absolute())
        if self.grader is not None:
            self.grader = str(Path(self.grader).expanduser().absolute())
        return self


def _variables(config: EnvConfig) -> dict[str, str]:
    """Variables of the program, of its preset and of the user's options."""
    options = config.options
    agent = AGENTS.get(options["agent"] or "")
    if agent is None:
        return dict(options["env"])
    has_tools = not is_folder(config) and config.rows is None
    of_tools = agent.tools_environ if has_tools else {}
    return {**agent.environ, **of_tools, **options["env"]}


class HarnessProvider(IndexedProvider):
    """See xp.envs.base.Provider.

    Args:
        config: the environment; `target` is a folder of Harbor's tasks or an ORS server, `rows` are prompts.
        environ: this process's variables; programs get those in xp.contrib.harbor.local_sandbox and their options'.
    """

    Options = HarnessOptions

    @staticmethod
    def source_digest(config: EnvConfig) -> str:
        """Digest of the program's files and of the task folders; raises XpError if they cannot be read."""
        places = [_place(config, name) for name in ("program", "grader")]
        files = {
            str(file): file_digest(file)
            for place in places
            if place is not None
            for file in files_in(place)
        }
        folders = read_folder(config) if is_folder(config) else {}
        tasks = {split: [task.digest() for task in members] for split, members in folders.items()}
        return digest_of([tasks, files])

    @staticmethod
    def check_plan(config: EnvConfig, environ: Mapping[str, str]) -> None:
        """See xp.contrib.harbor.provider.HarborProvider."""
        values = list(_variables(config).values())
        scoring_s = config.limits.call_timeout_s
        if is_folder(config):
            tasks = read_folder(config)
            values += variables_of_folder(tasks)
            scoring_s = longest_verifier_s(tasks)
        check_cloud(config, scoring_s)
        check_variables(config, names_in(values))
        check_declared(values, config, environ)
        _check_agent(config)
        _check_endpoint(config)

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._place = _place(config, "program")
        self._grader = _place(config, "grader")
        options = config.options
        agent = AGENTS.get(options["agent"] or "", Agent(options["command"] or "", {}, None))
        self._agent_options: Mapping[str, Any] = {}
        if options["agent"] in HARBOR_AGENTS:
            agent, self._agent_options = harbor_agent(
                options["agent"], options["agent_options"], options["max_rows"]
            )
        command = agent.command
        if options["agent"] is not None:
            has_tools = not is_folder(config) and config.rows is None
            command = command.replace("{tools}", (has_tools and agent.tools_option) or "")
        variables = resolved(_variables(config), config, environ)
        self._agent = replace(
            agent, command=command, environ=variables, setup=options["setup"] or agent.setup
        )
        self._has_image = config.sandbox is not SandboxKind.NONE
        self._clouds = CloudSandboxes(config, environ)
        self._inner: Provider | None = None
        self._rows: Mapping[str, Sequence[Mapping[str, Any]]] = {}
        self._tasks: Mapping[str, Sequence[HarborTask]] = {}
        if is_folder(config):
            self._tasks = read_folder(config)
        elif config.rows is not None:
            has_pictures = config.images is not None
            self._rows, _ = load_rows(config.rows, config.columns, has_pictures=has_pictures)
            try:
                self._tasks = {
                    split: [self._task_of(row) for row in rows]
                    for split, rows in self._rows.items()
                }
            except ProtocolError as fault:
                raise XpError(f"environment {config.name}: rows: {fault}") from None
        else:
            self._inner = load_provider(_of_server(config), environ)
        self._check_sandboxes()
        self._images = DockerImages()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(
            config.limits.max_sessions, thread_name_prefix="program-tools"
        )
        self._lock = threading.Lock()
        self._servers = dict[int, ProgramServer]()
        self._sessions = WeakSet[HarnessSession]()
        self._describing = threading.Lock()
        self._described: tuple[list[Message], tuple[ToolSpec, ...]] | None = None
        """System messages and tools of the program's first request, in the first session."""

    def version(self) -> str:
        if self._inner is not None:
            return self._inner.version()
        digests = {split: [task.digest() for task in tasks] for split, tasks in self._tasks.items()}
        return f"harness tasks {digest_of(self._rows or digests)[:16]}"

    def splits(self) -> tuple[str, ...]:
        if self._inner is None:
            return tuple(self._tasks)
        return self._inner.splits()

    def open(self, task: Task) -> HarnessSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        self._check(task)
        server = self._server()
        if self._inner is None:
            inner = None
        else:
            inner = self._inner.open(task)
        try:
            session = self._session(task, server, inner)
        except BaseException:
            if inner is not None:
                inner.close()
            raise
        session.read_picture = reader_of(self._config.images, None, self._environ)
        self._sessions.add(session)
        session.begin(self._config.limits.create_timeout_s)
        return session

    def describe(self, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        """See xp.envs.base.Describer.

        A live prompt is the program's own, so that one start shows its system message and its tools for all tasks.
        """
        if self._config.prompt is PromptSource.PREPARED:
            with closing(self.open(task)) as session:
                return session.prompt(), session.tools()
        with self._describing:
            if self._described is None:
                with closing(self.open(task)) as session:
                    opening = session.prompt()
                    system = [message for message in opening if message["role"] == "system"]
                    self._described = system, session.tools()
        system, tools = self._described
        return [*system, Message(role="user", content=self._instruction(task))], tools

    def _instruction(self, task: Task) -> str:
        """The text that the program gets; raises EnvFault."""
        if self._inner is None:
            return self._tasks[task.split][task.index].instruction
        with closing(self._inner.open(task)) as session:
            return self._task_of({"prompt": session.prompt()}).instruction

    def close(self) -> None:
        self._is_closed = True
        for session in list(self._sessions):  # of a play that a failing engine has ended
            session.close()
        server = self._servers.pop(os.getpid(), None)
        if server is not None:
            run(server.stop(), START_S)
        if self._inner is not None:
            self._inner.close()
        self._clouds.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def remove_left(self) -> list[str]:
        """See xp.envs.base.Remover."""
        return remove_left(self._config, self._clouds)

    def _session(self, task: Task, server: ProgramServer, inner: Session | None) -> HarnessSession:
        tools = None
        row = dict[str, Any]()
        if inner is not None:
            store = store_of(self._config.images, self._environ)
            tools = ToolServer(inner, self._pool, store)
            row = {"prompt": inner.prompt()}
            harbor_task = self._task_of(row)
        else:
            harbor_task = self._tasks[task.split][task.index]
            if self._rows:
                row = dict(self._rows[task.split][task.index])
            else:
                row = {}
        environ = variables_of(harbor_task, self._config, self._environ)
        start = partial(self._start, harbor_task)
        return HarnessSession(
            self._agent,
            harbor_task,
            row,
            start,
            tools,
            environ,
            server,
            self._config,
            self._grader,
            self._agent_options,
        )

    def _task_of(self, row: Mapping[str, Any]) -> HarborTask:
        """A row as a task.

        Raises:
            XpError: its files would be written elsewhere than in the working directory.
            ProtocolError: its prompt has a picture.
        """
        for name in row.get("files") or {}:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise XpError(
                    f"environment {self._config.name}: files: {name!r} is not below the working directory"
                )
        messages = messages_of(row, None if self._config.images is None else unread)
        if pictures_of(messages):
            raise ProtocolError(
                "the task's prompt has an image, and a program gets a text: leave the image out of the prompt, and give the"
                " program the file or a tool that shows it"
            )
        prompt = "\n\n".join(message["content"] for message in messages)
        return HarborTask(Path(), prompt, self._config.options["image"])

    def _check_sandboxes(self) -> None:
        """Raises XpError for tasks and options that the sandbox cannot serve."""
        options = self._config.options
        tasks = [member for members in self._tasks.values() for member in members]
        where = f"environment {self._config.name}"
        for task in tasks:
            variables_of(
                task, self._config, self._environ
            )  # Reports a missing secret before the first session.
        if not self._has_image:
            if options["setup"] is not None or options["image"] is not None:
                raise XpError(
                    f"{where}: options.setup and options.image need a container; set env.sandbox=docker or a cloud's"
                )
            if is_folder(self._config):
                check_local(self._config, self._tasks)
            print(f"xp: {NO_SANDBOX}", file=sys.stderr, flush=True)
            return
        if not is_folder(self._config) and options["image"] is None:
            raise XpError(
                f"{where}: env.sandbox={self._config.sandbox} needs env.options.image, in which the program runs"
            )
        alone = [task.name for task in tasks if not task.has_network]
        if alone and not _is_outside(self._config):
            raise XpError(
                f"{where}: task {alone[0]} has no network, so that its program cannot reach the policy; set"
                " allow_internet=true in its task.toml"
            )
        if self._config.sandbox is SandboxKind.DOCKER:
            check_daemon(self._other_sandbox())

    def _other_sandbox(self) -> str:
        """Advice for a machine without Docker, with the options that must change too."""
        try:
            check_local(self._config, self._tasks if is_folder(self._config) else {})
        except XpError:
            return "use another machine"
        options = ("setup", "image")
        unset = [f" env.options.{name}=null" for name in options if self._config.options[name]]
        return f"set env.sandbox=none{''.join(unset)}, which runs commands here without isolation"

    def _start(self, task: HarborTask) -> CommandSandbox:
        limits = self._config.limits
        machine: CommandSandbox
        is_cloud = self._config.sandbox is not None and self._config.sandbox.is_cloud
        if is_cloud or self._agent.harbor_name is not None:
            machine = self._clouds.open(task, self._agent.setup)
        elif self._has_image:
            image = self._images.of(task)
            if self._agent.setup is not None:
                image = _with_setup(image, self._agent.setup, task.build_timeout_s)
            machine = DockerSandbox(image, task, limits.memory_gb, limits.create_timeout_s)
        else:
            files = task.files if is_folder(self._config) else None
            machine = LocalSandbox(files, self._config.limits.memory_gb, self._environ)
        if self._place is not None:
            try:
                put_place(machine, self._place, "program")
            except BaseException:
                machine.close()
                raise
        return machine

    def _server(self) -> ProgramServer:
        """This process's endpoint, started at the first session; a forked process has one of its own."""
        with self._lock:
            server = self._servers.get(os.getpid())
            if server is None:
                server = self._new_server()
                run(server.start(), START_S)
                self._servers[os.getpid()] = server
            return server

    def _new_server(self) -> ProgramServer:
        endpoint = self._config.options["endpoint"]
        if _is_outside(self._config):
            return ProgramServer(LOOPBACK)
        if endpoint is not None:
            host, _, port = self._config.options["listen"].rpartition(":")
            num_ports = PORTS if "{port}" in endpoint else 1
            return ProgramServer(
                host, range(int(port), int(port) + num_ports), endpoint.rstrip("/")
            )
        if self._has_image:
            return ProgramServer(_bridge())
        return ProgramServer(LOOPBACK)

    def _size(self, split: str) -> int:
        if self._inner is None:
            return len(self._tasks[split])
        return self._inner.num_tasks(split)

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        if self._inner is not None:
            return [task.spec for task in self._inner.tasks(split, indices)]
        if self._rows:
            return [self._rows[split][index] for index in indices]
        tasks = (self._tasks[split][index] for index in indices)
        return [
            {"name": task.name, "instruction": task.instruction, "digest": task.digest()}
            for task in tasks
        ]


def is_folder(config: EnvConfig) -> bool:
    """Returns whether the target is a folder of Harbor's tasks, and not a server."""
    return config.target is not None and config.target.startswith(("/", "~"))


def _of_server(config: EnvConfig) -> EnvConfig:
    """Rules of the sessions on an ORS server, which does not get the key of the account at a cloud."""
    account = account_variables(config.sandbox)
    secrets = {name: source for name, source in config.secrets.items() if name not in account}
    changes = {"provider": "openreward", "options": {}, "secrets": secrets}
    return config.model_copy(update=changes)


def _is_outside(config: EnvConfig) -> bool:
    """Returns whether the agent asks the policy from this machine, and only its commands run in the sandbox."""
    return config.options["agent"] in HARBOR_OUTSIDE


def _check_agent(config: EnvConfig) -> None:
    """Raises XpError(PLAN) for an agent of Harbor's where Harbor has no sandbox, or has no tools for it."""
    agent = config.options["agent"]
    if agent not in HARBOR_AGENTS:
        return
    where = f"environment {config.name}: options.agent={agent}"
    if config.sandbox is SandboxKind.NONE:
        raise XpError(
            f"{where} plays in a sandbox of Harbor's; set env.sandbox=docker, daytona, modal, e2b or runloop",
            ExitCode.PLAN,
        )
    if not is_folder(config) and config.rows is None:
        raise XpError(
            f"{where} gets no tools of a server; set claude-code, codex, opencode or options.command",
            ExitCode.PLAN,
        )
    if config.options["setup"] is None and config.options["program"] is None:
        return
    raise XpError(
        f"{where} is installed by Harbor; set env.options.setup=null env.options.program=null",
        ExitCode.PLAN,
    )


def _check_endpoint(config: EnvConfig) -> None:
    """Raises XpError(PLAN) where programs in a cloud cannot reach this machine."""
    endpoint = config.options["endpoint"]
    is_cloud = config.sandbox is not None and config.sandbox.is_cloud
    if not is_cloud or _is_outside(config):
        return
    reason: str | None = "127.0.0.1 is not this machine"
    if endpoint is not None:
        reason = _unreachable(endpoint)
    if reason is None:
        return
    raise XpError(
        f"environment {config.name}: env.sandbox={config.sandbox} runs the program in a cloud, where {reason}; set"
        " env.options.endpoint=https://NAME, a tunnel of yours that leads to env.options.listen"
        f" ({config.options['listen']} on this machine), or env.options.endpoint='http://ADDRESS:{{port}}' with"
        " env.options.listen=0.0.0.0:8800 where this machine has a public address (xp opens neither by itself)",
        ExitCode.PLAN,
    )


def _unreachable(endpoint: str) -> str | None:
    """Why a cloud does not reach an endpoint. None means that it has a public address or a name."""
    what = f"env.options.endpoint={endpoint}"
    try:
        host = urlsplit(endpoint.replace("{port}", "80")).hostname or ""
    except ValueError as error:
        return f"{what} is no address ({error})"
    if host.rstrip(".").endswith(".localhost"):
        return f"{what} is not this machine"
    address = address_of(host)
    if address is None or address.is_global:
        return None
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return f"{what} is not this machine"
    return f"{what} is an address of a private network, which a cloud does not reach"


def _place(config: EnvConfig, name: str) -> Path | None:
    """File or folder in an option; raises XpError if it does not exist."""
    place = config.options[name]
    if place is not None and not Path(place).exists():
        raise XpError(
            f"environment {config.name}: options.{name}={place}: there is no such file or folder"
        )
    return None if place is None else Path(place)


def _with_place(command: str, name: str) -> tuple[str, str | None]:
    """A command with `{name}` in place of the file of the current directory that it names, and that file."""
    for word in command.split():
        if not word.startswith("/") and Path(word).is_file():
            return command.replace(word, f"{{{name}}}/{Path(word).name}", 1), word
    return command, None


def _bridge() -> str:
    """This machine's address in Docker's network, which no other machine reaches; raises EnvUnavailable."""
    form = "{{(index .IPAM.Config 0).Gateway}}"
    try:
        return str(ip_address(docker("network", "inspect", "bridge", "--format", form)))
    except ValueError as error:
        raise EnvUnavailable(f"Docker's bridge has no address on this machine: {error}") from None


def _with_setup(image: str, setup: str, limit_s: float) -> str:
    """Name of an image with the program; Docker builds it once, and knows it afterwards."""
    name = f"xp-harness:{text_digest(f'{image} {setup}')[:20]}"
    with tempfile.TemporaryDirectory(prefix="xp-image-") as folder:
        Path(folder, "setup.sh").write_text(setup, encoding="utf-8")
        lines = f"FROM {image}\nCOPY setup.sh /tmp/xp-setup.sh\nRUN sh -e /tmp/xp-setup.sh\n"
        Path(folder, "Dockerfile").write_text(lines, encoding="utf-8")
        docker("build", "--quiet", "--tag", name, folder, limit_s=limit_s)
    return name
