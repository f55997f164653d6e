"""Opens each page of the dashboard at an address in Chromium, and checks it: see run.sh."""

import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

URL = sys.argv[1]
SCHEDULES = f"http://127.0.0.1:{os.environ['SCHEDULES_PORT']}"
TOKENS = f"http://127.0.0.1:{os.environ['TOKENS_PORT']}"
# A host name that browsers do not trust as they trust localhost: pages have no clipboard interface.
FOREIGN = f"http://lisa.test:{os.environ['SCHEDULES_PORT']}"
IS_QUICK = "--quick" in sys.argv[2:]
AXE = Path(os.environ["AXE_FILE"]).read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Finds what is wider than its cell or its table.
CUT = """
const right = (element) => element.getBoundingClientRect().right;
return [...document.querySelectorAll(".table-box tbody :is(td, th, td *, th *)")]
  .filter((element) => right(element) > right(element.parentElement.closest("td, th, .table-box")) + 1).map((element) => element.outerHTML);
"""
# The values that a chart shows, those of the same step in its table, and what a screen reader says.
READING = """
const reading = document.querySelector(".reading:not([hidden])");
if (!reading) return null;
const row = document.querySelector(`.chart tr[data-step="${reading.querySelector("strong").textContent}"]`);
const texts = (all) => [...all].map((one) => one.textContent);
return [texts(reading.querySelectorAll("b")), texts(row.cells).slice(1), reading.closest(".chart").querySelector(".cursor").ariaValueText];
"""
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
PAGES = [
    "/", "/forecast", "/topics/orders", "/topics/orders/messages?state=waiting", "/topics/orders/messages/bad", "/garbage",
    "/topics/orders/messages/failed", "/topics/orders/garbage?group=default", "/topics/orders/garbage?error=HTTP", "/workers", "/system", "/schedules", "/help",
    "/topics/orders/groups/default/garbage/purge", "/topics/orders/messages/bad/cancel", "/find?q=nothing", "/topics/orders/send",
    "/topics/orders/keys", "/topics/orders/failures", "/topics/orders/doctor", "/topics/orders/doctor/repair",
    "/topics/orders/messages?state=garbage", "/schedules/nightly", "/schedules/paused", "/schedules/nightly/edit", "/schedules/nightly/remove",
    "/new-schedule", "/new-topic", SCHEDULES + "/schedules", SCHEDULES + "/schedules/winter", SCHEDULES + "/find?q=nothing",
]
# The pages that need a session, by the token with which it begins.
PAGES_OF = {
    "admin": ["/token", "/tokens", "/new-token", "/tokens/admin", "/tokens/shop", "/tokens/app", "/tokens/app/edit", "/tokens/app/remove", "/tokens/app/rotate/begin"],
    "shop": ["/", "/token", "/system", "/schedules", "/forecast", "/topics/shop-orders"],
}
QUICK_PAGES = ["/", "/topics/orders", "/topics/orders/messages/failed", "/topics/orders/garbage?group=default", "/topics/orders/send"]
PATIENCE = 60


