"""The structure of a pickle, read without running its code.

A pickle is a program that may call any function. This interpreter calls no function and imports nothing: a
name that the pickle would import becomes a `Global`, and an object that it would create becomes an `Opaque`
with its class, arguments and state. Numbers, texts, bytes, tuples and lists are themselves. Dictionaries are
lists of pairs (`Pairs`), so that no key needs to be hashed.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import Unsupported
from .files import reading

__all__ = ["Global", "Opaque", "Pairs", "Persistent", "load"]

# Bytes of a pickle. PyTorch's need about 200 for each tensor, whose data is elsewhere.
_LONGEST = 1 << 28
_MOST_STEPS = 50_000_000


@dataclass(frozen=True)
class Global:
    """A class or function that the pickle names. It is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Persistent:
    """A reference to an object outside of the pickle, by its persistent ID."""

    identity: Any


@dataclass(eq=False)
class Opaque:
    """An object that the pickle would create: by `maker(*args)`, then with `state`, `items` and `pairs` added
    to it."""

    maker: Any
    args: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: Pairs = field(default_factory=lambda: Pairs())

    def __repr__(self) -> str:  # short, because the object may contain itself
        return f"Opaque({self.maker})"

    def member(self, name: str) -> Any:
        """The attribute `name` from its state; None if there is none."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, __slots__)
            state = state[0] if isinstance(state[0], Pairs) else state[1]
        return state.find(name) if isinstance(state, Pairs) else None


class Pairs(list[tuple[Any, Any]]):
    """A dictionary as a list of its (key, value) pairs in order."""

    def find(self, key: str) -> Any:
        """The last value of a key that is a text; None if there is none."""
        return next((v for k, v in reversed(self) if isinstance(k, str) and k == key), None)

    def last(self) -> Iterator[tuple[Any, Any]]:
        """Its pairs.

        If a text or integer is a key several times: its last value, in the place of the first, as in a dict.
        """
        plain = {k: v for k, v in self if isinstance(k, (str, int))}
        seen: set[Any] = set()
        for key, value in self:
            if isinstance(key, (str, int)):
                if key in seen:
                    continue
                seen.add(key)
                value = plain[key]
            yield key, value


_MARK = object()


def load(data: bytes, where: str, what: str = "pickle") -> Any:
    """The value of the pickle at the start of `data`. Raises DamagedFile or Unsupported only.

    where: the file, for messages. what: the part of the file that the pickle is.
    """
    if len(data) > _LONGEST:
        raise Unsupported(f"{what}: {len(data)} bytes, more than {_LONGEST}", where=where)
    with reading(where, what):
        return _run(data)


def _run(data: bytes) -> Any:
    """Interprets a pickle.

    Raises ValueError, or an error of pickletools, if it is invalid or not supported.
    """
    machine = _Machine()
    # genops decodes every argument, and checks that its bytes exist.
    for steps, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
        if steps > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS} instructions")
        if opcode.name == "STOP":
            return machine.pop()
        if not any(do(opcode.name, argument) for do in (machine.values, machine.containers, machine.objects)):
            raise ValueError(f"the instruction {opcode.name} is not supported")
    raise ValueError("it does not end")


class _Machine:
    """The stack and the memo of a pickle.

    Each method for instructions returns whether the instruction is one of its group.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise ValueError("the stack is empty")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise ValueError("no mark on the stack")
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def values(self, name: str, argument: Any) -> bool:
        """Constants, arguments, the memo, and the stack itself."""
        stack, memo = self.stack, self.memo
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            pass
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = self.top()
        elif name == "MEMOIZE":
            memo[len(memo)] = self.top()
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            if not stack:
                raise ValueError("the stack is empty")
            stack.pop()
        elif name == "POP_MARK":
            self.pop_to_mark()
        elif name == "DUP":
            stack.append(self.top())
        else:
            return False
        return True

    def containers(self, name: str, argument: Any) -> bool:
        """New tuples, lists, sets and dictionaries, and what is added to them."""
        stack = self.stack
        if name in _NEW:
            stack.append(_NEW[name]())
        elif name == "TUPLE":
            stack.append(tuple(self.pop_to_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            values = [self.pop() for _ in range(int(name[5]))]
            stack.append(tuple(reversed(values)))
        elif name in ("LIST", "FROZENSET"):
            stack.append(self.pop_to_mark())
        elif name == "DICT":
            values = self.pop_to_mark()
            stack.append(Pairs())
            _put(stack[-1], values)
        elif name == "APPEND":
            value = self.pop()
            _extend(self.top(), [value])
        elif name in ("APPENDS", "ADDITEMS"):
            values = self.pop_to_mark()
            _extend(self.top(), values)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            _put(self.top(), [key, value])
        elif name == "SETITEMS":
            values = self.pop_to_mark()
            _put(self.top(), values)
        else:
            return False
        return True

    def objects(self, name: str, argument: Any) -> bool:
        """Names of classes, calls, states of objects, and persistent IDs."""
        stack, pop = self.stack, self.pop
        if name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            stack.append(Global(module, attribute))
        elif name == "STACK_GLOBAL":
            attribute, module = pop(), pop()
            if not isinstance(attribute, str) or not isinstance(module, str):
                raise ValueError("the name of a class is not a text")
            stack.append(Global(module, attribute))
        elif name in ("REDUCE", "NEWOBJ"):
            args, maker = pop(), pop()
            stack.append(_made(maker, args))
        elif name == "NEWOBJ_EX":
            keywords, args, maker = pop(), pop(), pop()
            stack.append(_made(maker, args))
            if isinstance(stack[-1], Opaque):
                stack[-1].pairs.extend(keywords if isinstance(keywords, Pairs) else ())
        elif name == "OBJ":
            maker, *args = self.pop_to_mark() or [None]
            stack.append(_made(maker, tuple(args)))
        elif name == "INST":
            module, _, attribute = argument.partition(" ")
            stack.append(_made(Global(module, attribute), tuple(self.pop_to_mark())))
        elif name == "BUILD":
            state = pop()
            target = self.top()
            if isinstance(target, Opaque):
                target.state = state
            # For dictionaries it sets attributes (an OrderedDict's _metadata), which are not data.
        elif name == "PERSID":
            stack.append(Persistent(argument))
        elif name == "BINPERSID":
            stack.append(Persistent(pop()))
        else:
            return False
        return True


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, Opaque):
        target.items.extend(values)
    elif type(target) is list:
        target.extend(values)
    else:
        raise ValueError(f"values added to a {type(target).__name__}")


def _put(target: Any, values: list[Any]) -> None:
    pairs = target.pairs if isinstance(target, Opaque) else target
    if not isinstance(pairs, Pairs) or len(values) % 2:
        raise ValueError(f"pairs set in a {type(target).__name__}")
    pairs.extend(zip(values[::2], values[1::2], strict=True))


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ARGUMENTS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES "
    "BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT BINFLOAT".split()
)
_NEW = {"EMPTY_LIST": list, "EMPTY_DICT": Pairs, "EMPTY_SET": list}


def _made(maker: Any, args: Any) -> Any:
    """The result of a call. OrderedDict and torch.Size become Pairs and tuple; all others become Opaque."""
    if not isinstance(args, tuple):
        raise ValueError("the arguments of a call are not a tuple")
    if isinstance(maker, Global):
        known = (maker.module, maker.name)
        if known == ("collections", "OrderedDict") and len(args) <= 1:
            result = Pairs()
            for entry in args[0] if args and isinstance(args[0], list) else ():
                if isinstance(entry, (tuple, list)) and len(entry) == 2:
                    result.append((entry[0], entry[1]))
            return result
        if known == ("torch", "Size") and len(args) == 1 and isinstance(args[0], (tuple, list)):
            return tuple(args[0])
    return Opaque(maker, args)
