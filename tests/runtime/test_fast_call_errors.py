"""Errors in the guards of fast calls: those of other kinds of arguments fail the guard, all others
are the caller's."""

from __future__ import annotations

import threading

import pytest

import numus as nm
from numus.dispatch.node_ops import new_bytecode
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.on_cpu("the VM is that of the host"),
]

FAILED = object()


class Holder:
    __slots__ = ("held",)

    def __init__(self, held=None):
        self.held = held


class Raises:
    """Whatever asks it gets this error."""

    def __init__(self, error):
        self.error = error

    def __eq__(self, other):
        raise self.error

    def __len__(self):
        raise self.error

    def __hash__(self):
        return hash("key")

    @property
    def held(self):
        raise self.error


def guarded(write, arity=1):
    """A fast call that returns its last argument if the guards hold."""
    b = new_bytecode(nm.device("cpu").runtime)
    arguments = [b.load_arg(i) for i in range(arity)]
    write(b, arguments[0])
    lock = threading.RLock()
    call = b.function(arity, arguments[-1], FAILED, lock)

    def called(*given):
        try:
            return call(*given)
        finally:  # it is released, whatever happens
            assert not lock._is_owned()

    return called


ERRORS = [MemoryError(), KeyboardInterrupt(), ValueError("mine"), RecursionError(), TypeError("it")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_of_comparisons_are_raised(error):
    call = guarded(lambda b, x: b.slot_eq(x, Holder, "held", (3, 4)))
    bad = Holder((3, Raises(error)))
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            call(bad)
        assert raised.value is error
        good = Holder((3, 4))
        assert call(good) is good
        assert call(Holder((3, 5))) is FAILED


@pytest.mark.parametrize("error", ERRORS[:4], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("guard", ["len", "attribute", "dict"])
def test_other_errors_are_raised(guard, error):
    bad = Raises(error)
    if guard == "len":
        call, good = guarded(lambda b, x: b.len_eq(x, 2)), "ab"
    elif guard == "dict":
        call, good = guarded(lambda b, x: b.dict_is(x, "key", None, True)), {"key": None}
        bad = {bad: 1}  # collides with the key
    else:
        call, good = guarded(lambda b, x: b.get_attr(bad, "held")), None
    with pytest.raises(type(error)) as raised:
        call(bad)
    assert raised.value is error
    if good is not None:
        assert call(good) is good


def test_arguments_of_other_kinds_fail_the_guard():
    slot = guarded(lambda b, x: b.get_member(x, Holder, "held"))
    unset = object.__new__(Holder)
    assert slot(3) is FAILED
    assert slot(unset) is FAILED
    assert slot(Holder()) is not FAILED
    assert guarded(lambda b, x: b.load_item(x, 2))((1, 2)) is FAILED
    assert guarded(lambda b, x: b.len_eq(x, 2))(7) is FAILED
    assert guarded(lambda b, x: b.get_attr(7, "no_such_name"))(7) is FAILED
    assert guarded(lambda b, x: b.load_float_arg(0))(10**400) is FAILED
    assert guarded(lambda b, x: b.dict_is(x, "key", 1, False))({}) is FAILED


def test_bits_of_no_number():
    """-1 is also what an error returns."""
    call = guarded(lambda b, x: b.slot_bits_eq(x, Holder, "held", -1.0))
    assert call(Holder("no number")) is FAILED
    assert call(Holder(-1.0)) is not FAILED
    assert call(Holder(-2.0)) is FAILED