def call(path, body, method="POST", **headers):
    """Calls the HTTP interface."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(URL + path, body, headers, method=method)
    return json.load(urllib.request.urlopen(request))


def wait_for_manager(url):
    """Waits until a manager is ready."""
    for left in reversed(range(PATIENCE * 5)):
        try:
            urllib.request.urlopen(url + "/readyz")
            break
        except OSError:
            if left == 0:
                raise
            time.sleep(0.2)


def fill():
    """Sends messages of all kinds."""
    topic = "/v1/topics/orders/messages"
    call(topic, HOSTILE.encode(), Lisa_Id="bad", Lisa_Delay="1h", x_note="<b>")
    call(topic, b"{}", Lisa_Id="failed")
    pulled = call("/v1/topics/orders/groups/default/pull", b'{"wait": "20s"}')["deliveries"]
    error = json.dumps({"error": f"HTTP 503 {HOSTILE}"}).encode()
    call(f"/v1/deliveries/{pulled[0]['token']}/reject", error)
    call(topic, b"{}", Lisa_Id="exhausted", Lisa_Max_Attempts="1")
    pulled = call("/v1/topics/orders/groups/default/pull", b'{"wait": "20s"}')["deliveries"]
    call(f"/v1/deliveries/{pulled[0]['token']}/retry", error)
    for _ in range(2):
        call(topic, b"x", Lisa_Key="<img src=x onerror=alert(1)>")
    # Schedules of each kind: with warnings and failing, paused, with long words, and damaged. One has a time soon, for the forecast.
    schedule = {"topic": "orders", "time_zone": "Europe/Berlin", "payload": HOSTILE, "headers": {"x-note": "<b>"}}
    rare, often = "0 30 2 31 * *", "0 0,15,30,45 * * * Mon,Tue,Wed,Thu,Fri,Sat,Sun"
    for name, cron in [("nightly", rare), ("paused", rare), ("reports_of_each_quarter_of_an_hour", often)]:
        call(f"/v1/schedules/{name}", json.dumps({**schedule, "cron": cron}).encode(), "PUT")
    call("/v1/schedules/paused/pause", b"")
    now = int(time.time() * 1000)
    redis("HSET", "lisa:v1:{registry}:schedule_faults", "nightly", f"3 {now} {now} topic full {HOSTILE}")
    redis("HSET", "lisa:v1:{registry}:schedule_definitions", "damaged", "{}")
    redis("ZADD", "lisa:v1:{registry}:schedule_names", 0, "damaged")


def open_browser(theme, width):
    """Opens a browser of this width, whose viewer has chosen a theme."""
    options = Options()
    resolve = "host-resolver-rules=MAP lisa.test 127.0.0.1"
    for argument in ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-dev-shm-usage", f"window-size={width},900", resolve]:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    is_phone = width < 500
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": is_phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(URL + "/help")
    browser.add_cookie({"name": "lisa-choices", "value": f"{theme}-1-local-on", "path": "/"})
    return browser


def logged(browser):
    """Returns what a browser has logged since, without its advice about forms for passwords: a token has no user name."""
    return [line for line in browser.get_log("browser") if line["source"] != "recommendation"]


def look(browser, page):
    """Returns what is wrong with a page."""
    browser.get(page if page.startswith("http") else URL + page)
    check = "axe.run({runOnly: %s}).then(found => JSON.stringify(found.violations.map(one => [one.id, one.nodes[0].html])))"
    expression = f"{AXE};{check % json.dumps(RULES)}"
    found = browser.execute_cdp_cmd("Runtime.evaluate", {"expression": expression, "awaitPromise": True})
    wrong = json.loads(found["result"]["value"])
    if browser.execute_script("const root = document.documentElement; return root.scrollWidth > root.clientWidth"):
        wrong.append("scrolls sideways")
    wrong += [f"cut: {html[:100]}" for html in browser.execute_script(CUT)]
    if browser.find_elements(By.CSS_SELECTOR, "main img"):
        wrong.append("text became an element")
    return wrong + [line["message"] for line in logged(browser)]


def refresh(browser):
    """Checks that a page shows what is new, and leaves the viewer's focus and text alone."""
    browser.get(URL + "/")
    find = browser.find_element(By.ID, "find")
    find.send_keys("half a wo")
    call("/v1/topics/fresh/messages", b"x", Lisa_Delay="1h")
    WebDriverWait(browser, PATIENCE).until(lambda _: browser.find_elements(By.ID, "topic-fresh"))
    assert browser.switch_to.active_element == find, "the focus moved"
    assert find.get_attribute("value") == "half a wo", "the text is gone"


def refresh_list(browser):
    """Checks that a list shows a new message, but not while a row of it is in use."""
    browser.get(URL + "/topics/fresh/messages?state=waiting")
    rows = lambda: browser.find_elements(By.CSS_SELECTOR, "#messages tbody a")
    assert len(rows()) == 1, "one message was sent"
    browser.execute_script("arguments[0].focus()", rows()[0])
    call("/v1/topics/fresh/messages", b"y", Lisa_Delay="2h")
    for _ in range(2):
        seen = browser.find_element(By.ID, "live-text").text
        waits(browser, lambda: browser.find_element(By.ID, "live-text").text != seen)
    assert len(rows()) == 1 and browser.switch_to.active_element == rows()[0], "a row moved that was in use"
    browser.execute_script("document.activeElement.blur()")
    waits(browser, lambda: len(rows()) == 2)


def waits(browser, look):
    """Waits until `look` returns something, and returns it."""
    wait = WebDriverWait(browser, PATIENCE, ignored_exceptions=[NoSuchElementException, StaleElementReferenceException])
    return wait.until(lambda _: look())


