"""Small vectors, rotations and spatial algebra over scalars (traced values, numpy arrays or floats).

A vector is a list of 3 scalars, a quaternion of 4 (w, x, y, z), a matrix a row-major list of 9, a spatial vector of 6
(rotation first). Inputs may be tuples; outputs are new lists. Constants among the entries fold when tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from gpuenvs import trace as T

Scalar: TypeAlias = Any
Vec: TypeAlias = Sequence[Any]

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
MINVAL = 1e-15
"""MuJoCo's smallest divisor (mjMINVAL)."""


def add(a: Vec, b: Vec) -> list[Scalar]:
    return [x + y for x, y in zip(a, b)]


def sub(a: Vec, b: Vec) -> list[Scalar]:
    return [x - y for x, y in zip(a, b)]


def neg(a: Vec) -> list[Scalar]:
    return [-x for x in a]


def scale(a: Vec, s: Scalar) -> list[Scalar]:
    return [x * s for x in a]


def add_scaled(a: Vec, b: Vec, s: Scalar) -> list[Scalar]:
    """a + s b."""
    return [x + y * s for x, y in zip(a, b)]


def dot(a: Vec, b: Vec) -> Scalar:
    out: Scalar = 0.0
    for x, y in zip(a, b):
        out = out + x * y
    return out


def cross(a: Vec, b: Vec) -> list[Scalar]:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def norm(a: Vec) -> Scalar:
    return T.sqrt(dot(a, a))


def column(mat: Vec, k: int) -> list[Scalar]:
    return [mat[k], mat[3 + k], mat[6 + k]]


def mat_vec(mat: Vec, v: Vec) -> list[Scalar]:
    """mat v, (3,)."""
    return [dot(mat[0:3], v), dot(mat[3:6], v), dot(mat[6:9], v)]


def mat_t_vec(mat: Vec, v: Vec) -> list[Scalar]:
    """mat^T v, (3,)."""
    return [dot(column(mat, k), v) for k in range(3)]


def mat_mat(a: Vec, b: Vec) -> list[Scalar]:
    """a b, row-major (9,). `a` itself if `b` is the identity, and the other way round."""
    if _known(b) and tuple(b) == IDENTITY:
        return list(a)
    if _known(a) and tuple(a) == IDENTITY:
        return list(b)
    return [dot(a[3 * i : 3 * i + 3], column(b, k)) for i in range(3) for k in range(3)]


def _known(mat: Vec) -> bool:
    return all(isinstance(x, int | float) for x in mat)


def quat_mul(a: Vec, b: Vec) -> list[Scalar]:
    """Rotation b, then a."""
    return [
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    ]


def quat_normalize(q: Vec) -> list[Scalar]:
    """q of length 1; the identity if q is all but zero."""
    length = norm(q)
    tiny = length < MINVAL
    inverse = 1.0 / T.where(tiny, 1.0, length)
    return [T.where(tiny, 1.0 if k == 0 else 0.0, q[k] * inverse) for k in range(4)]


def quat_to_mat(q: Vec) -> list[Scalar]:
    """Rotation matrix of a unit quaternion; exact zeros and ones of a constant one stay exact."""
    w, x, y, z = q
    x2, y2, z2 = x + x, y + y, z + z
    xx, yy, zz = x * x2, y * y2, z * z2
    xy, xz, yz = x * y2, x * z2, y * z2
    wx, wy, wz = w * x2, w * y2, w * z2
    mat = [1.0 - (yy + zz), xy - wz, xz + wy, xy + wz, 1.0 - (xx + zz), yz - wx, xz - wy, yz + wx, 1.0 - (xx + yy)]
    return [snap(m) for m in mat] if _known(mat) else mat


def snap(x: float, residue: float = 1e-14) -> float:
    """A constant without rounding residue around 0, 1 and -1, so that products with it fold."""
    for exact in (0.0, 1.0, -1.0):
        if abs(x - exact) < residue:
            return exact
    return x


def rotate_about(mat: Vec, axis: Vec, sine: Scalar, cosine: Scalar) -> list[Scalar]:
    """mat R, R the rotation by an angle about the constant unit vector `axis`, given the angle's sine and cosine.

    About a coordinate axis only two columns of `mat` change; otherwise R is Rodrigues' formula.
    """
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        if abs(axis[k]) == 1.0 and axis[i] == 0.0 and axis[j] == 0.0:
            s = sine * axis[k]
            out = list(mat)
            for row in range(0, 9, 3):
                u, v = mat[row + i], mat[row + j]
                out[row + i] = u * cosine + v * s
                out[row + j] = v * cosine - u * s
            return out
    x, y, z = axis
    versine = 1.0 - cosine
    xy, xz, yz = versine * (x * y), versine * (x * z), versine * (y * z)
    sx, sy, sz = sine * x, sine * y, sine * z
    rotation = [
        cosine + versine * (x * x), xy - sz, xz + sy,
        xy + sz, cosine + versine * (y * y), yz - sx,
        xz - sy, yz + sx, cosine + versine * (z * z),
    ]  # fmt: skip
    return mat_mat(mat, rotation)


def cross_motion(vel: Vec, v: Vec) -> list[Scalar]:
    """Rate of change of the motion vector v (6,) carried along with the spatial velocity vel (6,)."""
    return cross(vel[0:3], v[0:3]) + add(cross(vel[0:3], v[3:6]), cross(vel[3:6], v[0:3]))


def cross_force(vel: Vec, f: Vec) -> list[Scalar]:
    """Rate of change of the force vector f (6,) carried along with the spatial velocity vel (6,)."""
    return add(cross(vel[0:3], f[0:3]), cross(vel[3:6], f[3:6])) + cross(vel[0:3], f[3:6])


def inertia_vec(inertia: Vec, v: Vec) -> list[Scalar]:
    """Spatial inertia (10,: xx, yy, zz, xy, xz, yz of the rotational part, mass x offset, mass) times a motion (6,)."""
    xx, yy, zz, xy, xz, yz, mx, my, mz, mass = inertia
    moment, w, u = (mx, my, mz), v[0:3], v[3:6]
    rotation = [
        xx * w[0] + xy * w[1] + xz * w[2],
        xy * w[0] + yy * w[1] + yz * w[2],
        xz * w[0] + yz * w[1] + zz * w[2],
    ]
    return add(rotation, cross(moment, u)) + sub(scale(u, mass), cross(moment, w))
