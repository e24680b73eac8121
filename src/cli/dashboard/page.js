"use strict";
(() => {
  const INTERVAL = 1000, PATIENCE = 5000, HIDDEN_INTERVAL = 10000, RECENT = 8;
  const SVG = "http://www.w3.org/2000/svg";
  const SIGNS = {
    healthy: "✓", rebuilding: "↻", degraded: "!", failed: "✕", gone: "✕", silent: "?", ended: "–", unknown: "…",
    online: "✓", missing: "✕", faulted: "✕", removing: "↷",
  };
  const place = (id) => document.getElementById(id);

  // Makes an element. Whatever comes from a daemon becomes a text node or an attribute, and never markup.
  function make(space, tag, attributes, children) {
    const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child !== null && child !== false) node.append(child instanceof Node ? child : String(child));
    }
    return node;
  }
  const el = (tag, attributes = {}, ...children) => make(null, tag, attributes, children);
  const svg = (tag, attributes = {}, ...children) => make(SVG, tag, attributes, children);

  const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);

  // Makes children equal to others, and keeps those that are alike: focus, selection and open details stay.
  // A child with a key is kept wherever it is. Others go away around it, because an element that moves loses the focus.
  function patch(parent, wanted) {
    const keys = new Set(wanted.map(keyOf)), kept = new Map();
    for (const old of [...parent.childNodes]) {
      const key = keyOf(old);
      if (key === null) continue;
      if (keys.has(key) && !kept.has(key)) kept.set(key, old);
      else old.remove();
    }
    let next = parent.firstChild;
    for (const node of wanted) {
      const key = keyOf(node);
      const old = key === null ? next && keyOf(next) === null && next : kept.get(key);
      kept.delete(key);
      if (!old || old.nodeName !== node.nodeName) { parent.insertBefore(node, next); continue; }
      if (old !== next) parent.insertBefore(old, next);
      adapt(old, node);
      next = old.nextSibling;
    }
    while (next) { const old = next; next = old.nextSibling; old.remove(); }
  }
  function adapt(old, node) {
    if (old.nodeType === 3) { if (old.data !== node.data) old.data = node.data; return; }
    for (const { name } of [...old.attributes]) if (name !== "open" && !node.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    patch(old, [...node.childNodes]);
  }

  const pad = (number) => String(number).padStart(2, "0");
  function clock(ms) {
    const date = new Date(ms);
    return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  }
  function moment(ms) {
    const date = new Date(ms);
    const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    return el("time", { datetime: date.toISOString() }, `${day} ${clock(ms)}`);
  }
  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (bytes >= 1024 && unit + 1 < units.length) { bytes /= 1024; unit += 1; }
    return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
  }
  function span(seconds) {
    const [count, unit] = seconds < 90 ? [seconds, "s"] : seconds < 5400 ? [Math.round(seconds / 60), "min"]
      : seconds < 172800 ? [Math.round(seconds / 3600), "h"] : [Math.round(seconds / 86400), "days"];
    return `${count} ${unit}`;
  }
  const percent = (part) => `${(100 * part).toFixed(2)}%`;

  function bar(parts, tall) {
    let at = 0;
    const rects = parts.map(([part, kind]) => {
      const rect = svg("rect", { x: percent(at), width: percent(part), height: "100%", class: kind });
      at += part;
      return rect;
    });
    return svg("svg", { class: tall ? "bar tall" : "bar", "aria-hidden": "true", focusable: "false" }, rects);
  }

  // Lists whose signs are hidden are lists to screen readers only if they say so. An empty one is none.
  const list = (tag, attributes, items) => (items.length ? el(tag, { role: "list", ...attributes }, items) : null);

  function command(text) {
    // Another command is another element, so that a button never changes under the focus.
    return el("div", { class: "command", "data-key": text }, el("code", {}, text),
      el("button", { type: "button", "data-command": text, "aria-label": `Copy the command ${text}` }, "Copy"));
  }

  // A sentence whose words in backquotes are code.
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  const prose = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));

  function disk(member, activity) {
    const isWarned = member.notes.length > 0 || member.errors > 0;
    const kind = member.state === "rebuilding" ? "member-rebuilding" : member.state;
    const sign = SIGNS[member.state] || "";
    const known = member.used !== null && member.free !== null && member.is_here && member.used + member.free > 0;
    return el("li", { class: `disk ${kind}${isWarned ? " warned" : ""}`, "data-key": member.index },
      el("div", { class: "row" }, el("strong", {}, `Member ${member.index}`),
        el("span", { class: "state" }, el("span", { "aria-hidden": "true" }, `${sign} `), member.state)),
      el("code", {}, member.path),
      bar(known ? [[member.used / (member.used + member.free), ""]] : []),
      el("span", {}, member.space),
      (activity || []).map((line) => el("span", {}, line)),
      el("span", { class: member.errors ? "why" : "muted" }, member.errors_text),
      member.notes.map((note) => el("span", { class: "why" }, note)));
  }

  function line(values, top, kind) {
    let path = "", isOpen = false;
    values.forEach((value, at) => {
      if (value === null) { isOpen = false; return; }
      const y = 96 - 88 * (top ? value / top : 0);
      path += isOpen ? `L${at} ${y.toFixed(2)}` : `M${at} ${y.toFixed(2)}h.01`;
      isOpen = true;
    });
    return svg("path", { class: kind, d: path });
  }

  function throughput(traffic) {
    const { read, written } = traffic;
    // The axis grows with the data, up to an hour.
    const steps = Math.max(60, read.length);
    const filled = (values) => [...Array(steps - values.length).fill(null), ...values];
    const top = Math.max(0, ...read.filter(Number.isFinite), ...written.filter(Number.isFinite));
    const now = (value) => (value === null ? "unknown" : `${size(value)}/s`);
    const said = `Throughput of the last hour. Now ${now(traffic.read_now)} read and ${now(traffic.written_now)} written. ` +
      `At most ${size(top)}/s.`;
    const sign = (kind) => svg("svg", { "aria-hidden": "true" }, svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, class: kind }));
    const age = Date.now() - traffic.since;
    return el("div", { class: "part" }, el("h3", {}, "Throughput of the last hour"),
      svg("svg", { class: "chart", viewBox: `0 0 ${steps - 1} 100`, preserveAspectRatio: "none", role: "img", "aria-label": said },
        line(filled(read), top, "read"), line(filled(written), top, "written")),
      el("div", { class: "axis small muted", "aria-hidden": "true" },
        el("span", {}, `${Math.round(steps * traffic.step / 60)} minutes ago`), el("span", {}, "now")),
      el("div", { class: "legend small" },
        el("span", {}, sign("read"), `${now(traffic.read_now)} read`),
        el("span", {}, sign("written"), `${now(traffic.written_now)} written`),
        el("span", { class: "muted" }, `highest ${size(top)}/s`)),
      age < 3540000 ? el("p", { class: "small muted" }, `Measured since ${clock(traffic.since)}, when the dashboard began.`) : null);
  }

  function redundancy(volume) {
    return el("div", { class: "part" }, el("h3", {}, "Redundancy"),
      volume.redundancy.length ? bar(volume.redundancy.map((row) => [row.part, row.level]), true) : null,
      volume.redundancy.length ? list("ul", {}, volume.redundancy.map((row) => el("li", {}, row.text)))
        : el("p", { class: "muted" }, "No stripes are counted."),
      list("ul", { class: "small muted" }, volume.redundancy_notes.map((note) => el("li", {}, note))));
  }

  function work(volume) {
    const running = volume.work.map((job) => el("div", { class: "part", "data-key": job.name },
      el("p", {}, el("strong", {}, `${job.name}: `), `${(100 * job.progress).toFixed(0)} % done`,
        job.rate ? `, ${job.rate}` : "", job.seconds_left === null ? "" : `, about ${span(job.seconds_left)} left`),
      el("progress", { class: "heard", max: 1, value: job.progress, "aria-label": `${job.name} of ${volume.name}` }),
      bar([[job.progress, ""]], true),
      el("p", { class: "small muted" }, job.text)));
    return el("div", { class: "part" }, el("h3", {}, "Background work"), running,
      running.length ? null : el("p", {}, "None is under way."),
      list("ul", { class: "small muted" }, volume.work_notes.map((note) => el("li", {}, ...prose(note)))));
  }

  function event(shown) {
    return el("li", {}, shown.time === null ? el("span", {}, "?") : moment(shown.time),
      el("span", { class: `severity ${shown.severity}` }, shown.severity), el("span", {}, shown.text));
  }

  function events(volume) {
    const [recent, older] = [volume.events.slice(0, RECENT), volume.events.slice(RECENT)];
    return el("div", { class: "part" }, el("h3", {}, "Events"),
      list("ol", { class: "events" }, recent.map(event)) || el("p", { class: "muted" }, "There are none."),
      older.length ? el("details", {}, el("summary", {}, `${older.length} older events`),
        list("ol", { class: "events" }, older.map(event))) : null);
  }

  function lost(volume) {
    return volume.lost.length === 0 ? null : el("div", { class: "part lost" }, el("h3", {}, "Lost files"),
      list("ul", {}, volume.lost.map((line) => el("li", {}, line))));
  }

  function silence(volume) {
    const { silence } = volume;
    if (!silence) return null;
    const since = ` Since ${clock(silence.since)}.`;
    const shown = volume.told === null ? "" : ` What is below is as it was at ${clock(volume.told)}.`;
    return el("div", { class: "note" }, el("h3", {}, "The present state is unknown"),
      el("p", {}, `${capital(silence.text)}.`.replace(/\.\.$/, "."), since, shown),
      silence.advice ? el("p", {}, ...prose(`${capital(silence.advice)}.`)) : null);
  }

  function section(volume, at) {
    const id = `volume-${at}`;
    const hasState = volume.members !== undefined;
    const facts = [el("span", {}, volume.mountpoint)];
    if (hasState) facts.push(...[...volume.details, volume.capacity.text].map((fact) => el("span", {}, fact)));
    return el("section", { class: `volume ${volume.kind}`, "aria-labelledby": id, "data-key": volume.mountpoint },
      el("div", { class: "head" },
        el("div", { class: "row" }, el("h2", { id, tabindex: -1 }, volume.name),
          el("span", { class: "badge" }, el("span", { "aria-hidden": "true" }, `${SIGNS[volume.kind]} `), volume.kind)),
        el("p", { class: "sentence" }, volume.sentence),
        el("p", { class: "facts small muted" }, facts)),
      silence(volume),
      hasState && !volume.silence ? el("div", { class: "note" }, el("h3", {}, "Next"),
        el("p", {}, ...prose(`${capital(volume.next)}.`)), volume.commands.map(command)) : null,
      hasState ? lost(volume) : null,
      hasState ? el("div", { class: "part" }, el("h3", {}, "Members"),
        list("ul", { class: "disks" }, volume.members.map((member, at) => disk(member, volume.activities[at])))) : null,
      hasState ? el("div", { class: "two" }, el("div", { class: "stack" }, redundancy(volume), work(volume)),
        throughput(volume.traffic)) : null,
      hasState ? events(volume) : null,
      volume.no_metrics ? el("p", { class: "small muted" }, `Not all of its metrics were on the last page of metrics: ${volume.no_metrics}.`) : null);
  }

  const lastSaid = new Map();
  function announce(volumes) {
    const changes = [];
    for (const { mountpoint, kind, sentence } of volumes) {
      const before = lastSaid.get(mountpoint);
      // Progress is not worth a word each second.
      if (before !== undefined && before !== kind + sentence) changes.push(sentence);
      lastSaid.set(mountpoint, kind + sentence);
    }
    for (const mountpoint of [...lastSaid.keys()]) {
      if (!volumes.some((volume) => volume.mountpoint === mountpoint)) lastSaid.delete(mountpoint);
    }
    if (changes.length) say(changes.join(" "));
  }

  // A screen reader tells the same text again only if it was away between.
  function say(text) {
    place("said").textContent = "";
    setTimeout(() => { place("said").textContent = text; }, 50);
  }

  // If the element with the focus goes away, its volume gets the focus, or else the list of volumes does.
  function keepFocus(change) {
    const held = document.activeElement, section = held && held.closest("section");
    change();
    if (!section || held.isConnected) return;
    (section.isConnected ? section.querySelector("h2") : place("volumes")).focus();
  }

  function summary(volumes) {
    const counts = new Map();
    for (const { kind } of volumes) counts.set(kind, (counts.get(kind) || 0) + 1);
    const parts = [...counts].map(([kind, count]) => `${count} ${kind}`);
    const total = `${volumes.length} volume${volumes.length === 1 ? "" : "s"}`;
    return volumes.length ? `${total}: ${parts.join(", ")}` : "no volumes";
  }

  function show(state) {
    const text = summary(state.volumes);
    place("host").textContent = `on ${state.host}`;
    place("summary").textContent = `${text} (${state.scope})`;
    const title = `${text} · CauchyFS on ${state.host}`;
    if (document.title !== title) document.title = title;
    const shown = state.volumes.map(section);
    if (state.left_out) shown.push(el("p", { class: "empty" }, `${state.left_out} more volumes are mounted. \`cauchyfs status\` shows them.`));
    // An alert that changed each second would be read aloud each second.
    const age = state.listed === null ? "" : ` The list of volumes is as it was at ${clock(state.listed)}.`;
    if (state.failure) shown.unshift(el("p", { class: "note failed", "data-key": "failure", role: "alert" }, `${capital(state.failure)}.${age}`));
    else if (!shown.length) shown.push(el("p", { class: "empty" }, "No volume is mounted. ", el("code", {}, "cauchyfs mount DIR... MOUNTPOINT"), " mounts one, and it appears here."));
    keepFocus(() => patch(place("volumes"), shown));
    place("foot").textContent = `Updated at ${clock(state.now)}, every second. cauchyfs ${state.version}. This page changes nothing.`;
    announce(state.volumes);
  }

  let failedSince = null, failures = 0, shownOf = null;
  function complain(problem) {
    failures += 1;
    failedSince = failedSince || Date.now();
    // One failure may be a full house.
    if (failures < 2) return;
    const alarm = place("alarm");
    const text = `The dashboard has not answered since ${clock(failedSince)} (${problem}). ` +
      (shownOf === null ? "This page has shown nothing yet." : `This page shows how it was at ${clock(shownOf)}.`);
    if (alarm.textContent !== text) alarm.textContent = text;
    alarm.hidden = false;
    document.title = "? · CauchyFS: the dashboard does not answer";
  }

  async function ask() {
    const ending = new AbortController();
    const timer = setTimeout(() => ending.abort(), PATIENCE);
    try {
      // The address of the page may have the token, and a request for such an address is refused by browsers.
      const answer = await fetch(`${location.origin}/state`, { signal: ending.signal, cache: "no-store", redirect: "error" });
      if (!answer.ok) throw new Error(`it refuses with ${answer.status}`);
      const state = await answer.json();
      failedSince = null;
      failures = 0;
      place("alarm").hidden = true;
      shownOf = state.now;
      show(state);
    } catch (error) {
      complain(error.name === "AbortError" ? "it is too slow" : error instanceof TypeError ? "it cannot be reached" : error.message);
    } finally {
      clearTimeout(timer);
    }
  }

  let waiting = null;
  async function run() {
    waiting = null;
    await ask();
    waiting = setTimeout(run, document.hidden ? HIDDEN_INTERVAL : INTERVAL);
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || waiting === null) return;
    clearTimeout(waiting);
    run();
  });

  document.addEventListener("click", async (pressed) => {
    const button = pressed.target.closest("button[data-command]");
    if (!button) return;
    const text = button.getAttribute("data-command");
    try {
      await navigator.clipboard.writeText(text);
      say("The command is copied.");
      button.textContent = "Copied";
    } catch {
      // Browsers copy for pages of a secure origin alone.
      getSelection().selectAllChildren(button.previousSibling);
      say("The command is selected.");
    }
  });

  run();
})();
