"use strict";
// The start page: every run, sweep and evaluation; sorted, filtered, followed; ticked ones open together.
(() => {
  const { h, svg } = XP;
  const FOLLOW_MS = 3000;
  const TYPING_MS = 250;
  const KINDS = { all: "Runs and evaluations", run: "Runs", evaluation: "Evaluations", sweep: "Sweeps" };
  const WIDTH = 110;
  const HEIGHT = 26;

  const rows = new Map();
  const ticked = new Set();
  let list = XP.report.list;

  const openAddress = (names) => `open?${new URLSearchParams(names.map((name) => ["name", name]))}`;

  const curve = (values) => {
    if (values.length < 2) return null;
    const low = Math.min(...values);
    const span = Math.max(...values) - low || 1;
    const points = values.map((value, place) => `${(2 + (place / (values.length - 1)) * (WIDTH - 4)).toFixed(1)},${(HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6)).toFixed(1)}`);
    const label = `training reward from ${XP.num(values[0], 3)} to ${XP.num(values[values.length - 1], 3)}`;
    return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label, class: "sparkline" },
      svg("title", {}, label), svg("polyline", { points: points.join(" ") }));
  };

  const tick = (row) => h("input", {
    type: "checkbox", value: row.name, checked: ticked.has(row.name), "aria-label": `compare ${row.name}`,
    onchange: (event) => { ticked[event.target.checked ? "add" : "delete"](row.name); drawBar(); },
  });

  const addWord = (word) => {
    box.value = [...new Set([...box.value.split(/\s+/).filter(Boolean), word])].join(" ");
    ask();
  };

  // What tells a run of a sweep from the others.
  const pointOf = (name) => list.sweeps.map((sweep) => sweep.points[name]).find(Boolean);

  const nameCell = (row) => [
    h("a", { href: openAddress(row.runs || [row.name]) }, row.runs ? `sweep ${row.name}` : row.name),
    row.tags.map((tag) => h("button", { class: "tag", title: `only with this tag`, onclick: () => addWord(`tag=${tag}`) }, tag)),
    h("div", { class: "note" }, row.title),
    pointOf(row.name) && h("div", { class: "point" }, pointOf(row.name)),
    row.note && h("div", { class: "own-note" }, row.note),
    row.remark && h("div", { class: "note warn" }, row.remark),
  ];

  const verdictCell = (row) => {
    const word = row.verdict && row.status === "succeeded" ? row.verdict : row.status;
    return h("span", { class: `badge ${word}`, title: row.sentence || row.status }, word);
  };

  const COLUMNS = [
    { title: "", value: (row) => ticked.has(row.name), show: (row) => (row.runs ? null : tick(row)), kind: "tick" },
    { title: "name", value: (row) => row.name, show: nameCell, kind: "run-name" },
    { title: "verdict", value: (row) => row.verdict || row.status, show: verdictCell, kind: "verdict-cell" },
    { title: "before", value: (row) => row.before?.[0], show: (row) => XP.estimate(row.before), isNumber: true, kind: "number before" },
    { title: "after", value: (row) => row.after?.[0], show: (row) => XP.estimate(row.after), isNumber: true, kind: "number after" },
    { title: "training", value: (row) => row.curve?.[row.curve.length - 1], show: (row) => [row.curve && curve(row.curve), h("div", { class: "note" }, row.progress)], isNumber: true, kind: "curve-cell" },
    { title: "took", value: (row) => row.seconds, show: (row) => XP.time(row.seconds), isNumber: true, kind: "number took" },
    { title: "machine", value: (row) => row.machine, show: (row) => [row.machine, row.host && h("div", { class: "note" }, row.host)], kind: "machine" },
    { title: "started (UTC)", value: (row) => row.started, show: (row) => row.started.slice(0, 16).replace("T", " "), kind: "started" },
  ];

  const box = h("input", { type: "search", id: "words", placeholder: "text, tag=WORD, seed=1, learning_rate=1e-5", "aria-label": "filter by text or key=value", maxlength: 300 });
  const kind = h("select", { id: "kind", "aria-label": "kind" }, Object.entries(KINDS).map(([value, title]) => h("option", { value }, title)));
  const actions = h("span", { class: "bar" });
  const state = h("p", { class: "note", role: "status" });
  const table = XP.table(COLUMNS, []);
  table.className = "cards";

  // A sweep as a row: its best run's reward, and the time of all.
  const sweepRow = (sweep) => {
    const own = sweep.runs.map((name) => rows.get(name)).filter(Boolean);
    const best = own.filter((row) => row.after).sort((one, other) => other.after[0] - one.after[0])[0];
    const statuses = [...new Set(own.map((row) => row.status))];
    return {
      name: sweep.name, runs: own.map((row) => row.name), tags: [], note: "", remark: "", verdict: null,
      title: `${own.length} runs · ${sweep.words}${best ? ` · best: ${sweep.points[best.name] || best.name}` : ""}`,
      status: statuses.includes("running") ? "running" : statuses.length === 1 ? statuses[0] : "mixed",
      before: null, after: best?.after, curve: best?.curve, machine: own[0]?.machine || "",
      seconds: own.reduce((sum, row) => sum + (row.seconds || 0), 0),
      started: own.map((row) => row.started).sort()[0] || "",
    };
  };

  const chosen = () => {
    const found = list.names.map((name) => rows.get(name)).filter(Boolean);
    if (kind.value === "sweep") {
      const names = new Set(list.names);
      return list.sweeps.filter((sweep) => sweep.runs.some((name) => names.has(name))).map(sweepRow);
    }
    return kind.value === "all" ? found : found.filter((row) => row.kind === kind.value);
  };

  const drawBar = () => {
    const names = [...ticked].filter((name) => rows.has(name));
    const open = names.length && h("button", { class: "main", onclick: () => { location.href = openAddress(names); } }, names.length > 1 ? `Compare ${names.length}` : "Open");
    const clear = names.length && h("button", { onclick: () => { ticked.clear(); draw(); } }, "Clear");
    XP.fill(actions, open || null, clear || null);
  };

  const draw = () => {
    const found = chosen();
    drawBar();
    const left = list.left ? `; ${list.left.toLocaleString("en")} of ${list.total.toLocaleString("en")} are still being read` : "";
    XP.fill(state, `${KINDS[kind.value]}: ${found.length.toLocaleString("en")}${left}`);
    table.update(found);
    table.querySelectorAll(".tick input").forEach((input) => { input.checked = ticked.has(input.value); });
  };

  const take = (fresh) => {
    const isSame = !fresh.rows.length && fresh.left === list.left && String(fresh.names) === String(list.names);
    list = fresh;
    fresh.rows.forEach((row) => rows.set(row.name, row));
    if (!isSame) draw();
  };

  let timer = null;
  const ask = async () => {
    clearTimeout(timer);
    try {
      take(await XP.ask("list", { since: list.version, words: box.value }));
      timer = setTimeout(ask, list.left ? 0 : FOLLOW_MS);
    } catch (error) {
      XP.fill(state, h("span", { class: "warn" }, `Not followed: ${error.message}`));
      timer = setTimeout(ask, FOLLOW_MS);
    }
  };

  XP.known = () => ({ rows: rows.size, left: list.left });

  XP.startPage = () => {
    XP.fill(document.getElementById("head"), h("h1", {}, document.title),
      h("p", { class: "note" }, "Outputs: ", h("code", {}, XP.report.outputs)),
      h("p", { class: "note" }, "Tick runs to compare them. A click on a column's head sorts. Rewards are means over held-out tasks, with the 95 % interval of the mean (clustered by task) below."));
    XP.fill(document.getElementById("main"), h("div", { class: "bar" }, box, kind, actions), state, table);
    document.getElementById("nav").remove();
    box.oninput = () => { clearTimeout(timer); timer = setTimeout(ask, TYPING_MS); };
    kind.onchange = draw;
    take(list);
    draw();
    timer = setTimeout(ask, list.left ? 0 : FOLLOW_MS);
  };
})();
