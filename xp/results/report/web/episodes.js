"use strict";
// The episodes of a run: choose a phase, a step and a filter; see groups of samples, or one episode a row.
(() => {
  const { h } = XP;
  const FILTERS = {
    "all": (run, numbers) => numbers,
    "best": (run, numbers) => XP.atRank(run, numbers, 1),
    "median": (run, numbers) => XP.atRank(run, numbers, 0.5),
    "worst": (run, numbers) => XP.atRank(run, numbers, 0),
    "void": (run, numbers) => numbers.filter((number) => run.episodes.columns.reward[number] === null),
    "truncated": (run, numbers) => numbers.filter((number) => XP.row(run, number).status === "truncated"),
    "malformed calls": (run, numbers) => numbers.filter((number) => run.episodes.columns.malformed[number] > 0),
    "no tool call": (run, numbers) => numbers.filter((number) => run.episodes.columns.calls[number] === 0),
    "text in this page": (run, numbers) => numbers.filter((number) => XP.hasText(run, number)),
  };
  const PAGE = 50;

  XP.openStep = (run, step) => {
    XP.go({ run: XP.report.runs.indexOf(run), phase: "train", step, filter: null, row: null, task: null });
    document.getElementById("episodes").scrollIntoView();
    document.getElementById("step").focus({ preventScroll: true });
  };

  const steps = (run, phase) => {
    const { columns, names } = run.episodes;
    const place = names.phase.indexOf(phase);
    const found = new Set();
    columns.step.forEach((step, number) => columns.phase[number] === place && found.add(step));
    return [...found].sort((one, other) => one - other);
  };

  const rewardCell = (row) => {
    const width = row.reward === null ? 0 : Math.max(0, Math.min(1, row.reward)) * 100;
    const bar = h("span", { class: "reward-bar" }, h("span"));
    bar.firstChild.style.width = `${width}%`;
    return h("span", { class: row.reward === null ? "reward void" : "reward" }, XP.reward(row.reward), bar);
  };

  const columns = (run) => [
    { title: "phase", value: (row) => row.phase, isMinor: true },
    { title: "step", value: (row) => row.step, isNumber: true },
    { title: "task", value: (row) => row.task },
    { title: "sample", value: (row) => row.sample, isNumber: true, isMinor: true },
    { title: "reward", value: (row) => row.reward, show: rewardCell, isNumber: true },
    { title: "status", value: (row) => row.status },
    { title: "turns", value: (row) => row.turns, isNumber: true, isMinor: true },
    { title: "calls", value: (row) => row.calls, isNumber: true, isMinor: true },
    { title: "malformed", value: (row) => row.malformed, isNumber: true, isMinor: true },
    { title: "tokens", value: (row) => row.generated, isNumber: true, isMinor: true },
    { title: "seconds", value: (row) => row.seconds, isNumber: true, isMinor: true },
    ...(XP.isLive ? [] : [{ title: "text", value: (row) => Number(XP.hasText(run, row.number)), show: (row) => (XP.hasText(run, row.number) ? "yes" : "") }]),
  ];

  // A task's samples of one step as a row of rewards.
  const groupLine = (run, task, numbers) => {
    const rows = numbers.map((number) => XP.row(run, number)).sort((one, other) => one.sample - other.sample);
    const chips = rows.map((row) => h("button", {
      class: `chip ${row.status} ${XP.hasText(run, row.number) ? "" : "bare"}`,
      title: `sample ${row.sample}: ${row.status}, ${row.turns} turns`,
      onclick: () => XP.openRow(run, row.number, rows.map((one) => one.number)),
    }, XP.reward(row.reward)));
    const side = h("button", { class: "side", onclick: () => XP.openSide(run, task, rows.map((row) => row.number)) }, "side by side");
    return h("li", {}, h("span", { class: "task" }, task), h("span", { class: "chips" }, chips), side);
  };

  const groups = (run, numbers) => {
    const found = new Map();
    for (const number of numbers) {
      const { task } = XP.row(run, number);
      if (!found.has(task)) found.set(task, []);
      found.get(task).push(number);
    }
    return h("ul", { class: "groups" }, [...found].slice(0, 200).map(([task, own]) => groupLine(run, task, own)));
  };

  const select = (id, label, values, value, onchange) =>
    h("label", {}, label, h("select", { id, onchange: (event) => onchange(event.target.value) },
      values.map((one) => h("option", { value: one, selected: String(one) === String(value ?? "") }, one === "" ? "all" : one))));

  const stepControl = (all, step) => {
    const move = (by) => {
      const place = all.indexOf(step);
      const next = place < 0 ? (by > 0 ? 0 : all.length - 1) : place + by;
      if (next >= 0 && next < all.length) XP.go({ step: all[next], row: null, task: null });
    };
    const choose = (value) => XP.go({ step: value === "" ? null : Number(value), row: null, task: null });
    return [
      select("step", "step", ["", ...all], step, choose),
      h("button", { onclick: () => move(-1), "aria-label": "previous step" }, "◀"),
      h("button", { onclick: () => move(1), "aria-label": "next step" }, "▶"),
    ];
  };

  const searchBox = (state) => {
    const input = h("input", { type: "search", value: state.text || "", placeholder: "text in messages", "aria-label": "text in messages", maxlength: 200 });
    return h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); XP.go({ text: input.value, row: null, task: null }); } },
      input, h("button", {}, "Search"));
  };

  const withText = (run, numbers) => numbers.filter((number) => XP.hasText(run, number)).length;

  const listing = (run, numbers, state) => {
    const known = withText(run, numbers);
    const where = XP.isLive ? "" : `; the text of ${known.toLocaleString("en")} is in this page`;
    const note = h("p", { class: "note", role: "status" }, `${numbers.length.toLocaleString("en")} episodes${where}.`);
    const isStep = state.step !== undefined && !state.filter && !state.text;
    const rows = numbers.map((number) => XP.row(run, number));
    const table = XP.table(columns(run), rows, { most: PAGE, onRow: (row) => XP.openRow(run, row.number, numbers) });
    return [note, isStep ? [groups(run, numbers), h("details", {}, h("summary", {}, "As a table"), table)] : table];
  };

  let drawn = 0;
  const drawList = async (run, place, state) => {
    const turn = ++drawn;
    let numbers = XP.choose(run, { phase: state.phase, step: state.step });
    numbers = (FILTERS[state.filter] || FILTERS.all)(run, numbers);
    if (state.text) {
      XP.fill(place, h("p", { class: "note" }, "Searching ..."));
      try {
        numbers = await XP.search(run, numbers, state.text);
      } catch (error) {
        XP.fill(place, h("p", { class: "warn" }, `The search failed: ${error.message}`));
        return;
      }
    }
    if (turn === drawn) XP.fill(place, listing(run, numbers, state));
  };

  XP.episodesOf = (run) => {
    if (!XP.count(run)) return [h("p", { class: "note" }, "No episodes are on record, or they were left out (--episodes none).")];
    const controls = h("div", { class: "bar" });
    const place = h("div", { id: "episode-list" });
    let before = "";
    const draw = (state) => {
      const key = JSON.stringify([state.phase, state.step, state.filter, state.text, XP.isLive && XP.count(run)]);
      if (key === before) return;
      before = key;
      const { phase } = run.episodes.names;
      XP.fill(controls,
        select("phase", "phase", ["", ...phase], state.phase, (value) => XP.go({ phase: value, step: null, row: null, task: null })),
        state.phase ? stepControl(steps(run, state.phase), state.step) : null,
        select("filter", "filter", Object.keys(FILTERS), state.filter || "all", (value) => XP.go({ filter: value === "all" ? null : value, row: null, task: null })),
        searchBox(state));
      drawList(run, place, state);
    };
    XP.onState((state) => place.isConnected && draw(state));
    return [controls, place, XP.later(() => draw(XP.state))];
  };
})();
