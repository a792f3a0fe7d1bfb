"""A headless Chromium, driven through its DevTools protocol over a pair of pipes: nothing but the
browser is needed.
"""

import base64
import itertools
import json
import os
import subprocess
import tempfile
from pathlib import Path


class Browser:
    """One page. `problems` gathers what went wrong in it: messages of the console, exceptions, and
    requests to anything but its own file.
    """

    def __init__(self, program="chromium", width=1280, height=900):
        self.problems = []
        self._numbers = itertools.count(1)
        self._buffer = b""
        # Chromium's children outlive it for a moment, and write into the profile until they end.
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def become_3_and_4():
            low, high = (
                os.dup(to_read),
                os.dup(to_write),
            )  # out of the way, should they be 3 or 4 themselves
            os.dup2(low, 3)
            os.dup2(high, 4)

        arguments = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--window-size={width},{height}",
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            arguments, preexec_fn=become_3_and_4, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._session = None
        target = next(
            each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"
        )
        self._session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.terminate()
        self._process.wait()
        self._profile.cleanup()

    def call(self, method, **parameters):
        """Call a method of the protocol and wait for its result; events that come before it are
        looked at.
        """
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._look_at(answer.get("method"), answer.get("params", {}))

    def _receive(self):
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _look_at(self, event, details):
        if event == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.problems.append(thrown.get("exception", {}).get("description", thrown["text"]))
        elif event == "Runtime.consoleAPICalled" and details["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.problems.append(
                " ".join(
                    str(each.get("value", each.get("description"))) for each in details["args"]
                )
            )
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not details["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.problems.append(f"a request to {details['request']['url']}")

    def size(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme):
        """The system's colour scheme: "light" or "dark"."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def open(self, path):
        self.call("Page.navigate", url=Path(path).resolve().as_uri())

    def evaluate(self, expression):
        """The value of an expression of JavaScript; if it is a promise, what it comes to."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(
                f"{expression}:"
                f" {result['exceptionDetails'].get('exception', {}).get('description')}"
            )
        return result["result"].get("value")

    def wait_for(self, condition):
        """Wait until an expression is true; after two minutes it is given up."""
        self.evaluate(f"""new Promise((done, fail) => {{
            const end = Date.now() + 120000;
            const look = () => ({condition}) ? done() : Date.now() > end ? fail(Error("never true")) : setTimeout(look, 20);
            look();
        }})""")

    def point(self, x, y, click=False):
        """Move the mouse to a place of the window, and click there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point_at(self, selector, right=0.5, down=0.5, click=False):
        """Scroll to an element and point at a place in it, as a share of its width and height;
        where it is broken into lines, in its widest part.
        """
        self.evaluate(
            f"(found = document.querySelector({json.dumps(selector)})).scrollIntoView({{block:"
            " 'center'})"
        )
        self.evaluate("(box = [...found.getClientRects()].sort((a, b) => b.width - a.width)[0], 0)")
        x, y = self.evaluate(f"[box.x + box.width * {right}, box.y + box.height * {down}]")
        self.point(x, y, click)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path, whole=False):
        """Save what is to be seen, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)[
            "data"
        ]
        Path(path).write_bytes(base64.b64decode(data))