def redis(*words):
    """Sends a command to the Redis of the relay, and returns the first line of the reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["REDIS_SOCKET"])
        words = [str(word).encode() for word in words]
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        reply = connection.recv(65536).split(b"\r\n", 1)[0].decode()
        assert not reply.startswith("-"), reply
        return reply


def record():
    """Records a history of all topics: messages, failures, and a gap."""
    minute = 60_000
    now = int(time.time() * 1000) // minute * minute
    series = "lisa:v1:{registry}:series"
    redis("DEL", series)
    sent = 0
    for back in range(40, 0, -1):
        sent += 100 + back
        failed = max(0, 5 * (20 - back))
        if back not in (30, 31):
            # The number of topics, those that are missing, four counters, seven counts, and lateness by bucket.
            counts = [2, 1, 0, sent, 2 * sent, failed, failed // 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2 * sent]
            redis("XADD", series, f"{now - back * minute}-0", "s", " ".join(map(str, counts)))


def charts(theme):
    """Checks that the charts show their values at the pointer, for the keyboard, to screen readers and without the script."""
    browser = open_browser(theme, 1280)
    record()

    def drawn(kind):
        browser.get(URL + "/?history=3600")
        return browser.find_elements(By.CSS_SELECTOR, f".plot path.is-{kind}:not([d=''])")

    # All viewers see the same history for some seconds, so it may be that of the pages before.
    waits(browser, lambda: drawn("retried"))
    visible = lambda: [box for box in browser.find_elements(By.CSS_SELECTOR, ".reading") if box.is_displayed()]
    for page in ["/?history=3600", "/forecast"]:
        wrong = look(browser, page)
        assert not wrong, wrong
        waits(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".chart .plot"))
        for number, plot in enumerate(browser.find_elements(By.CSS_SELECTOR, ".chart .plot")):
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
            ActionChains(browser).move_to_element(plot).perform()
            values, cells, _ = waits(browser, lambda: browser.execute_script(READING))
            assert values == cells and len(values) > 1, f"{page} {number}: {values} {cells}"
        title = browser.find_element(By.TAG_NAME, "h1")
        browser.execute_script("window.scrollTo(0, 0)")
        ActionChains(browser).move_to_element(title).perform()
        waits(browser, lambda: not visible())
        cursor = browser.find_element(By.CSS_SELECTOR, ".chart .cursor")
        browser.execute_script("arguments[0].focus()", cursor)
        said = lambda: cursor.get_attribute("aria-valuetext")
        cursor.send_keys(Keys.HOME)
        first = waits(browser, said)
        cursor.send_keys(Keys.ARROW_RIGHT)
        waits(browser, lambda: said() != first)
        values, _, second = browser.execute_script(READING)
        assert all(f" {value}" in second for value in values), f"{second}: {values}"
        seen = browser.find_element(By.ID, "live-text").text
        waits(browser, lambda: browser.find_element(By.ID, "live-text").text != seen)
        assert visible() and browser.switch_to.active_element == cursor, "a refresh took the reading away"
        cursor.send_keys(Keys.ESCAPE)
        waits(browser, lambda: not visible())
    for kind in ["sent", "acked", "retried", "garbage", "typical", "slow", "oldest"]:
        assert drawn(kind), f"{kind} is not drawn"
    lines = logged(browser)
    assert not lines, lines
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(URL + "/?history=3600")
    assert browser.find_element(By.CSS_SELECTOR, ".plot").is_displayed(), "there is no chart without the script"
    assert not browser.find_element(By.CSS_SELECTOR, ".cursor").is_displayed(), "what needs the script is shown without it"
    browser.quit()


def first_topic():
    """Checks that a page opened before there is a topic shows the first one. Fills the relay."""
    browser = open_browser("light", 1280)
    browser.get(URL + "/")
    assert "No topics yet" in browser.find_element(By.ID, "main").text, "a new relay has no topic"
    fill()
    waits(browser, lambda: browser.find_elements(By.ID, "topic-orders"))
    browser.quit()


def outage(browser):
    """Checks that an open page says when Redis does not answer, and when it does again."""
    browser.get(URL + "/")
    dot = lambda: browser.find_element(By.CSS_SELECTOR, ".dot").value_of_css_property("background-color")
    green = dot()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["REDIS_SOCKET"])
    connection.sendall(b"INFO server\r\n")
    process = int(re.search(rb"process_id:(\d+)", connection.recv(65536)).group(1))
    os.kill(process, signal.SIGSTOP)
    try:
        waits(browser, lambda: "did not answer" in browser.find_element(By.CSS_SELECTOR, "#stale .stale").text)
        waits(browser, lambda: dot() != green)
    finally:
        os.kill(process, signal.SIGCONT)
    waits(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, "#stale .stale"))
    waits(browser, lambda: dot() == green)


def keys(browser):
    """Checks that the keys for rows leave out the closed table of a chart."""
    browser.get(URL + "/forecast")
    browser.find_element(By.TAG_NAME, "body").send_keys("j")
    row = browser.find_element(By.CSS_SELECTOR, "tr.at")
    assert row.is_displayed() and not browser.execute_script("return arguments[0].closest('figure')", row), row.text
    assert browser.switch_to.active_element == row.find_element(By.TAG_NAME, "a"), "the row has no focus"


def zones(browser):
    """Checks that times are in the viewer's zone, with and without daylight saving time."""
    for zone, winter, summer in [("Asia/Kathmandu", "4:45:00", "3:45:00"), ("Europe/Berlin", "12:00:00", "12:00:00")]:
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})
        browser.get(SCHEDULES + "/schedules")
        shown = lambda name: browser.find_element(By.XPATH, f"//tr[th='{name}']//time").get_attribute("title")
        for name, expected in [("winter", winter), ("summer", summer)]:
            title = shown(name)
            assert f" {expected}" in title.replace("\u202f", " "), f"{name} in {zone}: {title}"
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    browser.get(URL + "/forecast")
    waits(browser, lambda: "Europe/Berlin" in browser.find_element(By.ID, "forecast-caption").text)
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def copies(browser):
    """Checks that copying works where the browser has no clipboard interface: on plain HTTP from another host."""
    browser.get(FOREIGN + "/topics/reports")
    assert not browser.execute_script("return window.isSecureContext"), "the browser trusts the host"
    browser.find_element(By.CSS_SELECTOR, "details.commands summary").click()
    button = browser.find_element(By.CSS_SELECTOR, "[data-copy^=curl]")
    command = button.get_attribute("data-copy")
    button.click()
    waits(browser, lambda: button.text == "Copied")
    find = browser.find_element(By.ID, "find")
    find.send_keys(Keys.CONTROL, "v")
    assert find.get_attribute("value") == command, f"{find.get_attribute('value')} instead of {command}"


