"""LLVM IR text to object code, and object code to callable addresses: the one user of llvmlite."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from rlx.errors import RlxError
from rlx.lowering.target import Target
from rlx.runtime.compilations import compiling
from rlx.runtime.object_file import undefined
from rlx.runtime.stack import elsewhere, has_room
from rlx.runtime.stages import stage


@cache
def _initialise(every: bool) -> None:
    """Register the host's back end, or every back end there is, with LLVM."""
    if every:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()


def _machine(target: Target, jit: bool, assembly: bool = False) -> llvm.TargetMachine:
    _initialise(every=assembly)
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_string,
        opt=3,
        reloc="static" if jit else "pic",
        codemodel="jitdefault" if jit else "default",
        jit=jit,
    )


def _parse(text: str, machine: llvm.TargetMachine, target: Target) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as e:
        raise RlxError(f"LLVM rejected the generated code for {target.name}: {e}") from None
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    return module


def compile_object(text: str, target: Target, what: str = "a module") -> bytes:
    """
    Compile LLVM IR text, which is of `what`, to an object file for `target`.

    Raises RlxError inside of `rlx.no_compile()`, and for text that LLVM rejects.
    """
    with compiling(what):
        with stage("reading LLVM IR"):
            machine = _machine(target, jit=True)
            module = _parse(text, machine, target)
        with stage("LLVM"):
            if not has_room():
                return elsewhere(lambda: machine.emit_object(module))
            return machine.emit_object(module)


def assembly(text: str, target: Target) -> str:
    """
    Return the assembly of LLVM IR text for `target`, which may be another machine's.

    It is not counted as a compilation, as nothing of it runs.
    """
    machine = _machine(target, jit=False, assembly=True)
    return machine.emit_assembly(_parse(text, machine, target))


class Engine:
    """
    Executable code from one object file.

    Raises RlxError where it calls what this process doesn't have: LLVM would take that for a
    function at address 0.
    """

    def __init__(self, data: bytes):
        _initialise(every=False)
        machine = _machine(Target.host(), jit=True)
        empty = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        # Now LLVM knows what this process has.
        lacking = [name for name in undefined(data) if llvm.address_of_symbol(name) is None]
        if lacking:
            raise RlxError(
                f"compiled code: it calls {', '.join(lacking)}, which this process does not have: "
                "it was compiled for another system, or rlx has a defect"
            )
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of an exported function."""
        address = self._engine.get_function_address(name)
        if not address:
            raise RlxError(f"the compiled program has no function '{name}'")
        return address
