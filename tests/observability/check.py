"""Checks the rules, the dashboard and the documentation of metrics against each other, and against a real Prometheus.

    check.py                    the names only
    check.py LISA PROMETHEUS    also sends traffic to LISA and puts every expression to PROMETHEUS
"""

import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Metrics that have no value in a healthy relay in development mode, which has no sinks with targets, no sources, no SQS clients,
# no external scaler and no TLS.
SELDOM = {
    "lisa_callbacks_total",
    "lisa_doctor_findings",
    "lisa_http_certificate_expiry_timestamp_seconds",
    "lisa_job_failures_total",
    "lisa_messages_migrated_total",
    "lisa_panics_total",
    "lisa_reclaimed_total",
    "lisa_redis_errors_total",
    "lisa_redis_memory_limit_bytes",
    "lisa_scaler_calls_total",
    "lisa_sink_limit",
    "lisa_sink_open",
    "lisa_sink_up",
    "lisa_source_messages_total",
    "lisa_source_up",
    "lisa_sqs_requests_total",
    "lisa_suspects",
}
# Metrics in no rule and on no panel.
NOT_DRAWN: set[str] = set()
# Labels that Prometheus or its configuration adds.
ADDED = {"namespace", "instance", "job", "le"}
VARIABLES = {"$__rate_interval": "10s", "$namespace": ".*", "$topic": ".*", "$group": ".*"}
WAIT = 120

problems: list[str] = []


def read(path: str) -> str:
    return (ROOT / path).read_text()


