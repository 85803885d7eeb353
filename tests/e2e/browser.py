"""Headless Chromium behind chromedriver, spoken to as the WebDriver standard says: JSON over HTTP."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
ENTER, ESCAPE, TAB, SHIFT = "\ue007", "\ue00c", "\ue004", "\ue008"
# No sandbox: tests run as root in containers, and see no page but our own.
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1000,760"]


class Browser:
    def __init__(self):
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True)
        started = next((line for line in self.driver.stdout if "successfully on port" in line), "")
        assert started, "chromedriver did not start"
        self.url = "http://127.0.0.1:" + re.search(r"port (\d+)", started)[1] + "/session"
        options = {"binary": CHROMIUM, "args": ARGUMENTS}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.url += "/" + self.call("", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]

    def stop(self):
        try:
            self.call("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def call(self, path, body=None, method="POST"):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def devtools(self, command, **parameters):
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        self.call("/url", {"url": url})

    def run(self, script, *arguments):
        """What the script returns."""
        return self.call("/execute/sync", {"script": script, "args": arguments})

    def press(self, keys, held=""):
        """Keys on the keyboard, for whatever has the focus."""
        actions = [{"type": "keyDown", "value": key} for key in held]
        for key in keys:
            actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        actions += [{"type": "keyUp", "value": key} for key in held]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, selector):
        found = self.call("/element", {"using": "css selector", "value": selector})
        self.call(f"/element/{next(iter(found.values()))}/click")

    def wait(self, expression, timeout_s=60):
        """The value of the expression once it is true."""
        end = time.monotonic() + timeout_s
        while not (value := self.run(f"return {expression}")):
            if time.monotonic() > end:
                page = self.run("return document.body.innerText")
                raise AssertionError(f"not within {timeout_s} s: {expression}\n{page}")
            time.sleep(0.02)
        return value

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=False)

    def media(self, **features):
        self.devtools("Emulation.setEmulatedMedia",
                      features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def screenshot(self, path):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("/screenshot", method="GET")))

    def complaints(self):
        """Errors that the page wrote to the console."""
        return [entry["message"] for entry in self.call("/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]
