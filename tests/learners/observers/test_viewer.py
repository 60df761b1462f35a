"""The page of `--watch`, seen through a headless Chromium: what is asserted is what its pixels show."""

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from learners.build import policy_for
from learners.observers.attached import VIEWER
from learners.observers.page import MOST_POINTS, Curve
from learners.observers.process import Observer, ObserverError
from learners.runs import RunDirectory
from tests.learners.observers import browser
from tests.learners.tiny import tiny_config

pytest.importorskip("viser", reason="the watch extra is not installed")
SCENE = np.s_[200:450, :660]  # of the window: what is drawn of the environment
PANEL = np.s_[:, 690:980]


def colored(picture, red, green, blue, tolerance=40):
    """How many pixels are near a colour."""
    distance = np.abs(picture.astype(int) - (red, green, blue)).max(-1)
    return int((distance < tolerance).sum())


def pole_of_cartpole(scene):
    """Gymnasium's colours of the pole and the cart."""
    return colored(scene, 202, 152, 101) > 100 and colored(scene, 0, 0, 0) > 100


def turquoise(scene):
    """The colour of the geoms in MuJoCo's inverted_pendulum.xml, whatever the light: (0, 0.7, 0.7)."""
    red, green, blue = scene.astype(int).transpose(2, 0, 1)
    return int(((green - red > 40) & (blue - red > 40)).sum()) > 100


@contextlib.contextmanager
def viewing(env_id, folder, port=18080):
    """A viewer of an untrained policy; yields it and the lines of the page that it serves."""
    config = tiny_config(env_id)
    run = RunDirectory(folder)
    run.write_config(config.to_dict())
    viewer = Observer("viewer", VIEWER, {"run": str(folder), "port": port}, print)
    try:
        (page,) = browser.Browser.until(viewer.results, "no page")
        browser.Browser.until(lambda: viewer.wants, "nothing asked for")
        viewer.offer(policy_for(config).state_dict(), version=7, step=1234)
        yield viewer, page
    finally:
        viewer.close()


def ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def still(window):
    """The scene once it does not change any more."""
    before = None
    for _ in range(100):
        now = window.picture()[SCENE]
        if before is not None and np.array_equal(before, now):
            return now
        before = now
        time.sleep(0.15)
    raise AssertionError("the scene goes on changing")


def press_the_buttons(window, drawn):
    window.click("Pause")
    paused = still(window)
    time.sleep(0.5)
    assert np.array_equal(window.picture()[SCENE], paused) and drawn(paused)
    window.click("Next seed")
    window.until(lambda: "seed 1," in window.text(), "still the first seed")
    window.until(lambda: not np.array_equal(window.picture()[SCENE], paused), "the same start")
    assert drawn(still(window))
    again = still(window)
    window.click("Go on")
    window.until(lambda: not np.array_equal(window.picture()[SCENE], again), "it stays where it is")


@pytest.mark.skipif(browser.found() is None, reason="there is no Chromium")
@pytest.mark.parametrize(("env_id", "drawn"), [("CartPole-v1", pole_of_cartpole), ("InvertedPendulum-v5", turquoise)])
def test_a_browser_sees_the_policy_act(tmp_path, env_id, drawn):
    with viewing(env_id, tmp_path) as (viewer, page), browser.Browser() as window:
        window.open(page["page"])
        window.until(lambda: "weights of step 1,234 (version 7)" in window.text(), "no weights")
        window.until(lambda: drawn(window.picture()[SCENE]), "nothing drawn")
        for step in (1000, 2000, 3000):
            viewer.tell("figures", {"step": step, "return": 0.001 * step, "sampling_hz": 5e3})
            time.sleep(0.3)
        window.until(lambda: colored(window.picture()[PANEL], 63, 81, 181) > 50, "no curve")
        assert "return of the latest episodes" in window.text() and "policy lag" not in window.text()
        first = window.picture()[SCENE]
        window.until(lambda: not np.array_equal(window.picture()[SCENE], first), "it does not move")
        if env_id == "CartPole-v1":  # once is enough
            press_the_buttons(window, drawn)
        asked = [address for address in window.requests if not address.startswith(("data:", "blob:"))]
        assert asked and all(f"//127.0.0.1:{page['port']}" in address for address in asked)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_serves_this_machine_only_and_rests_while_nobody_looks(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with viewing("CartPole-v1", tmp_path, port) as (viewer, page):
            assert page["port"] != port and page["page"] == f"http://127.0.0.1:{page['port']}"
            inodes = {os.readlink(file) for file in Path(f"/proc/{viewer.pid}/fd").iterdir() if file.exists()}
            listening = []
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                        listening.append(fields[1].split(":")[0])
            assert listening == ["0100007F"]
            before = None
            for _ in range(20):  # it may still be at what starting has left to do
                before, now = ticks(viewer.pid), None
                time.sleep(0.5)
                now = ticks(viewer.pid)
                if now - before <= 2:
                    break
            assert now - before <= 2
            assert not viewer.wants  # nobody looks, so it asks for nothing more


def test_an_error_in_it_is_raised(tmp_path):
    viewer = Observer("viewer", VIEWER, {"run": str(tmp_path / "none"), "port": 18090}, print)
    with contextlib.closing(viewer), pytest.raises(ObserverError, match="is not a run directory") as caught:
        browser.Browser.until(viewer.results, "no error")
    assert "read_config" in caught.value.traceback


def test_long_curves_are_thinned_out():
    curve = Curve()
    for step in range(10 * MOST_POINTS):
        assert curve.add(step, 2.0 * step)
        assert not curve.add(step, 1.0) and not curve.add(step + 1, float("nan"))
    steps, values = curve.data
    assert MOST_POINTS / 2 < len(steps) <= 2 * MOST_POINTS and (values == 2 * steps).all()
    assert steps[-1] == 10 * MOST_POINTS - 1 and (np.diff(steps) > 0).all()
