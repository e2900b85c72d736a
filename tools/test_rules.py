"""`make check`: what holds of every test.

No test passes on emptiness: each has an assertion that runs whatever its branches and loops do. No test module imports
another: tests/support has what they share. A module of tests/unit starts no process and no server.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

# file::test -> why it needs no such assertion.
EXCEPTIONS = {
    "tests/unit/test_dialects_hostile.py::test_no_dialect_raises_whatever_the_text": "random text rarely holds a call",
    "tests/unit/test_docs.py::test_a_block_of_python_compiles": "compile() raises",
    "tests/unit/test_docs.py::test_a_command_of_the_docs_is_taken_and_planned": "some commands compose no spec",
}
# Calls that fail where what they check is not so.
CHECKS = {"raises", "fail", "warns", "eventually", "validate", "validate_cfg"}
# Modules that start a server, and calls that start a process.
SERVERS = {"tests.stubs", "tests.support.http_server", "tests.support.ray_cluster"}
STARTS = {
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.check_output",
    "subprocess.check_call",
    "os.fork",
}
# Stands for a value of a test's table, which the reader sees.
CASE = ast.Constant("case")


def main() -> int:
    """Prints what breaks a rule; returns 1 if anything does."""
    modules = {path: ast.parse(path.read_text()) for path in sorted(Path("tests").rglob("*.py"))}
    misplaced = [*imports_of_tests(modules), *starts_in_units(modules)]
    print(*misplaced, sep="\n", end="\n" if misplaced else "")
    return int(not all_assert(modules) or bool(misplaced))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each module of the tests that is imported, and of each name of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests"):
            yield node.lineno, str(node.module)
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def imports_of_tests(modules: Mapping[Path, ast.Module]) -> Iterator[str]:
    """The imports of test modules."""
    tests = {
        ".".join(path.with_suffix("").parts) for path in modules if path.name.startswith("test_")
    }
    for path, tree in modules.items():
        for line, name in imported(tree):
            if name in tests:
                yield f"{path}:{line}: imports {name}; move what both need to tests/support"


def starts_in_units(modules: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Where a module of tests/unit starts a process, or imports what starts a server."""
    for path, tree in modules.items():
        if not path.is_relative_to("tests/unit"):
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        lines = {call.lineno for call in calls if ast.unparse(call.func) in STARTS}
        lines |= {
            line
            for line, name in imported(tree)
            if any(f"{name}.".startswith(f"{server}.") for server in SERVERS)
        }
        for line in sorted(lines):
            yield f"{path}:{line}: starts a process or a server; move the test to tests/integration"


def all_assert(modules: Mapping[Path, ast.Module]) -> bool:
    """Prints the tests without a sure assertion, and the exceptions that have one."""
    functions = [
        node
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    helpers: set[str] = set()
    num_known = -1
    while len(helpers) > num_known:
        num_known = len(helpers)
        scope = Scope(helpers, {})
        helpers |= {node.name for node in functions if scope.is_sure(node.body)}
    faults = set()
    for path, tree in modules.items():
        if not path.name.startswith("test_"):
            continue
        imports = [
            node
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and "tests" in str(node.module)
        ]
        own = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        names = helpers & (
            {one.name for node in imports for one in node.names} | {node.name for node in own}
        )
        for node in own:
            tables = " ".join(ast.unparse(one) for one in node.decorator_list)
            given = {
                one.arg: CASE for one in node.args.args if re.search(rf"\b{one.arg}\b", tables)
            }
            scope = Scope(names, {**_values(tree.body), **_values(node.body), **given})
            if node.name.startswith("test_") and not scope.is_sure(node.body):
                faults.add(f"{path}::{node.name}")
    for name in sorted(faults - EXCEPTIONS.keys()):
        print(f"{name}: asserts nothing, or only under an `if` or in a loop that may be empty")
    for name in sorted(EXCEPTIONS.keys() - faults):
        print(f"{name}: has such an assertion; remove it from EXCEPTIONS in tools/test_rules.py")
    return faults == EXCEPTIONS.keys()


def _values(body: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Name -> value of the assignments."""
    return {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@dataclass(frozen=True)
class Scope:
    """What is known where a statement runs: the functions that assert, and the values of names."""

    helpers: Set[str]
    values: Mapping[str, ast.expr]

    def is_sure(self, body: Iterable[ast.stmt]) -> bool:
        """Whether an assertion of these statements always runs and looks at something."""
        return any(map(self._is_sure, body))

    def _is_sure(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assert(test=ast.Call(func=ast.Name(id="all"), args=[items])):
                return not self._may_be_empty(items)
            case ast.Assert():
                return True
            case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                return any(self._is_check(item.context_expr) for item in items) or self.is_sure(
                    inner
                )
            case ast.Try(body=inner, finalbody=final):
                return self.is_sure([*inner, *final])
            case ast.If(body=inner, orelse=other):
                return self.is_sure(inner) and self.is_sure(other)
            case ast.For(iter=items, body=inner, target=target):
                names = {one.id: CASE for one in ast.walk(target) if isinstance(one, ast.Name)}
                return not self._may_be_empty(items) and Scope(
                    self.helpers, {**self.values, **names}
                ).is_sure(inner)
            case ast.Expr(value=value) | ast.Assign(value=value):
                return any(map(self._is_check, ast.walk(value)))
        return False

    def _is_check(self, node: ast.AST) -> bool:
        """A call of `raises` and the like, or of a function of the tests that asserts."""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        else:
            name = ""
        return name in CHECKS or name in self.helpers or name.startswith("assert")

    def _may_be_empty(self, items: ast.expr) -> bool:
        match items:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return not elements
            case ast.Dict(keys=keys):
                return not keys
            case ast.Constant(value=value):
                return not value
            case ast.Name(id=name) if name in self.values:
                others = {key: value for key, value in self.values.items() if key != name}
                return Scope(self.helpers, others)._may_be_empty(self.values[name])
            case ast.Name(id=name):
                return not name.isupper()
            case ast.BinOp(left=left, right=right):
                return self._may_be_empty(left) and self._may_be_empty(right)
            case ast.GeneratorExp(generators=[one]) | ast.ListComp(generators=[one]):
                return bool(one.ifs) or self._may_be_empty(one.iter)
            case ast.Call(func=ast.Name(id="range"), args=[*_, end]):
                return not isinstance(end, ast.Constant | ast.BinOp) and self._may_be_empty(end)
            case ast.Call(
                func=ast.Name(id="zip" | "enumerate" | "sorted" | "reversed" | "list" | "set"),
                args=values,
            ):
                return all(map(self._may_be_empty, values))
            case ast.Call(
                func=ast.Attribute(value=owner, attr="items" | "values" | "keys" | "split"), args=[]
            ):
                return self._may_be_empty(owner)
        return True


if __name__ == "__main__":
    sys.exit(main())
