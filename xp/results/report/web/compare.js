"use strict";
// Several runs: what differs, curves over each other, seeds as a band, and tests on the same held-out tasks.
(() => {
  const { h } = XP;
  const AXES = { step: "rollout step", episodes: "episodes", time: "minutes" };
  const MAIN = "reward/avg_raw_reward";
  const LONG_LABEL = 30;
  const MOST_LABEL = 60;

  const result = (run, name) => run.held_out[name]?.reward_mean ?? null;
  XP.resultOf = (run) => result(run, "after");

  // What tells a run from the others: its values of the keys that differ, or its name where that is too long.
  const labelOf = (number, without = []) => {
    const { keys, values } = XP.report.comparison;
    const parts = keys.map((key, place) => [key, values[number][place]]).filter(([key]) => !without.includes(key));
    const text = parts.map(([key, value]) => `${key.split(".").pop()} ${value}`).join(", ");
    return text && text.length <= MOST_LABEL ? text : XP.report.runs[number].id;
  };

  XP.runsTable = () => {
    const { keys, values } = XP.report.comparison;
    const rows = XP.report.runs.map((run, number) => ({ run, number }));
    const asNumber = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : text);
    const own = keys.map((key, place) => ({
      title: key, value: ({ number }) => asNumber(values[number][place]), show: ({ number }) => values[number][place],
      isNumber: values.every((row) => typeof asNumber(row[place]) === "number"),
    }));
    const estimate = (name) => ({ run }) => {
      const found = run.held_out[name];
      return XP.estimate(found && [found.reward_mean, found.low, found.high]);
    };
    const isTrained = XP.report.runs.some((run) => !run.is_evaluation);
    return XP.table([
      { title: "run", value: ({ run }) => run.id, isName: true },
      isTrained && { title: "before", value: ({ run }) => result(run, "before"), show: estimate("before"), isNumber: true },
      { title: "after", value: ({ run }) => result(run, "after"), show: estimate("after"), isNumber: true },
      { title: "verdict", value: ({ run }) => run.verdict.word, show: ({ run }) => XP.badge(run.verdict.word) },
      ...own,
      { title: "status", value: ({ run }) => run.status },
      isTrained && { title: "steps", value: ({ run }) => run.metrics.train?.step.length || 0, isNumber: true },
    ].filter(Boolean), rows, { onRow: ({ number }) => XP.go({ run: number, phase: null, step: null, row: null, task: null }) });
  };

  const xOf = (run, axis) => {
    const { step, time, values } = run.metrics.train;
    if (axis === "episodes") {
      let sum = 0;
      return (values["episodes/num"] || step.map(() => 1)).map((count) => (sum += count || 0));
    }
    return axis === "time" ? time.map((at) => (at - time[0]) / 60) : step;
  };

  // The mean over a group's runs with the smallest and the largest of them, where they share a point.
  const band = (runs, name, axis) => {
    const points = new Map();
    for (const run of runs) {
      const y = run.metrics.train?.values[name];
      if (!y) continue;
      xOf(run, axis).forEach((x, place) => {
        if (y[place] === null) return;
        if (!points.has(x)) points.set(x, []);
        points.get(x).push(y[place]);
      });
    }
    const x = [...points.keys()].sort((one, other) => one - other);
    const of = (reduce) => x.map((at) => reduce(points.get(at)));
    return { x, mean: of((own) => own.reduce((sum, one) => sum + one, 0) / own.length), low: of((own) => Math.min(...own)), high: of((own) => Math.max(...own)) };
  };

  const linesOf = (name, axis, asBands) => {
    const { runs, comparison } = XP.report;
    const lines = [];
    const bands = [];
    const groups = asBands ? comparison.groups : runs.map((run, number) => [number]);
    groups.forEach((numbers, place) => {
      const found = band(numbers.map((number) => runs[number]), name, axis);
      if (!found.x.length) return;
      const colour = XP.lineColour(place);
      const dash = place % 16 >= 8 ? [6, 4] : undefined;
      const label = numbers.length > 1 ? `${labelOf(numbers[0], ["seed"])}: mean of ${numbers.length} seeds` : labelOf(numbers[0]);
      const at = lines.length;
      lines.push({ label, x: found.x, y: found.mean, colour, dash });
      if (numbers.length > 1) {
        lines.push({ label: "largest", x: found.x, y: found.high, isBound: true, isQuiet: true }, { label: "smallest", x: found.x, y: found.low, isBound: true, isQuiet: true });
        bands.push([at + 1, at + 2, at]);
      }
    });
    return { lines, bands };
  };

  const charts = (axis, asBands) => {
    const names = new Set(XP.report.runs.flatMap((run) => Object.keys(run.metrics.train?.values || {})));
    const order = [MAIN, ...[...names].filter((name) => name !== MAIN).sort()];
    return order.filter((name) => names.has(name)).map((name) => {
      const { lines, bands } = linesOf(name, axis, asBands);
      const isLong = lines.some((line) => line.label.length > LONG_LABEL);
      return XP.chart({
        title: XP.title(name), metric: name, lines, bands, xLabel: AXES[axis], isLarge: name === MAIN, isSynced: axis === "step", isBare: isLong && name !== MAIN,
      });
    });
  };

  const overlay = () => {
    const place = h("div", { class: "charts" });
    const hasSeeds = XP.report.comparison.groups.some((numbers) => numbers.length > 1);
    const axis = h("select", { id: "axis" }, Object.entries(AXES).map(([value, title]) => h("option", { value }, title)));
    const bands = h("input", { type: "checkbox", id: "bands", checked: hasSeeds });
    const draw = () => {
      const isTime = axis.value === "time";
      bands.disabled = isTime;
      XP.fill(place, charts(axis.value, bands.checked && !isTime));
    };
    axis.onchange = draw;
    bands.onchange = draw;
    draw();
    return [h("div", { class: "bar" }, h("label", {}, "by ", axis), hasSeeds && h("label", {}, bands, "seeds as a band (mean, smallest, largest)")),
      h("p", { class: "note" }, "A run has the same colour in every chart; the first one names them."), place];
  };

  const pairs = () => {
    const { pairs: found, not_paired: reasons } = XP.report.comparison;
    const interval = (one) => (one.low === null ? "–" : `${one.low.toFixed(3)} to ${one.high.toFixed(3)}`);
    return [
      found.length > 0 && h("p", { class: "note" }, `Each against ${found[0].first} on the same held-out tasks; p values adjusted for their number (Holm).`),
      found.length > 0 && XP.table([
        { title: "run", value: (one) => one.second },
        { title: "difference", value: (one) => one.difference, show: (one) => one.difference.toFixed(3), isNumber: true },
        { title: "95 % interval", value: (one) => one.low, show: interval, isNumber: true },
        { title: "p", value: (one) => one.p_holm, isNumber: true },
        { title: "tasks", value: (one) => one.num_tasks, isNumber: true },
        { title: "what was found", value: (one) => one.verdict },
      ], found),
      reasons.map((reason) => h("p", { class: "warn" }, reason)),
    ];
  };

  // Sections of a page of several runs, which stand before those of the chosen one.
  XP.comparisonOf = () => {
    const runs = XP.section("runs", "Runs and what differs", h("p", { class: "note" }, "A row opens its run below. A click on a column's head sorts. Below a reward is its 95 % interval, clustered by task."), XP.runsTable());
    const sweep = XP.sweepOf();
    const tasks = XP.tasksAcross();
    const isTrained = XP.report.runs.some((run) => run.metrics.train);
    return [
      ["runs", "Runs", runs],
      ...(sweep ? [["sweep", "Sweep", XP.section("sweep", "Sweep: keys and held-out reward", sweep)]] : []),
      ...(isTrained ? [["over", "Together", XP.section("over", "Curves over each other", overlay())]] : []),
      ["pairs", "Paired", XP.section("pairs", "Paired comparison", pairs())],
      ...(tasks ? [["tasks", "Tasks", XP.section("tasks", "Task by task", tasks)]] : []),
    ].map(([id, title, element]) => ({ id, title, element }));
  };
})();
