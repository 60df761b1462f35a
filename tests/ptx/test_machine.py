"""The interpreter itself: control flow, memory spaces, vectors, atomics, special registers, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.machine import CHUNK, Program
from tests.ptx.memory import Memory
from tests.ptx.module import PtxError, immediate, parse
from tests.ptx.snippet import run, text


def words(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint64)


def test_threads_know_their_place():
    out = np.zeros(96, np.uint64)
    run("mad.lo.s32 %r5, %r90, 1000, %r92; cvt.u64.u32 %d5, %r5; st.global.u64 [%d2], %d5;", words(96), out, grid=3)
    assert out.tolist() == [1000 * block + thread for block in range(3) for thread in range(32)]
    body = "mov.u32 %r5, %laneid; mov.u32 %r6, %nctaid.x; mad.lo.s32 %r5, %r5, 100, %r6; cvt.u64.u32 %d5, %r5;"
    run(f"{body} st.global.u64 [%d2], %d5;", words(96), out, grid=2)
    assert out.tolist() == [100 * (thread % 32) + 2 for _ in range(2) for thread in range(48)]


def test_branches_come_together_again():
    body = """
        ld.global.u64 %d3, [%d1];
        and.b64 %d4, %d3, 1;
        setp.eq.s64 %p1, %d4, 0;
        @%p1 bra EVEN;
        mul.lo.s64 %d5, %d3, 10;
        bra DONE;
    EVEN:
        add.s64 %d5, %d3, 1000;
    DONE:
        add.s64 %d5, %d5, 1;
        st.global.u64 [%d2], %d5;"""
    out = np.zeros(64, np.uint64)
    statistics = run(body, words(64), out)
    assert out.tolist() == [k * 10 + 1 if k % 2 else k + 1001 for k in range(64)]
    assert statistics.executed["mul.lo.s64"] == 32
    assert statistics.executed["st.global.u64"] == 64
    # Two warps: everything once each, both sides of the branch included.
    static = sum(1 for item in Program(text(body)).kernel.body if not isinstance(item, str))
    assert statistics.issued == 2 * static
    assert statistics.per_thread() == static - 1.5  # half the threads skip two instructions, half skip one


def test_loops_of_different_lengths():
    body = """
        ld.global.u64 %d3, [%d1];
        mov.u64 %d4, 0;
        setp.eq.s64 %p2, %d3, 0;
        @%p2 bra DONE;
    AGAIN:
        add.s64 %d4, %d4, %d3;
        add.s64 %d3, %d3, -1;
        setp.ne.s64 %p1, %d3, 0;
        @%p1 bra AGAIN;
    DONE:
        st.global.u64 [%d2], %d4;"""
    lengths = np.random.default_rng(0).integers(0, 40, 100).astype(np.uint64)
    out = np.zeros(100, np.uint64)
    statistics = run(body, lengths, out)
    assert out.tolist() == [k * (k + 1) // 2 for k in lengths.tolist()]
    assert statistics.executed["add.s64"] == 2 * 100 + 2 * lengths.sum()


def test_threads_that_return_early_leave_the_others_alone():
    body = """
        setp.lt.u32 %p1, %r0, 10;
        @%p1 ret;
        ld.global.u64 %d3, [%d1];
        setp.gt.u32 %p2, %r0, 50;
        @!%p2 bra STORE;
        ret;
    STORE:
        st.global.u64 [%d2], %d3;"""
    out = np.full(64, 7, np.uint64)
    run(body, words(64), out)
    assert out.tolist() == [7] * 10 + list(range(10, 51)) + [7] * 13


def test_guards_on_any_instruction():
    body = """
        mov.u64 %d3, 5;
        setp.gt.u32 %p1, %r0, 3;
        @%p1 mov.u64 %d3, 6;
        @!%p1 add.s64 %d3, %d3, 100;
        st.global.u64 [%d2], %d3;"""
    out = np.zeros(8, np.uint64)
    run(body, words(8), out)
    assert out.tolist() == [105] * 4 + [6] * 4


def test_more_threads_than_run_together():
    n = 3 * CHUNK + 64
    out = np.zeros(n, np.uint64)
    statistics = run("ld.global.u64 %d3, [%d1]; st.global.u64 [%d2], %d3;", words(n), out, grid=n // 64)
    assert np.array_equal(out, words(n))
    assert statistics.threads == n == statistics.executed["ret"]


def test_vectors_and_packing():
    body = """
        ld.global.v2.u32 {%r1, %r2}, [%d1];
        mov.b64 %d3, {%r2, %r1};
        mov.b64 {%r3, %r4}, %d3;
        st.global.v2.u32 [%d2], {%r3, %r4};"""
    out = np.zeros(16, np.uint64)
    values = np.random.default_rng(0).integers(0, 2**63, 16).astype(np.uint64)
    run(body, values, out)
    assert out.tolist() == [(v >> 32) | (v & 0xFFFFFFFF) << 32 for v in values.tolist()]


def test_bytes_and_predicates():
    body = """
        ld.global.u8 %h1, [%d1];
        setp.eq.s16 %p1, %h1, 3;
        ld.global.s8 %r7, [%d1];
        setp.lt.and.s32 %p2|%p3, %r7, 0, %p1;
        not.pred %p4, %p1;
        or.pred %p5, %p4, %p2;
        selp.u16 %h2, 1, 0, %p5;
        st.global.u8 [%d2], %h2;
        selp.b32 %r1, 1, 0, %p3;
        cvt.u16.u32 %h3, %r1;
        st.global.u8 [%d2+1], %h3;"""
    values = np.array([0, 3, 255, 259], np.uint64)
    out = np.zeros(4, np.uint64)
    run(body, values, out)
    assert out.tolist() == [1, 256, 1, 256]


def test_local_memory_is_each_thread_s_own():
    body = """
        mov.u64 %d50, depot;
        cvta.local.u64 %d51, %d50;
        ld.global.u64 %d3, [%d1];
        st.local.u64 [%d50+8], %d3;
        cvt.u32.u64 %r1, %d3;
        st.local.v2.u32 [%d50], {%r1, %r0};
        and.b64 %d6, %d3, 3;
        shl.b64 %d6, %d6, 2;
        add.s64 %d7, %d50, %d6;
        ld.local.u32 %r2, [%d7];
        ld.u64 %d4, [%d51+8];
        cvt.u64.u32 %d5, %r2;
        mad.lo.s64 %d5, %d4, 1000, %d5;
        st.global.u64 [%d2], %d5;"""
    out = np.zeros(40, np.uint64)
    run(body, words(40), out, variables=".local .align 8 .b8 depot[16];")
    assert out.tolist() == [1000 * k + [k, k, k, 0][k % 4] for k in range(40)]


def test_shared_memory_and_barriers():
    body = """
        shl.b32 %r2, %r92, 3;
        cvt.u64.u32 %d4, %r2;
        mov.u64 %d5, pool;
        add.s64 %d6, %d5, %d4;
        ld.global.u64 %d3, [%d1];
        st.shared.u64 [%d6], %d3;
        bar.sync 0;
        mov.u32 %r4, 31;
        sub.s32 %r5, %r4, %r92;
        mul.wide.u32 %d7, %r5, 8;
        add.s64 %d8, %d5, %d7;
        ld.shared.u64 %d9, [%d8];
        st.global.u64 [%d2], %d9;"""
    out = np.zeros(64, np.uint64)
    run(body, words(64), out, grid=2, variables=".shared .align 8 .b8 pool[256];")
    assert out.tolist() == [*range(31, -1, -1), *range(63, 31, -1)]


def test_atomics_add_up():
    body = """
        atom.global.add.u32 %r1, [%d20], 3;
        and.b32 %r2, %r0, 1;
        mul.wide.u32 %d3, %r2, 8;
        add.s64 %d3, %d3, %d20;
        ld.global.u64 %d4, [%d1];
        red.global.max.u64 [%d3+8], %d4;
        cvt.u64.u32 %d5, %r1;
        atom.global.cas.b64 %d6, [%d20+24], %d5, %d4;"""
    out = np.zeros(50, np.uint64)
    run(body, words(50), out)
    assert out[:3].tolist() == [150, 48, 49]
    assert out[3] == 0  # only thread 0 found 0 there, and put its own 0


def test_constant_tables():
    module = """.version 8.0
        .target sm_90
        .address_size 64
        .global .align 8 .b8 table[16] = {1, 0, 0, 0, 0, 0, 0, 0, 255, 1, 0, 0, 0, 0, 0, 0};
        .const .align 4 .f32 half = 0f3F000000;
        .visible .entry test(.param .u64 out) {
        .reg .b64 %d<9>; .reg .b32 %r<9>; .reg .f32 %f<9>;
        ld.param.u64 %d1, [out];
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %d2, %r1, 8;
        mov.u64 %d3, table;
        add.s64 %d4, %d3, %d2;
        ld.global.nc.u64 %d5, [%d4];
        add.s64 %d6, %d1, %d2;
        st.global.u64 [%d6], %d5;
        ld.const.f32 %f1, [half];
        st.global.f32 [%d1+16], %f1;
        ret; }"""
    out, memory = np.zeros(3, np.uint64), Memory()
    program = Program(module)
    with pytest.raises(Exception, match="two threads write this at once"):
        program.launch(memory, 1, 2, [memory.add("out", out)])
    assert program.launch(memory, 1, 1, [memory.add("again", out)]).threads == 1
    assert out[0] == 1 and out.view(np.float32)[4] == 0.5


def test_parameters_of_every_width():
    module = """.version 8.0
        .target sm_90
        .address_size 64
        .visible .entry test(.param .u64 out, .param .u32 a, .param .f32 b, .param .f64 c) {
        .reg .b64 %d<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %g<9>;
        ld.param.u64 %d1, [out];
        ld.param.u32 %r1, [a];
        ld.param.f32 %f1, [b];
        ld.param.f64 %g1, [c];
        st.global.u32 [%d1], %r1;
        st.global.f32 [%d1+4], %f1;
        st.global.f64 [%d1+8], %g1;
        exit; }"""
    out, memory = np.zeros(2, np.uint64), Memory()
    Program(module).launch(memory, 1, 1, [memory.add("out", out), -5, 0.1, 0.2])
    assert out.view(np.int32)[0] == -5 and out.view(np.float32)[1] == np.float32(0.1) and out.view(np.float64)[1] == 0.2
    with pytest.raises(PtxError, match="4 parameters, 1 arguments"):
        Program(module).launch(memory, 1, 1, [0])


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("frobnicate.u32 %r1, %r2;", "not known"),
        ("add.rz.f32 %f1, %f2, %f3;", "modifier .rz"),
        ("fma.rm.f32 %f1, %f2, %f3, %f4;", "only .rn"),
        ("add.s32 %r1, %f2, %d3;", "wrong width"),
        ("add.s32 %r1, %r2, %q3;", "not understood"),
        ("add.f32 %r1, %f2, %p3;", "wrong type"),
        ("bra NOWHERE;", "no label"),
        ("cvt.f32.u32 %f1, %r1, 3; { call x; }", "nested scopes"),
        ("ld.global.v3.f32 {%f1, %f2, %f3}, [%d1];", "modifiers"),
        ("cvt.rz.f32.f64 %f1, %g1;", "modifier .rz"),
    ],
)
def test_what_is_not_known_is_refused(body, complaint):
    with pytest.raises(PtxError, match=complaint):
        Program(text(body))


def test_approximations_are_reported():
    body = "ld.global.f32 %f1, [%d1]; rsqrt.approx.ftz.f32 %f2, %f1; st.global.f32 [%d2], %f2;"
    values, out = np.full(4, np.float32(4).view(np.uint32), np.uint64), np.zeros(4, np.uint64)
    statistics = run(body, values, out)
    assert [item.opcode for item in statistics.inexact] == ["rsqrt.approx.ftz.f32"]
    assert out.view(np.float32)[::2].tolist() == [0.5] * 4


def test_literals():
    assert immediate("0f3F800000") == 1.0 and immediate("0dBFF0000000000000") == -1.0
    assert immediate("-12") == -12 and immediate("0x10") == 16 and immediate("%r1") is None
    module = parse(".version 8.0\n.global .align 4 .u32 a[3] = {1, 2};\n.shared .align 16 .b8 s[64];")
    assert [(v.name, v.space, v.size, v.initial) for v in module.variables] == [
        ("a", "global", 12, b"\1\0\0\0\2\0\0\0"),
        ("s", "shared", 64, None),
    ]
