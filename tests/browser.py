"""Chromium without a window, told what to do through two pipes (the DevTools protocol)."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page."""

    def __init__(self, told: Any, said: Any) -> None:
        self._told, self._said, self._number = told, said, 0
        self._session: dict[str, str] = {}
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params, **self._session}
        self._told.write(json.dumps(asked).encode() + b"\0")
        while True:
            message = bytearray()
            while (byte := self._said.read(1)) != b"\0":
                assert byte, "the browser is gone"
                message += byte
            found = json.loads(message)
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])

    def open(
        self, url: str, *, width: int = 1280, height: int = 800, is_dark: bool = False
    ) -> None:
        theme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 20.0) -> None:
        until = time.monotonic() + timeout_s
        while not self.value(expression):
            assert time.monotonic() < until, f"{expression} did not become true"
            time.sleep(0.02)

    def picture(self) -> bytes:
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yields a browser that ends with the block."""
    assert CHROMIUM is not None
    (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe",
    ]  # fmt: skip
    # The browser reads from file 3 and writes to file 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", *command]
    process = subprocess.Popen(
        shell, pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(its_in)
    os.close(its_out)
    with os.fdopen(our_out, "wb", buffering=0) as told, os.fdopen(our_in, "rb") as said:
        try:
            yield Browser(told, said)
        finally:
            process.terminate()
            process.wait(20.0)
