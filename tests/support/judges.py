"""A judge of our own as a stub: it follows a rule on what it is sent, and its verdict has the requested form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.stubs.chat_server import ChatServer
from tests.support.sections import replace
from xp.spec.judge import JudgeModel, JudgeScoring, JudgeSpec, LimitName


def data_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object that the judge reads."""
    value: dict[str, Any] = json.loads(body["messages"][1]["content"])
    return value


def check_of(body: Mapping[str, Any]) -> str:
    found = re.search(r'\{"check": "(\w+)"', body["messages"][0]["content"])
    assert found is not None
    return found[1]


def verdict(body: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    return {"content": f"Hm.\n{json.dumps({'check': check_of(body), **values})}"}


def by(quality: Callable[[Any], float]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A judge that scores, compares or ranks answers by their quality, between 0 and 10."""

    def write(body: Mapping[str, Any]) -> dict[str, Any]:
        data = data_of(body)
        if "answers" in data:
            return verdict(body, scores=[quality(one) for one in data["answers"]])
        if "answer" in data:
            return verdict(body, score=quality(data["answer"]))
        first = quality(data["first"])
        second = quality(data["second"])
        if first == second:
            return verdict(body, better="tie")
        return verdict(body, better="first" if first > second else "second")

    return write


def config(server: ChatServer, scoring: JudgeScoring, **changes: Any) -> JudgeSpec:
    """The judge behind a server; changes of its model are those that a JudgeModel has."""
    model = {
        "url": server.url,
        "name": "stub",
        "key": None,
        "max_tokens": 100,
        "limit_name": LimitName.MAX_TOKENS,
        "seed": None,
        "timeout_s": 60.0,
        "price_in": 100.0,
        "price_out": 200.0,
        "temperature": 0.0,
        "concurrency": 4,
        "serve": None,
        "accelerators": 1,
        "images": False,
    }
    own = {name: changes.pop(name) for name in list(changes) if name in model}
    whole = JudgeSpec(
        rubric="Longer is better.",
        model=JudgeModel(**model | own),
        scoring=scoring,
        scale=(0.0, 10.0),
        weight=1.0,
    )
    return replace(whole, **changes)
