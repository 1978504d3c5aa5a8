// Builds the pages into the Python package, which carries them to the wheel: using mmserve needs no node.
//
//   node build.mjs           writes the files
//   node build.mjs --check   fails if the files there are not what the source makes
//   node build.mjs --tests   bundles the tests into .tests/, for node --test

import { build } from "esbuild";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = dirname(fileURLToPath(import.meta.url));
const OUTPUT = join(ROOT, "../mmserve/httpserver/webui/static");
/** Each page has src/NAME/main.tsx, which becomes NAME.js and NAME.css. */
const PAGES = ["chat", "dashboard"];
/** Libraries whose licences THIRD_PARTY.txt repeats. */
const LIBRARIES = ["preact", "@preact/signals", "@preact/signals-core", "marked", "lowlight", "highlight.js", "devlop", "dequal"];
/** What no source of ours may hold: ways to run a string as code or to make markup of it, and foreign addresses. */
const FORBIDDEN = [/\binnerHTML\b/, /\bouterHTML\b/, /dangerouslySetInnerHTML/, /\beval\(/, /new Function\b/, /insertAdjacentHTML/, /document\.write/];

async function pages() {
  const result = await build({
    absWorkingDir: ROOT,
    entryPoints: PAGES.map((page) => ({ in: `src/${page}/main.tsx`, out: page })),
    outdir: OUTPUT,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022", "chrome123", "firefox121", "safari17.5"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    charset: "utf8",
    write: false,
  });
  const files = new Map(result.outputFiles.map((file) => [file.path.slice(OUTPUT.length + 1), Buffer.from(file.contents)]));
  for (const name of await readdir(join(ROOT, "src/static"))) files.set(name, await readFile(join(ROOT, "src/static", name)));
  files.set("THIRD_PARTY.txt", Buffer.from(await licences()));
  return files;
}

async function licences() {
  const parts = ["Libraries in the pages of mmserve, with their licences.\n"];
  for (const name of LIBRARIES) {
    const folder = join(ROOT, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const text = (await readdir(folder)).filter((file) => /^licen[cs]e/i.test(file)).sort()[0];
    parts.push(`${"=".repeat(78)}\n${name} ${version} (${license})\n\n${text ? (await readFile(join(folder, text), "utf8")).trim() : ""}\n`);
  }
  return parts.join("\n");
}

async function sources(folder) {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
}

async function refuseForbidden() {
  for (const file of await sources(join(ROOT, "src"))) {
    const text = await readFile(file, "utf8");
    for (const pattern of FORBIDDEN) if (pattern.test(text)) fail(`${file} has ${pattern}`);
  }
}

async function check() {
  const made = await pages();
  const present = new Set(await readdir(OUTPUT).catch(() => []));
  for (const [name, content] of made) {
    const there = present.delete(name) ? await readFile(join(OUTPUT, name)) : null;
    if (there === null || !there.equals(content)) fail(`mmserve/httpserver/webui/static/${name} is not what web/ makes: run 'make web'`);
  }
  for (const name of present) fail(`mmserve/httpserver/webui/static/${name} comes from nothing in web/`);
}

async function write() {
  await rm(OUTPUT, { recursive: true, force: true });
  await mkdir(OUTPUT, { recursive: true });
  for (const [name, content] of await pages()) await writeFile(join(OUTPUT, name), content);
}

async function tests() {
  await rm(join(ROOT, ".tests"), { recursive: true, force: true });
  await build({
    absWorkingDir: ROOT,
    entryPoints: (await readdir(join(ROOT, "tests"))).filter((name) => name.endsWith(".test.tsx")).map((name) => `tests/${name}`),
    outdir: ".tests",
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

await refuseForbidden();
await (process.argv.includes("--check") ? check() : process.argv.includes("--tests") ? tests() : write());