def bare(name: str) -> str:
    """The name of the metric that a series belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def documented() -> dict[str, set[str]]:
    """Each metric of the reference, which is generated from the code, with its labels."""
    rows = re.findall(r"^\| `(lisa_\w+)` \| (\w+) \| ([^|]*) \|", read("shared/docs/reference/metrics.md"), re.M)
    names = {}
    for name, kind, labels in rows:
        labels = {label.strip() for label in labels.split(",") if label.strip()}
        names[name + "_info" if kind == "info" else name] = labels
    return names


def panels() -> list[tuple[str, str]]:
    """Each expression of the dashboard, with the title of its panel."""
    dashboard = json.loads(read("config/grafana/lisa.json"))
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]


def rules(name: str) -> list[tuple[str, str]]:
    """The text of each rule of a file, with its name."""
    return re.findall(r"- (?:alert|record): (\S+)\n(.*?)(?=\n +- (?:alert|record):|\Z)", read(f"config/prometheus/{name}"), re.S)


def expression(rule: str) -> str:
    return re.search(r"expr: (.*?)(?=\n +(?:for|labels):|\Z)", rule, re.S)[1]


def metrics_of(expr: str) -> set[str]:
    """The metrics of Lisa in an expression, without recorded ones, whose names have colons."""
    return {bare(name) for name in re.findall(r"(?<![\w:])lisa_\w+(?![\w:])", expr)}


def check_names() -> None:
    known = documented()
    recording, alerting = rules("rules.yml"), rules("alerts.yml")
    recorded = {name for name, _ in recording}
    drawn = panels()
    expressions = drawn + [(name, expression(rule)) for name, rule in recording + alerting]
    used = set()
    for where, expr in expressions:
        used |= metrics_of(expr)
        for name in metrics_of(expr) - known.keys():
            problems.append(f"{where}: no metric is named {name}")
        for name in set(re.findall(r"\w+:\w+:\w+", expr)) - recorded:
            problems.append(f"{where}: no rule records {name}")
        for name, matchers in re.findall(r"(?<![\w:])(lisa_\w+)\{([^}]*)\}", expr):
            for label in set(re.findall(r"(\w+)\s*[=!]", matchers)) - known.get(bare(name), set()) - ADDED:
                problems.append(f"{where}: {name} has no label {label}")
    for name in known.keys() - used - NOT_DRAWN:
        problems.append(f"{name} is in no rule and on no panel")
    for name in NOT_DRAWN & used:
        problems.append(f"{name} is drawn")
    for name in recorded - {name for _, expr in expressions for name in re.findall(r"\w+:\w+:\w+", expr)}:
        problems.append(f"{name} is recorded but not used")

    page = read("shared/docs/operate/monitoring.md")
    for name in {bare(name) for name in re.findall(r"\b(lisa_[a-z_]+[a-z])\b", page)} - known.keys():
        problems.append(f"monitoring.md: no metric is named {name}")
    sections = set(re.findall(r"^### (Lisa\w+)$", page, re.M))
    names = {name for name, _ in alerting}
    for name in names ^ sections:
        problems.append(f"{name} is not both an alert and a section of monitoring.md")
    tested = set(re.findall(r"alertname: (\w+)\n\s+eval_time: \S+\n\s+exp_alerts:\n", read("config/prometheus/alerts_test.yml")))
    for name in names - tested:
        problems.append(f"{name} has no case in alerts_test.yml in which it fires")
    for name, rule in alerting:
        for key in ["summary: ", "description: ", f"runbook_url: shared/docs/operate/monitoring.md#{name.lower()}\n"]:
            if key not in rule + "\n":
                problems.append(f"{name} lacks {key.strip()}")


def post(url: str, body: str, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(url, body.encode(), headers or {}, method="POST")
    urllib.request.urlopen(request, timeout=30).read()


def traffic(lisa: str) -> None:
    """Sends messages, and takes some as a worker does."""
    for number in range(5):
        post(f"{lisa}/v1/topics/orders/messages", str(number), {"Lisa-Delay": "100ms"})
    post(f"{lisa}/v1/topics/orders/groups/default/pull", '{"wait": "5s"}', {"Content-Type": "application/json"})


def ask(prometheus: str, path: str, **query: str):
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"], None
    except urllib.error.HTTPError as error:
        return None, json.load(error).get("error", str(error))


def unanswered(prometheus: str) -> list[str]:
    """Puts every expression to Prometheus. Returns those that fail or are empty."""
    failed = []
    recording = {name: metrics_of(expression(rule)) for name, rule in rules("rules.yml")}
    sources = [(f"panel {title!r}", expr) for title, expr in panels()]
    sources += [(f"rule {name}", name) for name in recording]
    # An alert is empty while all is well; its metrics are not.
    bases = {name for _, rule in rules("alerts.yml") for name in re.findall(r"(?<![\w:])lisa_\w+", expression(rule))}
    sources += [("metric of an alert", name) for name in sorted(bases)]
    for where, expr in sources:
        for variable, value in VARIABLES.items():
            expr = expr.replace(variable, value)
        data, error = ask(prometheus, "query", query=expr)
        if error:
            failed.append(f"{where}: {expr}: {error}")
        elif not data["result"] and not (metrics_of(expr) | recording.get(expr, set())) & SELDOM:
            failed.append(f"{where}: {expr}: empty")
    groups, error = ask(prometheus, "rules")
    loaded = [rule for group in (groups or {"groups": []})["groups"] for rule in group["rules"]]
    for rule in loaded:
        if rule["health"] != "ok":
            failed.append(f"rule {rule['name']}: {rule['health']}: {rule.get('lastError', '')}")
    if len(loaded) != len(rules("rules.yml")) + len(rules("alerts.yml")):
        failed.append(f"Prometheus has loaded {len(loaded)} rules: {error}")
    return failed


def check_answers(lisa: str, prometheus: str) -> None:
    end = time.monotonic() + WAIT
    failed = ["not asked yet"]
    while failed and time.monotonic() < end:
        try:
            traffic(lisa)
            failed = unanswered(prometheus)
        except (urllib.error.URLError, ConnectionError) as error:
            failed = [f"{lisa} or {prometheus}: {error}"]
        time.sleep(1)
    problems.extend(failed)


check_names()
if len(sys.argv) == 3 and not problems:
    check_answers(*sys.argv[1:])
for problem in sorted(problems):
    print(problem, file=sys.stderr)
if problems:
    sys.exit(1)
print(f"{len(panels())} expressions on panels, {len(rules('rules.yml'))} rules, {len(rules('alerts.yml'))} alerts: ok")
