// Pyodide under Node.js: a fresh interpreter is a new instance in the same process.
import { createInterface } from "node:readline";
import { mkdtempSync, readFileSync, writeFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { tmpdir } from "node:os";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.BENCH_MODULES, "anything.js"));
const { loadPyodide } = await import(pathToFileURL(require.resolve("pyodide/pyodide.mjs")).href);
const root = mkdtempSync(join(tmpdir(), "bench-"));
const folders = new Map();
let live = null;

class Cannot extends Error {}

const reasons = {
  turn_preload: "numpy and pandas for it are on a content network, not in a package registry",
  keep: "no public way to save an interpreter",
  revive: "no public way to save an interpreter",
  fork: "no public way to copy an interpreter",
  create: "it has no sessions",
  prune: "it has no sessions",
  rate: "one interpreter at a time in one thread",
  hold: "its interpreters share one process with no end of their own",
};

function folderOf(files) {
  if (!folders.has(files)) {
    const folder = mkdtempSync(join(root, "files-"));
    for (let number = 0; number < files; number++) writeFileSync(join(folder, `${number}.txt`), "x".repeat(100));
    folders.set(files, folder);
  }
  return folders.get(files);
}

async function start(output) {
  return loadPyodide({ stdout: (line) => output.push(line + "\n"), stderr: () => {} });
}

const work = {
  async fresh({ code, preload = [], files = null, metered = true }) {
    if (preload.length) throw new Cannot(reasons.turn_preload);
    if (!metered) throw new Cannot("it is unmetered already");
    const folder = files === null ? null : folderOf(files);
    const output = [];
    const started = performance.now();
    const python = await start(output);
    if (folder !== null) {
      python.mountNodeFS("/app", folder);
      python.runPython("import os; os.chdir('/app')");
    }
    python.runPython(code);
    return { value: (performance.now() - started) / 1000, output: output.join("") };
  },

  async turn({ code, preload = [] }) {
    if (preload.length) throw new Cannot(reasons.turn_preload);
    if (live === null) {
      const output = [];
      live = { output, python: await start(output) };
    }
    live.output.length = 0;
    const started = performance.now();
    live.python.runPython(code);
    return { value: (performance.now() - started) / 1000, output: live.output.join("") };
  },
};

async function answer({ do: verb, ...request }) {
  try {
    if (!(verb in work)) throw new Cannot(reasons[verb] ?? "it has no such thing");
    return await work[verb](request);
  } catch (error) {
    if (error instanceof Cannot) return { cannot: error.message };
    return { error: String(error).slice(0, 500) };
  }
}

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
if (process.argv.includes("--first")) {
  const said = await answer({ do: "fresh", code: process.argv.at(-1) });
  const peak = /VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"));
  say({ ...said, peak_bytes: Number(peak[1]) * 1024 });
} else {
  for await (const line of createInterface({ input: process.stdin })) say(await answer(JSON.parse(line)));
}
rmSync(root, { recursive: true, force: true });
process.exit(0);
