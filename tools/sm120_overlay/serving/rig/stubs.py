"""What a fabricated package is made of: modules, classes and values that may be named but never asked.

While a module loads, a stub bends: decorators wrap, base classes subclass, constants compute (to another stub).
After that, whatever would take an answer from it (a call, a truth value, a comparison, a length, a lookup,
`hasattr`) raises StubDecided. Naming it stays allowed: `from sgl_kernel import f` in a function does no harm before
`f` is called. Answers that loading did force are kept in `answered`, for the report.
"""

from __future__ import annotations

import dis
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from sm120_overlay.serving.rig.errors import StubDecided
from sm120_overlay.serving.rig.phase import loading

# Each answer that a stub had to give while a module loaded: (stub, operation, "file:line").
answered: list[tuple[str, str, str]] = []

# How an attribute is read by syntax; `hasattr` and `getattr` arrive from a CALL instead.
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_FORCED: dict[str, Any] = {"bool": False, "len": 0, "contains": False, "int": 0, "index": 0, "float": 0.0}
_COMPARED = ["lt", "le", "gt", "ge", "eq", "ne"]
_COMPUTED = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"]
_PROPAGATED = [
    *_COMPARED,
    *_COMPUTED,
    *(f"r{operation}" for operation in _COMPUTED),
    *("neg", "pos", "abs", "invert", "getitem", "enter", "await", "next"),
]
_IGNORED = ["setitem", "delitem", "exit"]


def _asker(frame: FrameType | None) -> FrameType | None:
    """The first frame outside this module: the code that asked."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _forced(path: str, operation: str) -> None:
    """Refuse at use; while loading, note that the stub had to answer."""
    if not loading():
        raise StubDecided(path, operation)
    frame = _asker(sys._getframe(1))
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
    answered.append((path, operation, where))


def _refuse_probe(path: str, name: str) -> None:
    """Refuse `hasattr(stub, name)` and `getattr(stub, name, …)`: whether the real one has it is a decision."""
    frame = _asker(sys._getframe(1))
    if loading() or frame is None or frame.f_code.co_filename.startswith("<frozen importlib"):
        return
    opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if opcode not in _READS:
        raise StubDecided(path, f"hasattr or getattr ({name!r})")


def _member(owner: Any, path: str, name: str) -> Any:
    """Fabricate a member once: CamelCase names become classes, so that they can be subclassed and annotated with."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"stub {path} has no {name}")
    _refuse_probe(path, name)
    camel = name[:1].isupper() and not name.isupper()
    made = fabricate(path, name) if camel else Stub(f"{path}.{name}")
    if not isinstance(owner, Stub):
        setattr(owner, name, made)
    return made


def _construct(self: Any, *_: Any, **__: Any) -> None:
    if not loading():
        cls = type(self)
        raise StubDecided(f"{cls.__module__}.{cls.__name__}", "construction")


def _instance_member(self: Any, name: str) -> Any:
    return _member(Stub(""), f"{type(self).__module__}.{type(self).__name__}()", name)


class StubType(ABCMeta):
    """The class of fabricated classes. ABCMeta, so that upstream may derive from one and from an ABC at once."""

    def __getattr__(cls, name: str) -> Any:
        """Fabricate what is named."""
        return _member(cls, f"{cls.__module__}.{cls.__name__}", name)


def _schema(cls: type, source: Any, handler: Any) -> Any:
    """What a pydantic model holds for a field of a fabricated class: whether a value fits is refused."""
    del source, handler
    from pydantic_core import core_schema  # only pydantic asks

    def fits(value: Any) -> Any:
        del value
        raise StubDecided(f"{cls.__module__}.{cls.__name__}", "validation by pydantic")

    return core_schema.no_info_plain_validator_function(fits)


def fabricate(path: str, name: str) -> StubType:
    """A class to subclass, annotate and ask `isinstance` of: nothing real is an instance, which is the truth here."""
    body = {
        "__module__": path,
        "__init__": _construct,
        "__getattr__": _instance_member,
        "__get_pydantic_core_schema__": classmethod(_schema),
    }
    return StubType(name, (), body)


class Stub:
    """A value of a fabricated package, known only by its dotted path."""

    def __init__(self, path: str) -> None:
        """Set what decorators and `functools.wraps` read; everything else is fabricated when named."""
        self.__dict__["_path"] = path
        self.__dict__["__name__"] = path.rpartition(".")[2]
        self.__dict__["__qualname__"] = self.__dict__["__name__"]
        self.__dict__["__doc__"] = None

    def __getattr__(self, name: str) -> Any:
        """Fabricate what is named."""
        return _member(self, self._path, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """While loading, decorate or compute; what comes back is a stub, never the decorated function.

        A kernel that `@triton.jit` made is the stub's work: to run its Python body instead would be a guess.
        """
        del kwargs
        if not loading():
            raise StubDecided(self._path, "a call")
        inner = getattr(args[0], "__name__", "") if len(args) == 1 and callable(args[0]) else ""
        return Stub(f"{self._path}({inner})")

    def __iter__(self) -> Iterator[Any]:
        """Empty while loading; refused at use."""
        _forced(self._path, "iteration")
        return iter(())

    def __hash__(self) -> int:
        """Refused at use: a set or a table would quietly answer that it does not hold the stub."""
        if not loading():
            raise StubDecided(self._path, "a lookup by value")
        return id(self)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Stand in a class statement as a fabricated base."""
        path, _, name = self._path.rpartition(".")
        return (fabricate(path, name),)

    def __repr__(self) -> str:
        """Say so, in logs and failures."""
        return f"<stub {self._path}>"


def _forcing(operation: str, answer: Any) -> Callable[..., Any]:
    def method(self: Stub, *_: Any) -> Any:
        _forced(self._path, operation)
        return answer

    return method


def _propagating(operation: str, *, ignored: bool) -> Callable[..., Any]:
    def method(self: Stub, *_: Any) -> Any:
        if not loading():
            raise StubDecided(self._path, f"the operation {operation!r}")
        return None if ignored else Stub(f"{self._path}.{operation}()")

    return method


for _name, _answer in _FORCED.items():
    setattr(Stub, f"__{_name}__", _forcing(_name, _answer))
for _name in _PROPAGATED:
    setattr(Stub, f"__{_name}__", _propagating(_name, ignored=False))
for _name in _IGNORED:
    setattr(Stub, f"__{_name}__", _propagating(_name, ignored=True))


class StubModule(ModuleType):
    """A fabricated module. It is there, as the real one would be; what it holds is made up when named."""

    def __getattr__(self, name: str) -> Any:
        """Fabricate what is named."""
        return _member(self, self.__name__, name)
