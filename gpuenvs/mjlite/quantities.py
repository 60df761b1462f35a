"""Named access to what MuJoCo knows at one moment: `after.qpos["rootz"]`, `now.xpos["torso"][2]`, `after.cfrc_ext[1:]`.

Names and conventions are MuJoCo's (documentation, API reference, mjData). Rows go by the name of their joint, body, geom,
site or actuator in the MJCF, or by number.

| quantity | row | numbers |
|---|---|---|
| `qpos` | joint | 1 (slide m, hinge rad), 4 (ball quaternion), 7 (free: position, quaternion) |
| `qvel`, `qacc`, forces `qfrc_actuator`, `_bias`, `_constraint`, `_passive`, `_smooth` | joint | 1, 3 (ball), 6 (free) |
| `xpos`, `xipos`, `subtree_com` | body | 3: frame, centre of mass, centre of mass of it and all below it, m |
| `xquat`, `xmat`, `ximat` | body | 4, 9, 9: orientation |
| `cinert`, `cvel`, `cfrc_ext` | body | 10, 6, 6: inertia, velocity, contact wrench about the tree's centre of mass |
| `geom_xpos`, `geom_xmat` | geom | 3, 9 |
| `site_xpos`, `site_xmat` | site | 3, 9 |
| `xanchor`, `xaxis` | joint | 3 |

`qpos` and `qvel` are those of the moment itself. Everything else is what MuJoCo's last forward pass left: after a control
step it lags the state by part of a simulation step, as it does for a reader of mjData.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpuenvs.errors import SpecError, near_names

# Quantity -> (what a row is, numbers a row has). Rows of kind "qpos" and "dof" are single numbers, grouped by joint.
FIELDS: dict[str, tuple[str, int]] = {
    "qpos": ("qpos", 1),
    "qvel": ("dof", 1),
    **{f"qfrc_{name}": ("dof", 1) for name in ("actuator", "bias", "constraint", "passive", "smooth")},
    "qacc": ("dof", 1),
    **{name: ("body", 3) for name in ("xpos", "xipos", "subtree_com")},
    "xquat": ("body", 4),
    **{name: ("body", 9) for name in ("xmat", "ximat")},
    "cinert": ("body", 10),
    "cvel": ("body", 6),
    "cfrc_ext": ("body", 6),
    "geom_xpos": ("geom", 3),
    "geom_xmat": ("geom", 9),
    "site_xpos": ("site", 3),
    "site_xmat": ("site", 9),
    "xanchor": ("joint", 3),
    "xaxis": ("joint", 3),
}
_ORDER = {name: k for k, name in enumerate(FIELDS)}
_QPOS_SIZE = (7, 4, 1, 1)  # by mjtJoint: free, ball, slide, hinge
_DOF_SIZE = (6, 3, 1, 1)


class Key(NamedTuple):
    """One number: quantity, row, component (0 where a row is a single number)."""

    field: str
    row: int
    component: int


def sort_key(key: Key) -> tuple[int, int, int]:
    """Order of quantities as in `FIELDS`, then rows and components."""
    return _ORDER[key.field], key.row, key.component


class Names:
    """Which rows a name of the model stands for.

    Args:
        mj: a `mujoco.MjModel`.
        owner: what messages begin with, e.g. the environment's id.
    """

    def __init__(self, mj: Any, owner: str) -> None:
        self.owner = owner
        joints = [(mj.joint(k).name, int(mj.jnt_type[k])) for k in range(mj.njnt)]
        self._rows: dict[str, dict[str, range]] = {
            kind: {access(k).name: range(k, k + 1) for k in range(count) if access(k).name}
            for kind, access, count in (
                ("body", mj.body, mj.nbody),
                ("geom", mj.geom, mj.ngeom),
                ("site", mj.site, mj.nsite),
                ("joint", mj.joint, mj.njnt),
            )
        }
        for kind, address, sizes in (("qpos", mj.jnt_qposadr, _QPOS_SIZE), ("dof", mj.jnt_dofadr, _DOF_SIZE)):
            starts = [int(start) for start in address]
            spans = [range(start, start + sizes[type_]) for start, (_, type_) in zip(starts, joints)]
            self._rows[kind] = {name: span for (name, _), span in zip(joints, spans) if name}
        self.counts = {
            "body": mj.nbody,
            "geom": mj.ngeom,
            "site": mj.nsite,
            "joint": mj.njnt,
            "qpos": mj.nq,
            "dof": mj.nv,
        }
        self._labels = {kind: self._label(kind) for kind in self.counts}

    def _label(self, kind: str) -> list[str]:
        """A word for each row that can be part of an identifier: its name, or its number."""
        labels = [str(row) for row in range(self.counts[kind])]
        for name, rows in self._rows[kind].items():
            word = "".join(c if c.isalnum() else "_" for c in name)
            for k, row in enumerate(rows):
                labels[row] = f"{word}_{k}" if len(rows) > 1 else word
        twice = {label for label in labels if labels.count(label) > 1}
        return [f"{label}_{row}" if label in twice else label for row, label in enumerate(labels)]

    def label(self, key: Key) -> str:
        """The number's name as a state field, e.g. `qpos_rootz`, `xpos_torso_0`, `cfrc_ext_3_5`."""
        kind, size = FIELDS[key.field]
        label = f"{key.field}_{self._labels[kind][key.row]}"
        return label if size == 1 else f"{label}_{key.component}"

    def rows(self, field: str, name: str) -> range:
        """The rows that `name` stands for. Raises `SpecError` with near names if there is none."""
        kind = FIELDS[field][0]
        found = self._rows[kind].get(name)
        if found is None:
            what = "joint" if kind in ("qpos", "dof") else kind
            known = self._rows[kind]
            hint = near_names(name, known) or (f"; it has: {', '.join(known)}" if known else "; none of its is named")
            raise SpecError(f"{self.owner}: {field}[{name!r}]: the model has no {what} of this name{hint}")
        return found


