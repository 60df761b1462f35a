"""A headless Chromium that a test looks through, by its DevTools protocol."""

import base64
import io
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request

import imageio.v3 as imageio

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--window-size=1000,640",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


def found():
    """Where it is installed, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One window; a context manager.

    Attributes:
        requests: every address that the page has asked for.
    """

    def __enter__(self):
        from websockets.sync.client import connect

        self.requests = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for line in self._process.stderr:
            if "DevTools listening on" in line:
                port = line.rsplit(":", 1)[1].split("/")[0]
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as pages:
            address = next(page for page in json.load(pages) if page["type"] == "page")["webSocketDebuggerUrl"]
        self._socket = connect(address, max_size=None)
        self._number = 0
        self.call("Network.enable")
        return self

    def __exit__(self, *error):
        self._socket.close()
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()

    def call(self, method, **params):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"][:60])
            if message.get("method") == "Network.webSocketCreated":
                self.requests.append(message["params"]["url"])
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, address):
        self.call("Page.navigate", url=address)
        ready = f"document.readyState == 'complete' && location.href.startsWith({address!r})"
        self.until(lambda: self.evaluate(ready), f"{address} does not open")

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script)["result"].get("value")

    def picture(self):
        """What the window shows, (height, width, 3) uint8."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return imageio.imread(io.BytesIO(data))[..., :3]

    def click(self, label):
        """Press the button with this text."""
        script = f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() == {label!r})"
        self.until(lambda: self.evaluate(f"!!{script}"), f"no button {label!r}")
        self.evaluate(f"{script}.click()")

    def text(self):
        return self.evaluate("document.body.innerText") or ""

    @staticmethod
    def until(condition, what, seconds=180):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, what
            time.sleep(0.1)
        return found
