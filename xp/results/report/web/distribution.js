"use strict";
// How the rewards of a step's episodes are distributed, and how often each tool is called, by step.
(() => {
  const { h, svg } = XP;
  const BINS = 12;
  const MOST_COLUMNS = 100;
  const HEIGHT = 220;
  const LEFT = 58;
  const BOTTOM = 40;

  // Training steps -> rewards of their scored episodes, of the attempts that counted.
  const rewardsOf = (run) => {
    const { step, reward } = run.episodes.columns;
    const found = new Map();
    for (const number of XP.choose(run, { phase: "train" })) {
      if (reward[number] === null) continue;
      if (!found.has(step[number])) found.set(step[number], []);
      found.get(step[number]).push(reward[number]);
    }
    return [...found].sort(([one], [other]) => one - other);
  };

  // Neighbouring steps share a column where there are more steps than columns.
  const columnsOf = (steps) => {
    const size = Math.ceil(steps.length / MOST_COLUMNS);
    const found = [];
    for (let at = 0; at < steps.length; at += size) {
      const own = steps.slice(at, at + size);
      found.push({ first: own[0][0], last: own[own.length - 1][0], rewards: own.flatMap(([, rewards]) => rewards) });
    }
    return found;
  };

  const histogram = (run) => {
    const steps = rewardsOf(run);
    if (!steps.length) return null;
    const columns = columnsOf(steps);
    const all = columns.flatMap((one) => one.rewards);
    const least = all.reduce((one, other) => Math.min(one, other), 0);
    const most = all.reduce((one, other) => Math.max(one, other), 1);
    const bin = (reward) => Math.min(BINS - 1, Math.floor(((reward - least) / (most - least)) * BINS));
    const width = Math.max(280, Math.min(1100, window.innerWidth - 60));
    const cell = Math.min(60, (width - LEFT - 8) / columns.length);
    const row = (HEIGHT - BOTTOM) / BINS;
    const bars = columns.map((column, place) => {
      const counts = Array(BINS).fill(0);
      column.rewards.forEach((reward) => { counts[bin(reward)] += 1; });
      const name = column.first === column.last ? `step ${column.first}` : `steps ${column.first} to ${column.last}`;
      const open = () => XP.openStep(run, column.first);
      const rects = counts.map((count, at) => count > 0 && svg("rect", {
        x: LEFT + place * cell, y: (BINS - 1 - at) * row, width: Math.max(1, cell - 1), height: row - 1, "fill-opacity": (0.12 + 0.88 * (count / column.rewards.length)).toFixed(3),
      }, svg("title", {}, `${name}: ${count} of ${column.rewards.length} episodes have a reward from ${XP.num(least + (at * (most - least)) / BINS, 3)} to ${XP.num(least + ((at + 1) * (most - least)) / BINS, 3)}`)));
      return svg("g", { class: "cell", role: "link", tabindex: 0, "aria-label": name, onclick: open, onkeydown: (event) => event.key === "Enter" && open() },
        svg("rect", { class: "ground", x: LEFT + place * cell, y: 0, width: cell, height: HEIGHT - BOTTOM }), rects);
    });
    const labels = [0, 0.5, 1].map((share) => svg("text", { x: LEFT - 6, y: Math.max(10, (HEIGHT - BOTTOM) * (1 - share)), "text-anchor": "end" }, XP.num(least + share * (most - least), 3)));
    const every = Math.max(1, Math.ceil((28 / cell)));
    const ticks = columns.map((column, place) => place % every === 0 && svg("text", { x: LEFT + (place + 0.5) * cell, y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, column.first));
    return h("figure", { class: "chart large" }, h("figcaption", {}, "Distribution of a step's rewards ", h("span", { class: "unit" }, "share of the scored episodes")),
      h("p", { class: "note" }, "Each column is a step. The stronger the colour of a cell, the larger the share of the step's scored episodes with this reward. A click opens the step."),
      h("div", { class: "wide", tabindex: 0 }, svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, class: "histogram", role: "group", "aria-label": "distribution of rewards by step" },
        bars, labels, ticks, svg("text", { x: LEFT, y: HEIGHT - 6 }, "rollout step"))));
  };

  const tools = (run) => {
    const { step, tools: calls } = run.calls;
    const lines = Object.entries(calls).map(([label, y]) => ({ label, x: step, y }));
    if (!lines.length) return null;
    return XP.chart({ title: "Calls of each tool", unit: "calls in an episode, mean of the step", lines, onPick: (at) => XP.openStep(run, at), isSynced: true, isLarge: true, xLabel: "rollout step" });
  };

  XP.distributionOf = (run) => {
    const found = [histogram(run), tools(run)].filter(Boolean);
    return found.length ? [h("div", { class: "charts" }, found)] : [h("p", { class: "note" }, "No training episodes are on record, or they were left out (--episodes none).")];
  };
})();
