"""Takes the pictures of the docs from a running relay. Its arguments are the address of the relay, the topic whose garbage is
shown, the topic whose keys are, the topic whose history is, a schedule, and the address of a relay with tokens.toml in which tokens
were created. Run it with the Python that run.sh has in its cache:
python tests/browser/pictures.py http://127.0.0.1:7812 mails invoices orders nightly http://127.0.0.1:7813

Send messages for some minutes before, so that there is a history. Quantize the pictures to 128 colors afterwards.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

URL, GARBAGE, KEYS, HISTORY, SCHEDULE, TOKENS = sys.argv[1:]
IMAGES = Path(__file__).parents[2] / "shared/docs/operate/images"
WIDTH = 1200


def size(browser, height):
    """Sets the size of the page."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False})


def tokens(browser):
    """Takes the picture of the tokens."""
    size(browser, 400)
    browser.get(TOKENS + "/login?next=/tokens")
    browser.find_element(By.ID, "token").send_keys("admin", Keys.ENTER)
    while not browser.find_elements(By.ID, "tokens"):
        time.sleep(0.1)
    last = "return document.querySelector('main').lastElementChild.getBoundingClientRect().bottom"
    size(browser, int(browser.execute_script(last)) + 16)
    browser.save_screenshot(str(IMAGES / "dashboard-tokens.png"))


def main():
    """Takes one picture of each page, without its footer, and one of the charts of a topic with the values at the pointer."""
    options = Options()
    for argument in ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-dev-shm-usage", "hide-scrollbars"]:
        options.add_argument(f"--{argument}")
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    browser.get(URL + "/help")
    browser.add_cookie({"name": "lisa-choices", "value": "light-0-utc-on", "path": "/"})
    while not browser.find_elements(By.ID, "totals") or browser.find_elements(By.CSS_SELECTOR, "#totals [title^=Known]"):
        time.sleep(1)
        browser.get(URL + "/")
    garbage = json.load(urllib.request.urlopen(f"{URL}/v1/topics/{GARBAGE}/messages?state=garbage&group=default&limit=1"))
    pages = {
        "overview": "/?history=3600",
        "forecast": "/forecast",
        "message": f"/topics/{GARBAGE}/messages/{garbage['messages'][0]['id']}",
        "garbage": f"/topics/{GARBAGE}/garbage?group=default",
        "send": f"/topics/{GARBAGE}/send",
        "keys": f"/topics/{KEYS}/keys?group=default",
        "schedule": f"/schedules/{SCHEDULE}",
    }
    for name, page in pages.items():
        size(browser, 400)
        browser.get(URL + page)
        last = "return document.querySelector('main').lastElementChild.getBoundingClientRect().bottom"
        size(browser, min(int(browser.execute_script(last)) + 16, 1300 if name == "overview" else 900))
        browser.save_screenshot(str(IMAGES / f"dashboard-{name}.png"))
    size(browser, 1300)
    browser.get(f"{URL}/topics/{HISTORY}?history=3600")
    charts = browser.find_element(By.CSS_SELECTOR, "figure.chart")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", charts)
    plot = charts.find_elements(By.CSS_SELECTOR, ".plot")[0]
    ActionChains(browser).move_to_element_with_offset(plot, int(plot.size["width"] * 0.1), 0).perform()
    charts.screenshot(str(IMAGES / "dashboard-history.png"))
    tokens(browser)
    browser.quit()


main()
