"use strict";
// Curves: uPlot draws them; a click or Enter on a point opens its step.
(() => {
  const { h } = XP;
  // Charts of the page; their numbers are compared with metrics.jsonl by a test.
  const charts = XP.charts = [];

  // Charts of one run that belong together, of one unit each; every other metric has a chart of its own.
  const GROUPS = [
    ["Groups with a pass (pass@k)", /^reward\/avg_pass_at_/],
    ["Shares of episodes", /^episodes\/(void|truncated|malformed|finished)$/],
    ["Tasks by their pass rate", /^curriculum\/(untried|below|in_bounds|above)$/],
    ["KL divergence, and distance to the teacher", /^training\/(distill_)?kl$/],
    ["Seconds of a step, and its parts", /^time\/(?!start_s$)/],
    ["Gradient norm", /^training\/(critic_)?grad_norm$/],
    ["Learning rate", /^training\/(critic_)?learning_rate$/],
    ["Memory of the fullest GPU", /^gpu\/memory_/],
  ];
  const REWARD = "reward/avg_raw_reward";
  const IN_MAIN = /^reward\/avg_raw_reward$/;

  const groupsOf = (names) => {
    const left = names.filter((name) => !IN_MAIN.test(name));
    const found = GROUPS.map(([title, pattern]) => [title, left.filter((name) => pattern.test(name))]).filter(([, own]) => own.length > 1);
    const used = new Set(found.flatMap(([, own]) => own));
    return [...found, ...left.filter((name) => !used.has(name)).map((name) => [XP.title(name), [name]])];
  };

  const axes = (xLabel) => {
    const shared = { stroke: XP.colour("text-soft"), grid: { stroke: XP.colour("rule"), width: 1 }, ticks: { stroke: XP.colour("rule") }, font: "12px system-ui" };
    const values = (plot, splits) => splits.map((value) => (value === null ? "" : XP.num(value, 3)));
    const incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7];
    return [{ ...shared, label: xLabel, labelSize: 20, size: 36, incrs }, { ...shared, size: 62, values }];
  };

  const seriesOf = (line, number) => {
    const colour = line.colour || XP.lineColour(number);
    return {
      label: line.label,
      class: line.isQuiet ? "quiet" : undefined,
      stroke: line.isBound ? "transparent" : colour,
      width: line.isPoints ? 0 : 2,
      dash: line.dash,
      spanGaps: true,
      points: line.isPoints ? { show: true, size: 9, fill: colour } : { show: line.isBound ? false : undefined, size: 5 },
      value: shownValue,
    };
  };
  // The legend's value: at the cursor, or else the last one that is known.
  const shownValue = (plot, value, series, place) => {
    const known = place === null || place === undefined ? plot.data[series].filter((one) => one !== null && one !== undefined).at(-1) : value;
    return known === null || known === undefined ? " " : XP.num(known);
  };

  // Of a line that is 0 throughout, uPlot's own range goes up to 100.
  const rangeOf = (bars) => (plot, low, high) => {
    const ends = [low, high, ...bars.flatMap((bar) => [bar.low, bar.high])].filter((value) => value !== null);
    const [least, most] = [Math.min(...ends), Math.max(...ends)];
    return !ends.length || (least === 0 && most === 0) ? [0, 1] : uPlot.rangeNum(least, most, 0.1, true);
  };
  // Marks at the first and the last step lie inside the axes.
  const withMargin = (plot, low, high) => {
    const margin = 0.03 * (high - low || 1);
    return [low - margin, high + margin];
  };
  const tint = (colour) => `color-mix(in srgb, ${colour} 22%, transparent)`;

  // Error bars: {x, low, high, colour}.
  const drawBars = (plot, bars) => {
    const { ctx } = plot;
    ctx.save();
    ctx.lineWidth = 2 * devicePixelRatio;
    for (const { x, low, high, colour } of bars) {
      const left = plot.valToPos(x, "x", true);
      const [top, bottom] = [high, low].map((value) => plot.valToPos(value, "y", true));
      const half = 5 * devicePixelRatio;
      ctx.strokeStyle = colour;
      ctx.beginPath();
      for (const [fromX, fromY, toX, toY] of [[left, top, left, bottom], [left - half, top, left + half, top], [left - half, bottom, left + half, bottom]]) {
        ctx.moveTo(fromX, fromY);
        ctx.lineTo(toX, toY);
      }
      ctx.stroke();
    }
    ctx.restore();
  };

  const options = (host, given, lines, height) => ({
    width: Math.max(240, host.clientWidth),
    height,
    scales: { x: { time: false, range: given.lines.some((line) => line.isPoints) || given.bars?.length ? withMargin : undefined }, y: { range: rangeOf(given.bars || []) } },
    legend: { live: true, show: !given.isBare },
    cursor: { sync: given.isSynced ? { key: "steps" } : undefined, points: { size: 8 }, drag: { x: true, y: false } },
    axes: axes(given.xLabel),
    series: [{ label: given.xLabel, value: shownValue }, ...lines.map(seriesOf)],
    hooks: { draw: [(plot) => drawBars(plot, given.bars || [])] },
    bands: (given.bands || []).map(([high, low, of]) => ({
      series: [high + 1, low + 1], fill: tint(lines[of].colour || XP.lineColour(of)),
    })),
  });

  // A chart: {title, unit, lines: [{label, x, y, colour, isPoints, isBound, dash}], bands: [[high, low, of]], bars, metric:
  // its name for the explanation and the unit, note, onPick, isBare: without a legend}.
  XP.chart = (given) => {
    const host = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${given.title}: ${describe(given.lines)}` });
    const figure = h("figure", { class: given.isLarge ? "chart large" : "chart" }, h("figcaption", { title: meaning(given) }, given.title, " ", h("span", { class: "unit" }, unitOf(given))), given.note && h("p", { class: "note" }, given.note), host);
    const entry = { plot: null, given, host, figure };
    const draw = () => {
      entry.plot?.destroy();
      const { lines } = entry.given;
      const data = uPlot.join(lines.map((line) => [line.x, line.y]));
      entry.plot = new uPlot(options(host, entry.given, lines, entry.given.isLarge ? 320 : 200), data, host);
      entry.plot.setLegend({ idx: null }, false);
      if (entry.given.onPick) listen(entry);
    };
    entry.draw = () => host.isConnected && host.clientWidth > 0 && draw();
    charts.push(entry);
    watcher.observe(host);
    return figure;
  };

  const unitOf = (given) => given.unit || XP.report.meanings[given.metric]?.[0];
  const meaning = (given) => {
    const found = XP.report.meanings[given.metric];
    return found ? `${found[1]} ${found[2]} Unit: ${found[0]}.` : null;
  };
  const describe = (lines) => lines.filter((line) => !line.isBound).map((line) => {
    const known = line.y.filter((value) => value !== null);
    return known.length ? `${line.label} from ${XP.num(known[0])} to ${XP.num(known[known.length - 1])}` : line.label;
  }).join("; ");

  const listen = (entry) => {
    const { plot, host } = entry;
    const pick = () => {
      const place = plot.cursor.idx;
      if (place !== null && place !== undefined) entry.given.onPick(plot.data[0][place]);
    };
    let from = 0;
    plot.over.addEventListener("mousedown", (event) => { from = event.clientX; });
    plot.over.addEventListener("click", (event) => Math.abs(event.clientX - from) < 4 && pick());
    host.onkeydown = (event) => {
      const sign = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (sign) {
        const last = plot.data[0].length - 1;
        const place = Math.min(last, Math.max(0, (plot.cursor.idx ?? (sign > 0 ? -1 : last + 1)) + sign));
        plot.setCursor({ left: plot.valToPos(plot.data[0][place], "x"), top: 10 });
        event.preventDefault();
      } else if (event.key === "Enter") pick();
    };
  };

  // Charts are drawn when they come into sight, and anew when width or colours change.
  const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    const entry = isIntersecting && charts.find((one) => one.host === target);
    if (entry && entry.plot === null) entry.draw();
  }), { rootMargin: "300px" });
  const watcher = {
    observe: (host) => {
      seen.observe(host);
      resized.observe(host);
    },
  };
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const entry = charts.find((one) => one.host === target);
    if (entry?.plot && Math.abs(entry.plot.width - target.clientWidth) > 2 && target.clientWidth > 0) {
      entry.plot.setSize({ width: Math.max(240, target.clientWidth), height: entry.plot.height });
    }
  }));
  XP.redraw = () => charts.forEach((entry) => entry.plot && entry.draw());
  window.addEventListener("beforeprint", () => charts.forEach((entry) => entry.plot === null && entry.draw()));
  XP.forgetCharts = () => {
    charts.forEach((entry) => { seen.unobserve(entry.host); resized.unobserve(entry.host); entry.plot?.destroy(); });
    charts.length = 0;
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => XP.redraw());

  const heldOutPoints = (run, lastStep) => {
    const points = [];
    const during = run.metrics.evaluate_during;
    const own = during?.values[`evaluation/during/${REWARD}`];
    if (run.held_out.before) points.push([0, run.held_out.before.reward_mean]);
    if (own) during.step.forEach((step, place) => own[place] !== null && points.push([step, own[place]]));
    if (run.held_out.after && !points.some(([step]) => step === lastStep)) points.push([lastStep, run.held_out.after.reward_mean]);
    return points.sort((one, other) => one[0] - other[0]);
  };

  // Reward of training with its interval, and of the held-out tasks.
  const rewardChart = (run, onPick) => {
    const { reward } = run;
    const own = run.metrics.train;
    const value = own?.values["reward/avg_raw_reward"];
    const steps = own?.step || reward.step;
    const at = new Map(reward.step.map((step, place) => [step, place]));
    const column = (name) => steps.map((step) => (at.has(step) ? reward[name][at.get(step)] : null));
    const lines = [{ label: "training", x: steps, y: value || column("value") }];
    const bands = [];
    if (reward.step.length) {
      lines.push({ label: "95 % high", x: steps, y: column("high"), isBound: true, isQuiet: true }, { label: "95 % low", x: steps, y: column("low"), isBound: true, isQuiet: true });
      bands.push([1, 2, 0]);
    }
    const points = heldOutPoints(run, steps[steps.length - 1] || 0);
    const colour = XP.colour("held-out");
    const bars = [["before", 0], ["after", steps[steps.length - 1] || 0]]
      .filter(([name]) => typeof run.held_out[name]?.low === "number")
      .map(([name, x]) => ({ x, low: run.held_out[name].low, high: run.held_out[name].high, colour }));
    if (points.length) {
      lines.push({ label: "held-out", x: points.map(([step]) => step), y: points.map(([, mean]) => mean), isPoints: points.length < 3, colour });
    }
    const note = [
      reward.step.length && "Band: 95 % confidence interval of the mean of the step's episodes, clustered by task: with other tasks of the same kind, 95 of 100 such intervals contain the true mean.",
      bars.length && "Bars: the same interval of the mean over the held-out tasks.",
    ].filter(Boolean).join(" ");
    return XP.chart({ title: "Reward: mean of a step's episodes", metric: REWARD, note, lines, bands, bars, onPick, isLarge: true, isSynced: true, xLabel: "rollout step" });
  };

  // A metric by step; values with no neighbour to join them to are points.
  const lineOf = ({ step, values }, name) => ({ label: XP.title(name), x: step, y: values[name], isPoints: values[name].filter((value) => value !== null).length < 3 });

  XP.curvesOf = (run) => {
    const onPick = (step) => XP.openStep(run, step);
    const train = run.metrics.train;
    const charts = [];
    if (train || run.reward.step.length) charts.push(rewardChart(run, onPick));
    for (const [title, names] of groupsOf(Object.keys(train?.values || {}))) {
      const lines = names.map((name) => lineOf(train, name));
      charts.push(XP.chart({ title, metric: names[0], lines, onPick, isSynced: true, xLabel: "rollout step" }));
    }
    for (const [stage, xLabel] of [["evaluate_during", "rollout step"], ["sft", "update of the fine-tuning"]]) {
      const found = run.metrics[stage];
      for (const name of Object.keys(found?.values || {})) {
        const title = stage === "sft" ? `Fine-tuning: ${XP.title(name)}` : XP.title(name);
        charts.push(XP.chart({ title, metric: name, lines: [lineOf(found, name)], xLabel }));
      }
    }
    return charts.length
      ? [h("p", { class: "note" }, "A click on a point, or arrow keys and Enter, opens the episodes of its step. Drag to zoom, double click for all."), h("div", { class: "charts" }, charts)]
      : [h("p", { class: "note" }, "No metrics yet.")];
  };
})();