def log_in(browser, token):
    """Begins a session with a token."""
    browser.get(TOKENS + "/login")
    if browser.find_elements(By.CSS_SELECTOR, "form.who button"):
        browser.find_element(By.CSS_SELECTOR, "form.who button").click()
    waits(browser, lambda: browser.find_element(By.ID, "token")).send_keys(token, Keys.ENTER)
    waits(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".who .name"))


def create_token(browser):
    """Creates the token `app` with the keyboard, and returns its secret."""
    browser.get(TOKENS + "/new-token")
    browser.find_element(By.NAME, "token").send_keys("app", Keys.ENTER)
    waits(browser, lambda: browser.find_element(By.ID, "token-scopes-mistake"))
    assert browser.find_element(By.NAME, "token").get_attribute("value") == "app", "what was typed is gone"
    for scope in ["read", "send"]:
        browser.find_element(By.NAME, f"scopes.{scope}").send_keys(Keys.SPACE)
    # A long word, for narrow screens.
    browser.find_element(By.NAME, "topics").send_keys("shop-*, " + "a-topic-with-a-long-name-" * 3, Keys.ENTER)
    return waits(browser, lambda: browser.find_element(By.CSS_SELECTOR, "#secret [data-copy]")).get_attribute("data-copy")


def tokens(browser):
    """Removes the token that other checks have made. Then checks that a secret is shown once, that what was created may log in, and its rotation and removal."""
    log_in(browser, "admin")
    click = lambda selector: waits(browser, lambda: browser.find_element(By.CSS_SELECTOR, selector)).click()
    remove = lambda: (browser.get(TOKENS + "/tokens/app/remove"), click("main button.primary"), says(browser, "Token app is removed."))
    remove()
    first = create_token(browser)
    click("#secret a.button")
    waits(browser, lambda: browser.find_element(By.ID, "definition"))
    assert first not in browser.page_source, "the secret is shown again"
    click("a[href='/tokens/app/rotate/begin']")
    click("main button.primary")
    second = waits(browser, lambda: browser.find_element(By.CSS_SELECTOR, "#secret [data-copy]")).get_attribute("data-copy")
    assert first != second, "the rotation has generated nothing"
    browser.get(TOKENS + "/tokens/app")
    click("a[href='/tokens/app/rotate/finish']")
    click("main button.primary")
    says(browser, "has only its new secret")
    log_in(browser, second)
    assert "bank" not in browser.find_element(By.TAG_NAME, "body").text, "another team's topic is shown"
    log_in(browser, "admin")
    remove()


def says(browser, text):
    """Waits for the line about an action."""
    waits(browser, lambda: text in browser.find_element(By.ID, "flash").text)