class Row:
    """The numbers of one row, read when they are asked for: index, slice, iterate or unpack."""

    def __init__(self, read: Callable[[Key], Any], keys: list[Key]) -> None:
        self._read, self._keys = read, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return (self._read(key) for key in self._keys)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._read(key) for key in self._keys[index]]
        return self._read(self._keys[index])


class Rows:
    """All rows of one quantity; by name, number or slice. A row of one number is that number."""

    def __init__(self, names: Names, read: Callable[[Key], Any], field: str) -> None:
        self._names, self._read, self._field = names, read, field
        self._kind, self._size = FIELDS[field]

    def __len__(self) -> int:
        return self._names.counts[self._kind]

    def __iter__(self) -> Iterator[Any]:
        return (self._row(row) for row in range(len(self)))

    def __getitem__(self, index: str | int | slice) -> Any:
        if isinstance(index, str):
            rows = self._names.rows(self._field, index)
            if len(rows) == 1:
                return self._row(rows[0])
            return Row(self._read, [Key(self._field, row, 0) for row in rows])
        if isinstance(index, slice):
            return [self._row(row) for row in range(len(self))[index]]
        count = len(self)
        if not -count <= index < count:
            raise SpecError(f"{self._names.owner}: {self._field}[{index}]: the model has {count} of them")
        return self._row(index % count)

    def _row(self, row: int) -> Any:
        keys = [Key(self._field, row, component) for component in range(self._size)]
        return self._read(keys[0]) if self._size == 1 else Row(self._read, keys)


class Quantities:
    """What a task's functions get as `now`, `before` and `after`; see the module's table.

    Attributes:
        timestep: of one simulation step, s.
        dt: of one control step (frame_skip simulation steps), s.
        initial_qpos: the model's own qpos0.
    """

    def __init__(
        self, names: Names, read: Callable[[Key], Any], timestep: float, dt: float, qpos0: list[float]
    ) -> None:
        self._names, self._read = names, read
        self.timestep, self.dt, self.initial_qpos = timestep, dt, qpos0

    def __getattr__(self, field: str) -> Rows:
        if field.startswith("__"):
            raise AttributeError(field)
        if field not in FIELDS:
            raise SpecError(
                f"{self._names.owner}: no quantity is called {field!r}{near_names(field, FIELDS)}; "
                f"there are: {', '.join(FIELDS)}"
            )
        return Rows(self._names, self._read, field)
