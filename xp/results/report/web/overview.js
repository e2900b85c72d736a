"use strict";
// What was run and what became of it.
(() => {
  const { h } = XP;
  const WORDS = {
    learned: "Held-out reward rose, by the paired test of before and after.",
    worse: "Held-out reward fell, by the paired test of before and after.",
    flat: "No difference between before and after was shown.",
    incomplete: "There is no result to judge yet.",
    broken: "The run failed.",
  };

  XP.badge = (word, kind) => h("span", { class: `badge ${kind || word}`, title: WORDS[word] || "" }, word);

  const figure = (label, value, note) =>
    h("div", { class: "figure" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), note && h("div", { class: "note" }, note));

  const heldOut = (run, name) => {
    const found = run.held_out[name];
    if (!found) return null;
    const interval = typeof found.low === "number" ? `95 % interval ${found.low.toFixed(3)} to ${found.high.toFixed(3)}` : "";
    const passes = typeof found.pass_share === "number" ? `${Math.round(found.pass_share * 100)} % of ` : "";
    const voids = found.num_void ? `, ${found.num_void} void` : "";
    const label = run.is_evaluation ? "mean reward" : `held-out reward ${name}`;
    return figure(label, found.reward_mean.toFixed(3), [h("div", {}, interval), `${passes}${XP.num(found.num_scored)} episodes${passes ? " pass" : ""}${voids}`]);
  };

  const last = (run, name) => {
    const column = (run.metrics.train?.values[name] || []).filter((value) => value !== null);
    return column.length ? column[column.length - 1] : null;
  };

  const paired = (pair) => {
    if (!pair) return null;
    const interval = pair.low === null ? "" : `, 95 % interval ${pair.low.toFixed(3)} to ${pair.high.toFixed(3)}`;
    return figure("difference", `${pair.difference >= 0 ? "+" : ""}${pair.difference.toFixed(3)}`, `${pair.num_tasks} tasks${interval}`);
  };

  XP.overviewOf = (run) => {
    const { verdict } = run;
    const steps = run.metrics.train?.step.length || 0;
    const label = run.held_out.before?.label || run.held_out.after?.label;
    return [
      h("p", { class: "verdict" }, XP.badge(verdict.word), " ", verdict.sentence),
      verdict.symptoms.map((text) => h("p", { class: "warn" }, text)),
      label && h("p", { class: "warn" }, label),
      run.held_out.problem && h("p", { class: "warn" }, run.held_out.problem),
      h("div", { class: "figures" },
        heldOut(run, "before"), heldOut(run, "after"), paired(verdict.paired),
        run.metrics.train && figure("training reward, last step", XP.num(last(run, "reward/avg_raw_reward"), 3), `${steps} rollout steps`),
        figure("episodes", XP.num(XP.count(run)), run.unreadable ? `${run.unreadable} lines could not be read` : null)),
      verdict.environment.length > 0 && h("details", { open: !/^0 of .*, 0 more .*, 0 restarts/.test(verdict.environment[0]) },
        h("summary", {}, "Health of the environments"), h("pre", {}, verdict.environment.join("\n"))),
      run.is_evaluation && run.environments.length > 0 && environments(run),
      h("dl", { class: "facts" }, run.facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      run.stages.length ? h("details", {}, h("summary", {}, "Stages"), stages(run)) : null,
    ];
  };

  const environments = (run) => XP.table([
    { title: "environment", value: (row) => row.env },
    { title: "mean reward", value: (row) => row.reward_mean ?? null, show: (row) => XP.estimate(row.reward_mean === undefined ? null : [row.reward_mean, row.low, row.high]), isNumber: true },
    { title: "pass", value: (row) => row.pass_share ?? null, show: (row) => (typeof row.pass_share === "number" ? `${Math.round(row.pass_share * 100)} %` : "–"), isNumber: true },
    { title: "tasks", value: (row) => row.num_tasks, isNumber: true },
    { title: "episodes", value: (row) => row.num_episodes, isNumber: true },
    { title: "void", value: (row) => row.num_void, isNumber: true },
    { title: "turns", value: (row) => row.turns_mean, isNumber: true },
    { title: "calls", value: (row) => row.tool_calls_mean, isNumber: true },
    { title: "tokens", value: (row) => row.tokens_mean, isNumber: true },
    { title: "seconds", value: (row) => row.seconds_mean, isNumber: true },
  ], run.environments);

  const stages = (run) => XP.table([
    { title: "attempt", value: (row) => row.attempt, isNumber: true },
    { title: "stage", value: (row) => row.stage },
    { title: "status", value: (row) => row.status },
    { title: "took", value: (row) => row.seconds, show: (row) => XP.time(row.seconds), isNumber: true },
    { title: "exit code", value: (row) => row.exit_code, isNumber: true },
    { title: "log", value: (row) => row.log, show: (row) => h("code", {}, row.log) },
  ], run.stages);

  XP.planOf = (run) => XP.table([
    { title: "what", value: (row) => row[0] },
    { title: "planned", value: (row) => row[1] },
    { title: "measured", value: (row) => row[2] },
  ], run.plan);

  XP.specOf = (run) => {
    const differs = new Set(run.differences.map(([key]) => key));
    const changed = run.differences.length
      ? XP.table([
        { title: "key", value: (row) => row[0], show: (row) => h("code", {}, row[0]) },
        { title: "there", value: (row) => row[1], show: (row) => h("code", {}, row[1]) },
        { title: "this run", value: (row) => row[2], show: (row) => h("code", {}, row[2]) },
      ], run.differences)
      : h("p", { class: "note" }, `The same as ${run.base}.`);
    const whole = XP.table([
      { title: "key", value: (row) => row[0], show: (row) => h("code", {}, row[0]) },
      { title: "value", value: (row) => row[1], show: (row) => h("code", { class: differs.has(row[0]) ? "changed" : null }, row[1]) },
    ], run.spec, { most: 400 });
    return [
      run.base ? [h("p", { class: "note" }, `What differs from ${run.base}:`), changed] : null,
      h("details", {}, h("summary", {}, `The whole spec (${run.spec.length} keys)`), whole),
    ];
  };
})();
