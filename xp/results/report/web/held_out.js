"use strict";
// The held-out tasks before and after training, and of several runs or evaluations: the same task side by side.
(() => {
  const { h } = XP;
  const PHASES = { before: "evaluate/before", after: "evaluate/after" };

  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

  // Task -> its episodes and mean rewards on both sides.
  const tasksOf = (run) => {
    const found = new Map();
    for (const [side, phase] of Object.entries(PHASES)) {
      for (const number of XP.choose(run, { phase })) {
        const row = XP.row(run, number);
        if (!found.has(row.task)) found.set(row.task, { task: row.task, before: [], after: [] });
        found.get(row.task)[side].push(row);
      }
    }
    const rewards = (rows) => rows.map((row) => row.reward).filter((reward) => reward !== null);
    return [...found.values()].map((one) => {
      const before = mean(rewards(one.before));
      const after = mean(rewards(one.after));
      const gain = before === null || after === null ? null : after - before;
      const numbers = [...one.before, ...one.after].map((row) => row.number);
      return { ...one, meanBefore: before, meanAfter: after, gain, numbers, hasText: numbers.some((number) => XP.hasText(run, number)) };
    });
  };

  const FILTERS = {
    "all": () => true,
    "better": (one) => one.gain > 0,
    "worse": (one) => one.gain < 0,
    "the same": (one) => one.gain === 0,
    "void": (one) => one.before.length > 0 && one.after.length > 0 && one.gain === null,
  };

  const columns = (run) => [
    { title: "task", value: (one) => one.task },
    { title: "before", value: (one) => one.meanBefore, show: (one) => (one.before.length ? XP.reward(one.meanBefore) : "–"), isNumber: true },
    { title: "after", value: (one) => one.meanAfter, show: (one) => (one.after.length ? XP.reward(one.meanAfter) : "–"), isNumber: true },
    { title: "gain", value: (one) => one.gain, show: (one) => XP.num(one.gain, 3), isNumber: true },
    ...(XP.isLive ? [] : [{ title: "text", value: (one) => Number(one.hasText), show: (one) => (one.hasText ? "in this page" : "") }]),
  ];

  XP.heldOutOf = (run) => {
    const tasks = tasksOf(run).sort((one, other) => Number(other.hasText) - Number(one.hasText) || (one.gain ?? 9) - (other.gain ?? 9));
    if (!tasks.length) return [h("p", { class: "note" }, "No held-out episodes are on record.")];
    const counts = Object.entries(FILTERS).map(([name, passes]) => [name, tasks.filter(passes).length]);
    const place = h("div");
    const buttons = counts.filter(([, count]) => count).map(([name, count]) => {
      const onclick = (event) => {
        buttons.forEach((button) => button.setAttribute("aria-pressed", button === event.currentTarget));
        draw(name);
      };
      return h("button", { onclick, "aria-pressed": name === "all" }, `${name} ${count.toLocaleString("en")}`);
    });
    const draw = (name) => XP.fill(place, XP.table(columns(run), tasks.filter(FILTERS[name]), {
      most: 15, onRow: (one) => XP.openSide(run, one.task, one.numbers),
    }));
    draw("all");
    return [h("p", { class: "note" }, "A row opens the task's episodes before and after training side by side."), h("div", { class: "bar" }, buttons), place];
  };

  // Episodes of a run's final model, or of an evaluation.
  const final = (run) => XP.choose(run, { phase: run.is_evaluation ? "eval" : PHASES.after });

  XP.across = (task) => XP.report.runs.flatMap((run) =>
    final(run).filter((number) => XP.row(run, number).task === task).map((number) => [run.id, run, number]));

  // A row for each task that several have played, with the mean reward of each; null where there is none.
  XP.tasksAcross = () => {
    const { runs } = XP.report;
    const found = new Map();
    runs.forEach((run, place) => final(run).forEach((number) => {
      const { task, reward } = XP.row(run, number);
      if (!found.has(task)) found.set(task, runs.map(() => []));
      if (reward !== null) found.get(task)[place].push(reward);
    }));
    const rows = [...found].map(([task, rewards]) => {
      const means = rewards.map(mean);
      const known = means.filter((value) => value !== null);
      return { task, means, spread: Math.max(...known) - Math.min(...known), isShared: known.length > 1 };
    }).filter((row) => row.isShared).sort((one, other) => other.spread - one.spread);
    if (!rows.length) return null;
    const difference = { title: "difference", value: (row) => (row.means[0] === null || row.means[1] === null ? null : row.means[1] - row.means[0]), isNumber: true };
    return [
      h("p", { class: "note" }, "Mean reward of each task, with the largest differences first. A row opens the episodes side by side."),
      XP.table([
        { title: "task", value: (row) => row.task },
        ...runs.map((run, place) => ({ title: run.id, value: (row) => row.means[place], show: (row) => XP.num(row.means[place], 3), isNumber: true, kind: "number long" })),
        ...(runs.length === 2 ? [difference] : []),
      ], rows, { most: 25, onRow: (row) => XP.go({ across: row.task, row: null, task: null }) }),
    ];
  };
})();