def act(browser):
    """Checks an action with its line, and that a purge asks for the name."""
    browser.get(URL + "/topics/orders")
    browser.find_element(By.CSS_SELECTOR, "form[action='/topics/orders/pause'] button").click()
    says(browser, "is paused")
    browser.find_element(By.CSS_SELECTOR, "form[action='/topics/orders/resume'] button").click()
    says(browser, "is running")
    browser.get(URL + "/topics/orders/doctor")
    browser.find_element(By.CSS_SELECTOR, "form[action='/topics/orders/doctor/examine'] button").click()
    says(browser, "Faults left: 0")
    browser.get(URL + "/topics/orders/send")
    browser.find_element(By.NAME, "payload").send_keys("typed\nin two lines")
    browser.find_element(By.NAME, "delay").send_keys("soon", Keys.ENTER)
    waits(browser, lambda: browser.find_element(By.ID, "send-delay-mistake"))
    delay = browser.find_element(By.NAME, "delay")
    assert delay.get_attribute("value") == "soon", "what was typed is gone"
    delay.clear()
    delay.send_keys("1h", Keys.ENTER)
    waits(browser, lambda: browser.find_element(By.CSS_SELECTOR, "#receipt a")).click()
    waits(browser, lambda: "typed\nin two lines" in browser.find_element(By.CSS_SELECTOR, ".payload pre").text)
    browser.get(URL + "/new-schedule")
    for field, text in [("schedule", "typed"), ("topic", "orders"), ("cron", "soon")]:
        browser.find_element(By.NAME, field).send_keys(text)
    browser.find_element(By.CSS_SELECTOR, "main button.primary").click()
    waits(browser, lambda: browser.find_element(By.ID, "schedule-cron-mistake"))
    cron = browser.find_element(By.NAME, "cron")
    assert cron.get_attribute("value") == "soon", "what was typed is gone"
    cron.clear()
    cron.send_keys("0 0 0 31 * *", Keys.ENTER)
    says(browser, "Schedule typed is created.")
    assert "day 31 does not exist" in browser.find_element(By.ID, "warnings").text
    for verb, text in [("pause", "is paused"), ("resume", "is running"), ("run", "is sent to topic orders")]:
        browser.find_element(By.CSS_SELECTOR, f"form[action='/schedules/typed/{verb}'] button").click()
        says(browser, text)
    browser.find_element(By.CSS_SELECTOR, "a[href='/schedules/typed/remove']").click()
    waits(browser, lambda: browser.find_element(By.CSS_SELECTOR, "form[action='/schedules/typed/remove'] button")).click()
    says(browser, "Schedule typed is removed.")
    browser.get(URL + "/topics/orders/groups/default/garbage/purge")
    browser.find_element(By.ID, "typed").send_keys("orders")
    browser.find_element(By.CSS_SELECTOR, "main button.danger").click()
    says(browser, "Purged messages: ")


def main():
    """Checks all pages, and then what they do."""
    wait_for_manager(URL)
    wait_for_manager(SCHEDULES)
    wait_for_manager(TOKENS)
    if IS_QUICK:
        fill()
    else:
        first_topic()
    failed, has_token = 0, False
    for theme in ["light"] if IS_QUICK else ["light", "dark"]:
        for width in [1280, 360]:
            browser = open_browser(theme, width)
            for page in QUICK_PAGES if IS_QUICK else PAGES:
                wrong = look(browser, page)
                failed += bool(wrong)
                print(f"{theme} {width} {page}: {wrong or 'ok'}")
            for token, pages in ({} if IS_QUICK else PAGES_OF).items():
                log_in(browser, token)
                if token == "admin" and not has_token:
                    create_token(browser)
                    has_token = True
                    # The refusal of what was typed is an answer with 422, which the browser notes.
                    logged(browser)
                for page in pages:
                    wrong = look(browser, TOKENS + page)
                    failed += bool(wrong)
                    print(f"{theme} {width} {token} {page}: {wrong or 'ok'}")
            browser.quit()
    for theme in ["light"] if IS_QUICK else ["light", "dark"]:
        charts(theme)
        print(f"{theme}: charts: ok")
    if not IS_QUICK:
        browser = open_browser("light", 1280)
        refresh(browser)
        refresh_list(browser)
        keys(browser)
        outage(browser)
        act(browser)
        zones(browser)
        copies(browser)
        tokens(browser)
        lines = logged(browser)
        # The refusal of what was typed is an answer with 422, which the browser notes.
        lines = [line for line in lines if "422" not in line["message"]]
        failed += bool(lines)
        print(*lines)
        browser.quit()
    print(f"{failed} failed")
    sys.exit(failed > 0)


main()
