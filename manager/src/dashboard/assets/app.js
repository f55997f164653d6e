// Refreshes the page in place, copies commands, shows times in the viewer's zone, and handles keys.
// Everything works without it: links, forms and a reload.
"use strict";
(() => {
  const body = document.body;
  const typing = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  document.documentElement.classList.add("js");

  const exact = { dateStyle: "medium", timeStyle: "medium" };
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const local = `${at.toLocaleString(undefined, exact)} ${zone}`;
      if (time.dataset.show === "title") time.title = `${local} · ${time.dateTime}`;
      else if (body.dataset.zone === "local") {
        time.title = time.dateTime;
        time.textContent = time.dataset.show === "clock" ? at.toLocaleTimeString() : local;
      }
    }
  }
  showTimes(document);
  // The server draws charts in this zone.
  const isNewZone = !document.cookie.split("; ").includes(`lisa-zone=${zone}`);
  document.cookie = `lisa-zone=${zone}; Path=/; Max-Age=31536000; SameSite=Lax`;

  // The refresh: the same page again, of which only marked regions change. Focus, open details and typed text stay.
  const every = Number(body.dataset.live);
  const line = document.getElementById("live-line");
  let tag = null, failures = 0, stopped = false, lastSeen = Date.now(), timer;
  const keep = {
    morphStyle: "outerHTML", ignoreActiveValue: true, restoreFocus: true,
    callbacks: { beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS") && name !== "aria-valuetext" },
  };
  async function refresh() {
    const headers = { "Lisa-Refresh": "1" };
    if (tag) headers["If-None-Match"] = tag;
    const request = fetch(location.href, { headers, redirect: "manual", signal: AbortSignal.timeout(10000) });
    const answer = await request.catch(() => { throw new Error("the server does not answer"); });
    if (answer.type === "opaqueredirect") return location.reload();
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(answer.status === 503 ? "Redis does not answer, or the server is shutting down or overloaded" : `status ${answer.status}`);
      tag = answer.headers.get("ETag");
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      showTimes(next);
      const regions = (page) => [...page.querySelectorAll("[data-live][id]")];
      const names = (page) => regions(page).map((region) => region.id).join();
      if (names(document) !== names(next)) {
        // A region was added or removed, for example by the first topic.
        Idiomorph.morph(document.getElementById("main"), next.getElementById("main"), keep);
      } else for (const region of regions(document)) {
        // A list whose row is being pointed at or used keeps its rows.
        if (!region.matches("[data-steady]:is(:hover, :focus-within)")) Idiomorph.morph(region, next.getElementById(region.id), keep);
      }
      const text = next.getElementById("live-text");
      if (text) document.getElementById("live-text").innerHTML = text.innerHTML;
      document.dispatchEvent(new Event("refreshed"));
    }
    lastSeen = Date.now();
  }
  async function tick() {
    clearTimeout(timer);
    if (stopped || !every) return;
    if (!document.hidden) {
      try {
        await refresh();
        failures = 0;
        line.classList.remove("is-late");
      } catch (error) {
        failures += 1;
        line.classList.add("is-late");
        const age = Math.round((Date.now() - lastSeen) / 1000);
        document.getElementById("live-text").textContent = `These figures are ${age} s old (${error.message}). Retrying.`;
      }
    }
    timer = setTimeout(tick, Math.min(every * 2 ** Math.min(failures, 5), Math.max(30, every)) * 1000);
  }
  if (every) timer = setTimeout(tick, isNewZone ? 0 : every * 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });

  // Copying, also on plain HTTP where there is no clipboard interface.
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = document.createElement("textarea");
      area.value = text;
      body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await copy(button.dataset.copy);
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  const choices = document.querySelector(".choices");
  choices?.addEventListener("change", () => choices.requestSubmit());

  if (body.dataset.keys !== "on") return;
  let leader = 0, row = -1;
  function move(by) {
    // Skips the tables of charts that are closed.
    const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => !row.closest("details:not([open])"));
    if (!rows.length) return;
    rows[row]?.classList.remove("at");
    row = Math.max(0, Math.min(rows.length - 1, row + by));
    rows[row].classList.add("at");
    rows[row].scrollIntoView({ block: "nearest" });
    rows[row].querySelector("a")?.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return document.activeElement?.blur();
    if (typing()) return;
    if (Date.now() - leader < 1500) {
      leader = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) return link.click();
    }
    switch (event.key) {
      case "g": leader = Date.now(); break;
      case "/": event.preventDefault(); document.getElementById("find")?.focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "r": if (every) { stopped = !stopped; line.classList.toggle("is-off", stopped); if (!stopped) tick(); else document.getElementById("live-text").textContent = "Refreshing is stopped; press r to resume."; } break;
      case "t": { const select = choices.elements.theme; select.selectedIndex = (select.selectedIndex + 1) % 3; choices.requestSubmit(); break; }
      case "?": document.querySelector('[data-go="h"]')?.click(); break;
    }
  });
})();
