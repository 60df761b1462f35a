"""What a kernel must not do is reported, with the instruction, the thread and the address."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.machine import Program
from tests.ptx.memory import Fault, Memory
from tests.ptx.snippet import run, text


def fault_of(body: str, *, rows: int = 32, out: np.ndarray | None = None, **options) -> Fault:
    with pytest.raises(Fault) as caught:
        run(body, np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64) if out is None else out, **options)
    return caught.value


def test_out_of_bounds():
    fault = fault_of("ld.global.u64 %d3, [%d1+8];")
    assert fault.kind == "out of bounds"
    assert "ld.global.u64 %d3, [%d1+8]" in str(fault) and "thread 31 of block 0" in str(fault)
    assert "byte 256 of 'in', which has 256" in str(fault)
    fault = fault_of("st.global.u64 [%d2+-8], %d1;")
    assert fault.kind == "out of bounds" and "thread 0" in str(fault) and "byte -8 of 'out'" in str(fault)
    # The last bytes of a wider access, or of a vector.
    assert fault_of("ld.global.v2.u64 {%d3, %d4}, [%d1];").kind in ("out of bounds", "misaligned")
    assert fault_of("mov.u64 %d3, 0; st.global.u64 [%d3], %d1;").kind == "out of bounds"
    assert fault_of("cvt.u32.u64 %r1, %d1; cvt.u64.u32 %d3, %r1; ld.u64 %d4, [%d3];").kind == "out of bounds"


def test_out_of_bounds_of_one_thread_in_a_branch():
    body = """
        setp.ne.u32 %p1, %r0, 13;
        @%p1 bra DONE;
        ld.global.u64 %d3, [%d1+4096];
    DONE:"""
    assert "thread 13 of block 0" in str(fault_of(body))


def test_misaligned():
    fault = fault_of("ld.global.u64 %d3, [%d1+4];", rows=1, out=np.zeros(2, np.uint64))
    assert fault.kind == "out of bounds"  # four bytes beyond
    fault = fault_of("setp.gt.u32 %p1, %r0, 0; @%p1 ret; ld.global.u64 %d3, [%d1+4];")
    assert fault.kind == "misaligned" and "not a multiple of 8" in str(fault)
    assert fault_of("setp.gt.u32 %p1, %r0, 0; @%p1 ret; ld.global.v2.u64 {%d3, %d4}, [%d1+8];").kind == "misaligned"


def test_uninitialised_memory():
    out = np.zeros(32, np.uint64)
    fault = fault_of("ld.global.u64 %d3, [%d2];", out=out, out_written=False)
    assert fault.kind == "uninitialised read" and "'out'" in str(fault)
    half = "st.global.u32 [%d2], %r0; ld.global.u64 %d3, [%d2];"
    assert fault_of(half, out=out, out_written=False).kind == "uninitialised read"
    run("st.global.u32 [%d2], %r0; ld.global.u32 %r3, [%d2];", np.zeros(32, np.uint64), out, out_written=False)
    local = ".local .align 8 .b8 depot[16];"
    fault = fault_of("mov.u64 %d50, depot; st.local.u32 [%d50], %r0; ld.local.u64 %d3, [%d50];", variables=local)
    assert fault.kind == "uninitialised read" and "local memory" in str(fault)
    # Written by the even threads only.
    body = """
        mov.u64 %d50, depot;
        and.b32 %r1, %r0, 1;
        setp.eq.s32 %p1, %r1, 1;
        @%p1 bra READ;
        st.local.u32 [%d50], %r0;
    READ:
        ld.local.u32 %r3, [%d50];"""
    assert "thread 1 of block 0" in str(fault_of(body, variables=local))
    shared = ".shared .align 8 .b8 pool[16];"
    assert fault_of("mov.u64 %d50, pool; ld.shared.u32 %r3, [%d50];", variables=shared).kind == "uninitialised read"


def test_vector_elements_that_nothing_uses_may_hold_nothing():
    local = ".local .align 8 .b8 depot[16];"
    body = "mov.u64 %d50, depot; st.local.u32 [%d50], %r0; ld.local.v2.u32 {%r3, %r4}, [%d50]; cvt.u64.u32 %d5, %r3;"
    out = np.zeros(32, np.uint64)
    run(f"{body} st.global.u64 [%d2], %d5;", np.zeros(32, np.uint64), out, variables=local)
    assert out.tolist() == list(range(32))
    assert fault_of(f"{body} add.s32 %r5, %r4, 1;", variables=local).kind == "uninitialised read"


def test_private_memory_has_bounds():
    local = ".local .align 8 .b8 depot[16];"
    assert fault_of("mov.u64 %d50, depot; st.local.u32 [%d50+16], %r0;", variables=local).kind == "out of bounds"
    fault = fault_of("mov.u64 %d50, depot; add.s64 %d50, %d50, %d30; st.local.u64 [%d50], %d1;", variables=local)
    assert fault.kind == "out of bounds" and "thread 2 of block 0" in str(fault)
    assert fault_of("mov.u64 %d50, depot; st.local.u64 [%d50+4], %d1;", variables=local).kind == "misaligned"
    shared = ".shared .align 8 .b8 pool[16];"
    body = "mov.u64 %d50, pool; add.s64 %d50, %d50, %d30; st.shared.u64 [%d50], %d1;"
    assert "of 16 bytes of shared memory" in str(fault_of(body, variables=shared))


def test_undefined_registers():
    fault = fault_of("add.s64 %d5, %d4, 1; st.global.u64 [%d2], %d5;")
    assert fault.kind == "undefined register" and "%d4 was never written" in str(fault)
    some = """
        setp.gt.u32 %p1, %r0, 20;
        @%p1 bra SKIP;
        mov.u64 %d4, 3;
    SKIP:
        """
    fault = fault_of(f"{some} st.global.u64 [%d2], %d4;")
    assert "thread 21 of block 0" in str(fault)
    # Handed on where it is not looked at, and where it is.
    run(
        f"{some} selp.b64 %d5, 7, %d4, %p1; st.global.u64 [%d2], %d5;", np.zeros(32, np.uint64), np.zeros(32, np.uint64)
    )
    fault = fault_of(f"{some} selp.b64 %d5, %d4, 7, %p1; mov.u64 %d6, %d5; st.global.u64 [%d2], %d6;")
    assert "%d6 was never written" in str(fault)
    assert fault_of("@%p7 bra END; mov.u64 %d5, 1; END:").kind == "undefined register"


def test_read_only_memory():
    assert fault_of("st.global.u64 [%d1], %d2;").kind == "read-only"


def test_races():
    fault = fault_of("st.global.u64 [%d20], %d1;")
    assert fault.kind == "race" and "two threads write this at once" in str(fault)
    # Thread k reads what thread k + 1 has written, and the other way round.
    out = np.zeros(33, np.uint64)
    body = "st.global.u64 [%d2], %d1; ld.global.u64 %d5, [%d2+8]; "
    assert "another thread wrote this" in str(fault_of(body, out=out))
    body = "ld.global.u64 %d5, [%d2+8]; st.global.u64 [%d2], %d5;"
    assert "another thread read this" in str(fault_of(body, out=out))
    assert fault_of("st.global.u64 [%d2], %d1; ld.global.nc.u64 %d5, [%d2];").kind == "stale read"


EXCHANGE = """
    mov.u64 %d50, pool;
    add.s64 %d51, %d50, %d30;
    st.shared.u64 [%d51], %d1;
    {barrier}
    mov.u32 %r4, 31;
    sub.s32 %r5, %r4, %r92;
    mul.wide.u32 %d7, %r5, 8;
    add.s64 %d8, %d50, %d7;
    ld.shared.u64 %d9, [%d8];
    {second}
    st.shared.u64 [%d51], %d9;"""


def test_a_missing_barrier():
    shared = ".shared .align 8 .b8 pool[256];"
    inputs, out = np.zeros(32, np.uint64), np.zeros(32, np.uint64)
    run(EXCHANGE.format(barrier="bar.sync 0;", second="bar.sync 0;"), inputs, out, variables=shared)
    fault = fault_of(EXCHANGE.format(barrier="", second="bar.sync 0;"), variables=shared)
    assert fault.kind == "race" and "another thread wrote this, and no barrier followed" in str(fault)
    fault = fault_of(EXCHANGE.format(barrier="bar.sync 0;", second=""), variables=shared)
    assert fault.kind == "race" and "another thread read this, no barrier followed" in str(fault)


def test_a_divergent_barrier():
    body = """
        setp.gt.u32 %p1, %r92, 15;
        @%p1 bra OTHER;
        bar.sync 0;
        bra DONE;
    OTHER:
        bar.sync 0;
    DONE:"""
    assert fault_of(body).kind == "divergent barrier"


def test_division_by_zero():
    fault = fault_of("ld.global.u64 %d3, [%d1]; div.u64 %d4, %d1, %d3;")
    assert fault.kind == "division by zero" and "thread 0" in str(fault)


def test_a_barrier_orders_one_block_and_not_two():
    """Blocks exchange values through global memory."""
    body = """
        ld.global.u64 %d3, [%d1];
        st.global.u64 [%d2], %d3;
        bar.sync 0;
        xor.b32 %r5, %r0, {flip};
        mul.wide.u32 %d4, %r5, 8;
        add.s64 %d4, %d4, %d20;
        ld.global.u64 %d5, [%d4];"""
    inputs, out = np.arange(64, dtype=np.uint64), np.zeros(64, np.uint64)
    run(body.format(flip=1), inputs, out, grid=2)
    memory = Memory()
    arguments = [memory.add("in", inputs, writable=False), memory.add("out", out)]
    with pytest.raises(Fault, match="race"):
        Program(text(body.format(flip=32))).launch(memory, 2, 32, arguments)
