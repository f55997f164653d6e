"""Takes the pictures of the docs from a running relay. Its arguments are the address of the relay, the topic whose garbage is
shown, and the topic whose keys are. Run it with the Python that run.sh has in its cache:
python tests/browser/pictures.py http://127.0.0.1:7812 orders invoices

Send messages for some minutes before, so that there is a history. Quantize the pictures to 128 colors afterwards.
"""

import json
import sys
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

URL, GARBAGE, KEYS = sys.argv[1:]
IMAGES = Path(__file__).parents[2] / "shared/docs/operate/images"
WIDTH = 1200


def size(browser, height):
    """Sets the size of the page."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False})


def main():
    """Takes one picture of each page, without its footer."""
    options = Options()
    for argument in ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-dev-shm-usage", "hide-scrollbars"]:
        options.add_argument(f"--{argument}")
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    browser.get(URL + "/help")
    browser.add_cookie({"name": "lisa-choices", "value": "light-0-utc-on", "path": "/"})
    garbage = json.load(urllib.request.urlopen(f"{URL}/v1/topics/{GARBAGE}/messages?state=garbage&group=default&limit=1"))
    pages = {
        "overview": "/?history=3600",
        "forecast": "/forecast",
        "message": f"/topics/{GARBAGE}/messages/{garbage['messages'][0]['id']}",
        "garbage": f"/topics/{GARBAGE}/garbage?group=default",
        "send": f"/topics/{GARBAGE}/send",
        "keys": f"/topics/{KEYS}/keys?group=default",
    }
    for name, page in pages.items():
        size(browser, 400)
        browser.get(URL + page)
        last = "return document.querySelector('main').lastElementChild.getBoundingClientRect().bottom"
        size(browser, min(int(browser.execute_script(last)) + 16, 1300 if name == "overview" else 900))
        browser.save_screenshot(str(IMAGES / f"dashboard-{name}.png"))
    browser.quit()


main()
